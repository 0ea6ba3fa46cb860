"""Small paged problems, and attention over them in fp64, written here and nowhere near what is tested."""

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch

# What lies behind a sequence's end in its last page, and in the page that padding points to. Both algorithms, as
# published, read these slots and then multiply by 0, which NaN would survive; large, they spoil what forgets to.
BEHIND: Final = 1e4
PADDING_PAGE: Final = 0
SPARE_PAGES: Final = 3
NO_PAGE: Final = (-1, 10**6)  # what a page table may hold where a sequence has no page
LARGEST_EXP: Final = math.log(torch.finfo(torch.float32).max)
# Integers times a power of two: every logit is exact in bf16 too, in any order of summation, boosted or not. Were they
# rounded, as others would be, a unit in the last place of a large one would change its weight by half, in any code.
SCALE: Final = 0.125
BOOST: Final = 64.0


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One batch; the logits of the sequences in ``boosted`` are ``BOOST`` times as large."""

    lengths: tuple[int, ...]
    page_size: int
    heads: int = 4
    kv_heads: int = 4
    head_dim: int = 32
    head_dim_v: int = 32
    dtype: torch.dtype = torch.float32
    boosted: tuple[int, ...] = ()


@dataclass(frozen=True)
class Tensors:
    """``q [B, H, D]``, caches ``[pages, page, H_kv, D]``; every slot of a page that no sequence has is NaN."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    page_table: torch.Tensor
    seq_lens: torch.Tensor
    scale: float = SCALE


def draw(problem: Problem, device: str = "cpu") -> Tensors:
    """The problem's tensors, from one seed and made on the CPU: the same on every device."""
    generator = torch.Generator().manual_seed(0)
    size, batch = problem.page_size, len(problem.lengths)
    counts = [-(-length // size) for length in problem.lengths]
    used, capacity = sum(counts), max(counts) + 2
    order = torch.randperm(used + SPARE_PAGES, generator=generator)[:used] + 1  # page 0 is padding's
    page_table = torch.tensor(NO_PAGE, dtype=torch.int32).repeat(batch, capacity)[:, :capacity].contiguous()
    k_cache, v_cache = (
        torch.full((1 + used + SPARE_PAGES, size, problem.kv_heads, width), math.nan)
        for width in (problem.head_dim, problem.head_dim_v)
    )
    k_cache[PADDING_PAGE] = v_cache[PADDING_PAGE] = BEHIND
    own = iter(order.tolist())
    for sequence, (length, count) in enumerate(zip(problem.lengths, counts, strict=True)):
        for place in range(count):
            page, filled = next(own), min(size, length - place * size)
            page_table[sequence, place] = page
            k_cache[page] = v_cache[page] = BEHIND
            k_cache[page, :filled] = _integers((filled, *k_cache.shape[2:]), generator)
            v_cache[page, :filled] = torch.randn(filled, *v_cache.shape[2:], generator=generator)
    q = _integers((batch, problem.heads, problem.head_dim), generator)
    q[list(problem.boosted)] *= BOOST
    return Tensors(
        q.to(device, problem.dtype),
        k_cache.to(device, problem.dtype),
        v_cache.to(device, problem.dtype),
        page_table.to(device),
        torch.tensor(problem.lengths, dtype=torch.int32, device=device),
    )


def _integers(sizes: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.randint(-2, 3, sizes, generator=generator).float()


class Expected(NamedTuple):
    """The output in fp64, the same sum over the values' magnitudes, and the largest logit."""

    out: torch.Tensor
    magnitude: torch.Tensor
    largest_logit: float


def attention(tensors: Tensors) -> Expected:
    """By the formula in fp64, one sequence and query head after the other; 0 where there is no key."""
    q, k_cache, v_cache = (tensor.cpu().double() for tensor in (tensors.q, tensors.k_cache, tensors.v_cache))
    page_size, kv_heads = k_cache.shape[1:3]
    out, magnitude = (q.new_zeros(*q.shape[:2], v_cache.shape[3]) for _ in range(2))
    largest = -math.inf
    for sequence, length in enumerate(tensors.seq_lens.tolist()):
        if length == 0:
            continue
        pages = tensors.page_table[sequence, : math.ceil(length / page_size)].tolist()
        keys, values = (torch.cat([cache[page] for page in pages])[:length] for cache in (k_cache, v_cache))
        for head in range(q.shape[1]):
            kv_head = head // (q.shape[1] // kv_heads)
            logits = keys[:, kv_head] @ q[sequence, head] * tensors.scale
            weights = torch.exp(logits - logits.max())
            weights /= weights.sum()
            out[sequence, head] = weights @ values[:, kv_head]
            magnitude[sequence, head] = weights @ values[:, kv_head].abs()
            largest = max(largest, float(logits.max()))
    return Expected(out, magnitude, largest)


def error_limit(expected: Expected, dtype: torch.dtype) -> torch.Tensor:
    """The error that rounding may cost an element whose logits are exact.

    Weights, a page's result, its factor, their product and the output are rounded to the inputs' type, each by at most
    half an epsilon of what is summed. In fp32 the sums count too, over up to 300 terms in an order of the library's.
    """
    roundings = 5 if dtype == torch.bfloat16 else 16
    return roundings * torch.finfo(dtype).eps / 2 * expected.magnitude
