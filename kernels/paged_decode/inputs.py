"""Random problems for paged decode: ragged lengths, shuffled pages, NaN wherever nothing may be read."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from autotune.kernels.paged_cache.layout import allocate_caches, is_prefix
from autotune.kernels.paged_cache.quantization import LARGEST, quantize
from autotune.search_spaces.bounds import MIN_BLOCK
from autotune.search_spaces.paged_decode.operation import lengths_of
from autotune.shape import PagedShape

SOFTCAP: Final = 20.0  # a typical cap, for inputs of shapes that have one (Gemma-2 uses 50, Grok-1 30)
SPARE_PAGES: Final = 5  # of a pool, that no sequence uses
CHECK_CONTEXT: Final = 600  # beyond two tiles of the longest block, and a multiple of none
# Programs that the schedule ``flat`` has for each KV head and block of rows, at one an SM in the smallest tiles: enough
# to divide a sequence, and few enough to cross from one to the next; with more, fewer configs do both.
CHECK_PROGRAMS: Final = 2
NO_PAGE: Final = -1  # in a page table, where a sequence has no page
LEFT_OUT: Final = 5  # of so many pages of latents one is left out of a table, where numbers are checked
FEATURES: Final = ("layout", "scale", "window", "softcap", "sinks", "alibi_slopes")


@dataclass(frozen=True, slots=True)
class Inputs:
    """Queries ``[B, S_q, H, D]``, the caches in ``layout``, and what the call says about them.

    ``page_table`` is int32 ``[B, max_pages]``, ``seq_lens`` int32 ``[B]``, ``sinks`` and ``alibi_slopes`` are fp32
    ``[H]`` or None. Scales are those of a quantized cache, fp32 ``[H_kv]``, or one a slot and head in the order of the
    cache's axes for int8. ``sm_count`` is what the launch takes the device to have; None: as many as it has.
    """

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    page_table: torch.Tensor
    seq_lens: torch.Tensor
    layout: str
    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None
    alibi_slopes: torch.Tensor | None = None
    k_scale: torch.Tensor | None = None
    v_scale: torch.Tensor | None = None
    sm_count: int | None = None

    @property
    def tensors(self) -> tuple[Any, ...]:
        """The tensors that launch and reference take by position."""
        return self.q, self.k_cache, self.v_cache, self.page_table, self.seq_lens

    @property
    def features(self) -> dict[str, Any]:
        """The options that launch and reference take by name."""
        return {name: getattr(self, name) for name in (*FEATURES, "k_scale", "v_scale")}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckShape(PagedShape):
    """A small problem: its sequences have these lengths, and the launch takes the device to have that many SMs."""

    lengths: tuple[int, ...]
    sm_count: int | None = None


def check_shapes(shape: PagedShape) -> Sequence[CheckShape]:
    """Return two small problems of the same layout, which run the same binaries: no length or batch is specialized, but
    the strides of caches are, and with them the number of heads.

    The first has few sequences of some hundred keys; the second the lengths at which something ends or is missing:
    keys, pages, tiles, and of more queries than keys. It runs as on a device of so few SMs, for its heads and queries,
    that programs of the schedule ``flat`` share sequences.
    """
    context = min(shape.max_context, CHECK_CONTEXT + shape.page_size)
    page = shape.page_size
    edges = (0, 1, shape.seq_q, page - 1, page, page + 1, 63, 257, context, context - 1, 0)
    fields = shape.as_dict()
    sm_count = CHECK_PROGRAMS * shape.kv_heads * -(-shape.group * shape.seq_q // MIN_BLOCK)

    def small(lengths: tuple[int, ...], sm_count: int | None) -> CheckShape:
        lengths = tuple(min(length, context) for length in lengths)
        sizes = {"batch": len(lengths), "max_context": context, "mean_context": max(1, sum(lengths) // len(lengths))}
        return CheckShape(**{**fields, **sizes}, lengths=lengths, sm_count=sm_count)  # type: ignore[arg-type]

    return small((context, context * 2 // 3, context // 7), None), small(edges, sm_count)


def empty_inputs(shape: PagedShape, *, pages: int, device: str) -> Inputs:
    """Allocate inputs of a shape over a pool of so many pages; what they hold is undefined."""

    def empty(*sizes: int, dtype: str = "float32") -> torch.Tensor:
        return torch.empty(sizes, dtype=getattr(torch, dtype), device=device)

    k_cache, v_cache = allocate_caches(shape, pages, device)
    k_scale, v_scale = empty_scales(shape, (k_cache, v_cache))
    return Inputs(
        q=empty(shape.batch, shape.seq_q, shape.heads, shape.head_dim, dtype=shape.dtype),
        k_cache=k_cache,
        v_cache=v_cache,
        page_table=empty(shape.batch, -(-shape.max_context // shape.page_size), dtype="int32"),
        seq_lens=empty(shape.batch, dtype="int32"),
        layout=shape.layout,
        scale=shape.head_dim**-0.5,
        window=shape.window,
        softcap=SOFTCAP if shape.softcap else None,
        sinks=empty(shape.heads) if shape.sinks else None,
        alibi_slopes=empty(shape.heads) if shape.alibi else None,
        k_scale=k_scale,
        v_scale=v_scale,
        sm_count=shape.sm_count if isinstance(shape, CheckShape) else None,
    )


def make_inputs(shape: PagedShape, *, seed: int, device: str, data: str = "normal") -> Inputs:
    """Draw random tensors; whatever must not be read is NaN, or a page that does not exist. Problems that numbers of
    latents are checked on leave pages out of their tables, as top-k indices may.

    ``large``: scores far apart; ``tails``: the scores grow along the keys, so that the running maximum moves with every
    tile and the last keys carry the weight.
    """
    generator = torch.Generator(device=device).manual_seed(seed)
    lengths = shuffled_lengths(shape, generator)
    counts = -(-lengths // shape.page_size)
    used = int(counts.sum())
    inputs = empty_inputs(shape, pages=used + SPARE_PAGES, device=device)
    inputs.seq_lens.copy_(lengths)
    pages = torch.randperm(used + SPARE_PAGES, generator=generator, device=device)
    sequence = torch.repeat_interleave(torch.arange(shape.batch, device=device), counts)
    place = torch.arange(used, device=device) - (counts.cumsum(0) - counts)[sequence]  # of a page in its sequence
    inputs.page_table.fill_(NO_PAGE)[sequence, place] = pages[:used].int()
    is_left_out = torch.zeros(used, dtype=torch.bool, device=device)
    if shape.is_latent and isinstance(shape, CheckShape):
        is_left_out = torch.rand(used, generator=generator, device=device) < 1 / LEFT_OUT
        inputs.page_table[sequence[is_left_out], place[is_left_out]] = NO_PAGE

    q, k_cache, v_cache = inputs.q, inputs.k_cache, inputs.v_cache
    if shape.kv_dtype != shape.dtype:
        k_cache, v_cache = allocate_caches(shape, used + SPARE_PAGES, device, q.dtype)
    for tensor in (q, k_cache, v_cache):
        tensor.normal_(generator=generator)
    k_slots, v_slots = (cache if shape.layout == "NHD" else cache.transpose(1, 2) for cache in (k_cache, v_cache))
    keys = place[:, None] * shape.page_size + torch.arange(shape.page_size, device=device)  # [used pages, page_size]
    if data == "large":
        q *= 6.0
        k_cache *= 2.0
    elif data == "tails":
        fraction = keys / lengths[sequence][:, None]
        q.mul_(0.5).add_(1.0)
        k_slots[pages[:used]] = k_slots[pages[:used]] * 0.3 + (4.0 * fraction - 2.0)[:, :, None, None].to(q.dtype)
    page, slot = ((keys >= lengths[sequence][:, None]) | is_left_out[:, None]).nonzero(as_tuple=True)
    for slots in (k_slots, v_slots):
        slots[pages[:used][page], slot] = math.nan
        slots[pages[used:]] = math.nan
    if shape.kv_dtype != shape.dtype:
        scales = _quantize_cache(k_cache, inputs.k_cache, shape), _quantize_cache(v_cache, inputs.v_cache, shape)
        inputs = replace(inputs, k_scale=scales[0], v_scale=scales[1])
    if inputs.sinks is not None:
        inputs.sinks.normal_(generator=generator)
    if inputs.alibi_slopes is not None:
        # The slopes of Press et al., arXiv 2108.12409, section 3, for a number of heads that is a power of two.
        per_head = torch.arange(1, shape.heads + 1, dtype=torch.float32, device=device)
        inputs.alibi_slopes.copy_(torch.exp2(-8.0 * per_head / shape.heads))
    return inputs


def empty_scales(shape: PagedShape, caches: Sequence[torch.Tensor]) -> Sequence[torch.Tensor | None]:
    """Allocate the scales of these caches, as ``make_inputs`` has them; None of what is not quantized."""
    if shape.kv_dtype == shape.dtype:
        return [None] * len(caches)
    sizes = [cache.shape[:3] if cache.dtype == torch.int8 else (shape.kv_heads,) for cache in caches]
    return [torch.empty(size, device=cache.device) for size, cache in zip(sizes, caches, strict=True)]


def _quantize_cache(source: torch.Tensor, target: torch.Tensor, shape: PagedShape) -> torch.Tensor:
    """Fill ``target`` with the quantized ``source``; return a scale for each KV head, or of int8 each slot and head."""
    rows = source if shape.layout == "NHD" else source.transpose(1, 2)  # [pages, page_size, H_kv, D]
    scale = None
    if target.dtype != torch.int8:
        peaks = rows.nan_to_num(0.0).abs().amax((0, 1, 3)).float()
        scale = torch.where(peaks > 0.0, peaks, 1.0) / LARGEST[target.dtype]
    values, scale = quantize(rows, target.dtype, scale)
    target.copy_(values if shape.layout == "NHD" else values.transpose(1, 2))
    return scale.transpose(1, 2).contiguous() if scale.ndim == 3 and shape.layout == "HND" else scale


def permute_pages(inputs: Inputs, *, seed: int) -> Inputs:
    """Return the same problem with its pages elsewhere in the pool: the same answer, to the bit."""
    generator = torch.Generator(device=inputs.q.device).manual_seed(seed)
    order = torch.randperm(inputs.k_cache.shape[0], generator=generator, device=inputs.q.device)
    names = ["k_cache", "v_cache", *(["k_scale", "v_scale"] if inputs.k_cache.dtype == torch.int8 else [])]
    moved: dict[str, Any] = {name: torch.empty_like(getattr(inputs, name)) for name in names}
    for name, target in moved.items():
        source = getattr(inputs, name)
        if target.itemsize == 1:  # torch moves no rows of 8-bit floats by index
            source, target = source.view(torch.uint8), target.view(torch.uint8)
        target[order] = source
    if is_prefix(inputs.k_cache, inputs.v_cache):
        moved["v_cache"] = moved["k_cache"][..., : inputs.v_cache.shape[3]]
    table = torch.where(inputs.page_table < 0, inputs.page_table, order.int()[inputs.page_table.clamp(min=0).long()])
    return replace(inputs, **moved, page_table=table)


def shuffled_lengths(shape: PagedShape, generator: torch.Generator) -> torch.Tensor:
    """Return the lengths ``[batch]`` that a shape stands for in a random order, or those of a problem to check."""
    device = generator.device
    if isinstance(shape, CheckShape):
        return torch.tensor(shape.lengths, device=device)
    order = torch.randperm(shape.batch, generator=generator, device=device)
    return torch.tensor(lengths_of(shape), device=device)[order]
