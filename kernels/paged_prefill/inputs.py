"""Random problems for paged prefill: those of paged decode, with queries packed one sequence after another."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import torch

from autotune.kernels.paged_decode import inputs as decode
from autotune.search_spaces.paged_prefill.operation import lengths_of
from autotune.shape import PagedShape

CHECK_CONTEXT: Final = 600  # beyond two tiles of the longest block, and a multiple of none
CHECK_QUERIES: Final = 290  # beyond one tile of the most rows, and a multiple of none


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs(decode.Inputs):
    """Queries ``[T, H, D]``; those of sequence ``i`` are ``cu_seqlens_q[i]`` to ``cu_seqlens_q[i + 1]``, int32
    ``[B + 1]``. Without ``causal`` each sees all keys of its sequence. The rest is as in paged decode."""

    cu_seqlens_q: torch.Tensor
    causal: bool = True

    @property
    def tensors(self) -> tuple[Any, ...]:
        return self.q, self.k_cache, self.v_cache, self.page_table, self.seq_lens, self.cu_seqlens_q

    @property
    def features(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in (*decode.FEATURES, "k_scale", "v_scale", "causal")}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckShape(decode.CheckShape):
    """A small problem: its sequences have these lengths, and these numbers of new queries."""

    query_lengths: tuple[int, ...]


def check_shape(shape: PagedShape, lengths: Sequence[int], query_lengths: Sequence[int]) -> CheckShape:
    """Return ``shape`` with sequences of exactly these lengths and numbers of queries."""
    batch = len(lengths)
    sizes: dict[str, Any] = {
        "batch": batch,
        "seq_q": max(1, -(-sum(query_lengths) // batch)),
        "max_context": max(1, *lengths),
        "mean_context": max(1, sum(lengths) // batch),
    }
    sizes |= {"lengths": tuple(lengths), "query_lengths": tuple(query_lengths), "sm_count": None}
    return CheckShape(**{**shape.as_dict(), **sizes})


def check_shapes(shape: PagedShape) -> Sequence[CheckShape]:
    """Return two small problems of the same layout, which run the same binaries: no length or batch is specialized, but
    the strides of caches are, and with them the number of heads.

    The first has a few chunks; the second decode rows among chunks, and the lengths at which something ends or is
    missing: keys, pages, tiles, new queries, and keys where there are more queries than those.
    """
    context = min(shape.max_context, CHECK_CONTEXT + shape.page_size)
    queries = min(shape.seq_q, CHECK_QUERIES)
    page = shape.page_size
    chunks = {context: queries, context * 2 // 3: queries // 2 + 1, context // 7: queries}
    edges = (
        *((0, 0), (1, 1), (page - 1, page - 1), (page, 1), (page + 1, 2), (33, 37), (257, 0), (0, 3)),
        *((context, 1), (context - 1, 70), (63, 64)),
    )
    mixed = [(min(length, context), min(count, 70)) for length, count in edges]
    return (
        check_shape(shape, list(chunks), list(chunks.values())),
        check_shape(shape, [length for length, _ in mixed], [count for _, count in mixed]),
    )


def make_inputs(shape: PagedShape, *, seed: int, device: str, data: str = "normal") -> Inputs:
    """Draw random tensors; whatever must not be read is NaN, or a page that does not exist.

    See paged decode for ``data``. Sequences have the queries and keys of ``lengths_of(shape)``, those without a chunk
    in a random order, unless a ``CheckShape`` says otherwise.
    """
    if not isinstance(shape, CheckShape):
        *others, last = lengths_of(shape)
        random.Random(seed).shuffle(others)
        queries, lengths = zip(*others, last, strict=True)
        shape = check_shape(shape, lengths, queries)
    counts = shape.query_lengths
    padded = decode.make_inputs(replace(shape, seq_q=max(1, *counts)), seed=seed, device=device, data=data)
    q = torch.cat([queries[:count] for queries, count in zip(padded.q, counts, strict=True)])
    return _pack(padded, q, torch.tensor((0, *counts), device=device).cumsum(0).int(), causal=shape.causal)


def empty_inputs(shape: PagedShape, *, device: str) -> Inputs:
    """Allocate inputs of a shape over a pool of two pages; what they hold is undefined."""
    padded = decode.empty_inputs(shape, pages=2, device=device)
    offsets = torch.empty(shape.batch + 1, dtype=torch.int32, device=device)
    return _pack(padded, padded.q.flatten(0, 1), offsets, causal=shape.causal)


def _pack(padded: decode.Inputs, q: torch.Tensor, cu_seqlens_q: torch.Tensor, *, causal: bool) -> Inputs:
    values = {field.name: getattr(padded, field.name) for field in fields(padded)}
    return Inputs(**{**values, "q": q, "cu_seqlens_q": cu_seqlens_q, "causal": causal})
