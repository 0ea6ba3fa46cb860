"""Random problems of packed sequences: lengths as the shape spreads them, in a random order."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from autotune.search_spaces.flash_attention_varlen.operation import lengths_of
from autotune.varlen_shape import VarlenShape

SOFTCAP: Final = 20.0  # a typical cap, for inputs of shapes that have one (Gemma-2 uses 50, Grok-1 30)
CHECK_SEQ: Final = 300  # beyond a tile of the most rows and of the longest block, and a multiple of none
FEATURES: Final = ("causal", "window", "softcap", "scale", "sinks")


@dataclass(frozen=True, slots=True)
class Inputs:
    """Queries ``[T_q, H, D]``, keys and values ``[T_kv, H_kv, D]``, and what the call says about them.

    Those of sequence ``i`` are from ``cu_seqlens_q[i]`` to ``cu_seqlens_q[i + 1]``, int32 ``[B + 1]``, and likewise of
    ``cu_seqlens_k``. ``sinks`` are fp32 ``[H]`` or None.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    cu_seqlens_q: torch.Tensor
    cu_seqlens_k: torch.Tensor
    causal: bool
    window: int | None
    softcap: float | None
    scale: float
    sinks: torch.Tensor | None = None

    @property
    def tensors(self) -> tuple[Any, ...]:
        """The tensors that launch and reference take by position."""
        return self.q, self.k, self.v, self.cu_seqlens_q, self.cu_seqlens_k

    @property
    def features(self) -> dict[str, Any]:
        """The options that launch and reference take by name."""
        return {name: getattr(self, name) for name in FEATURES}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckShape(VarlenShape):
    """A small problem: its sequences have these numbers of queries and of keys."""

    lengths: tuple[tuple[int, int], ...]


def check_shape(shape: VarlenShape, lengths: Sequence[tuple[int, int]]) -> CheckShape:
    """Return ``shape`` with sequences of exactly these numbers of queries and of keys."""
    sizes: dict[str, Any] = {"batch": len(lengths), "lengths": tuple(lengths)}
    for name, counts in zip(("seq_q", "seq_kv"), zip(*lengths, strict=True), strict=True):
        sizes |= {f"max_{name}": max(1, *counts), f"mean_{name}": max(1, sum(counts) // len(counts))}
    return CheckShape(**{**shape.as_dict(), **sizes})


def check_shapes(shape: VarlenShape) -> Sequence[CheckShape]:
    """Return two small problems of the heads' layout that run the same binaries: no length or number is specialized.

    The first has a few long sequences; the second the lengths at which something ends or is missing: queries, keys,
    tiles, and keys where there are more queries than those.
    """
    kv_heads = min(shape.kv_heads, 2)
    small = replace(shape, heads=kv_heads * shape.group, kv_heads=kv_heads)
    queries, keys = min(shape.max_seq_q, CHECK_SEQ), min(shape.max_seq_kv, CHECK_SEQ)
    long = ((queries // 7, keys // 3), (queries, keys), (queries * 2 // 3, keys * 2 // 3))
    edges = (
        *((0, 0), (1, 1), (15, 15), (16, 16), (17, 17), (33, 37), (0, 257), (3, 0), (1, keys), (70, keys - 1)),
        *((64, 63), (queries, 40), (0, 0)),
    )
    return (
        check_shape(small, long),
        check_shape(small, [(min(count, queries), min(length, keys)) for count, length in edges]),
    )


def make_inputs(shape: VarlenShape, *, seed: int, device: str, data: str = "normal") -> Inputs:
    """Draw random tensors.

    ``large``: scores far apart; ``tails``: the scores grow along each sequence's keys, so that the running maximum
    moves with every block and the last keys carry the weight.
    """
    generator = torch.Generator(device=device).manual_seed(seed)
    if isinstance(shape, CheckShape):
        lengths = torch.tensor(shape.lengths, device=device)
    else:
        drawn = torch.tensor(lengths_of(shape), device=device)
        lengths = drawn[torch.randperm(shape.batch, generator=generator, device=device)]
    inputs = empty_inputs(shape, int(lengths[:, 0].sum()), int(lengths[:, 1].sum()), len(lengths), device=device)
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (0, 0, 1, 0)).int()
    inputs.cu_seqlens_q.copy_(offsets[:, 0])
    inputs.cu_seqlens_k.copy_(offsets[:, 1])
    for tensor in (inputs.q, inputs.k, inputs.v):
        tensor.normal_(generator=generator)
    if data == "large":
        inputs.q.mul_(6.0)
        inputs.k.mul_(2.0)
    elif data == "tails":
        inputs.q.mul_(0.5).add_(1.0)
        inputs.k.mul_(0.3).add_(_ramp(lengths[:, 1])[:, None, None].to(inputs.k.dtype))
    if inputs.sinks is not None:
        inputs.sinks.normal_(generator=generator)
    return inputs


def _ramp(lengths: torch.Tensor) -> torch.Tensor:
    """Return for each packed key where it lies in its sequence: -2 for the first and up to 2 for the last."""
    begins = torch.repeat_interleave(lengths.cumsum(0) - lengths, lengths)
    place = torch.arange(len(begins), device=lengths.device) - begins
    return 4.0 * (place + 1) / torch.repeat_interleave(lengths, lengths) - 2.0


def empty_inputs(shape: VarlenShape, tokens: int, key_tokens: int, batch: int, *, device: str) -> Inputs:
    """Allocate inputs of a shape over so many packed rows and sequences; what they hold is undefined."""

    def empty(*sizes: int, dtype: str = shape.dtype) -> torch.Tensor:
        return torch.empty(sizes, dtype=getattr(torch, dtype), device=device)

    return Inputs(
        q=empty(tokens, shape.heads, shape.head_dim),
        k=empty(key_tokens, shape.kv_heads, shape.head_dim),
        v=empty(key_tokens, shape.kv_heads, shape.head_dim_v),
        cu_seqlens_q=empty(batch + 1, dtype="int32"),
        cu_seqlens_k=empty(batch + 1, dtype="int32"),
        causal=shape.causal,
        window=shape.window,
        softcap=SOFTCAP if shape.softcap else None,
        scale=1.0 / math.sqrt(shape.head_dim),
        sinks=empty(shape.heads, dtype="float32") if shape.sinks else None,
    )
