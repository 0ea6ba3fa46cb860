"""What attention computes and moves, term by term: each number is its printed formula evaluated; without torch."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from autotune.search_spaces.flash_attention import visible_pairs
from autotune.shape import ITEM_BYTES, AttentionShape

Action = Literal["read", "write"]

MASK_BYTES: Final = 1  # torch's bool


@dataclass(frozen=True, slots=True)
class Work:
    """Floating-point operations of one step: ``symbols`` is their number as a product of sizes."""

    kernel: str
    step: str
    symbols: str
    flops: int


@dataclass(frozen=True, slots=True)
class Movement:
    """One tensor that a kernel reads from memory or writes to it: ``symbols`` is its number of elements."""

    kernel: str
    action: Action
    tensor: str
    symbols: str
    elements: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TileTraffic:
    """Bytes that the tiles of a fused kernel load and store, wherever they come from: L2 or memory."""

    block_q: int
    block_k: int
    q: int
    k: int
    v: int
    out: int

    @property
    def total(self) -> int:
        return self.q + self.k + self.v + self.out


def sizes(shape: AttentionShape) -> dict[str, int]:
    """The symbols of the formulas; ``P`` are the pairs of a query and a key that it sees, of one head.

    Example:
        >>> sizes(AttentionShape(batch=1, heads=8, seq_q=128, head_dim=64))["P"]
        16384
    """
    return {
        "B": shape.batch,
        "H": shape.heads,
        "H_kv": shape.kv_heads,
        "S_q": shape.seq_q,
        "S_kv": shape.seq_kv,
        "D": shape.head_dim,
        "D_v": shape.head_dim_v,
        "P": visible_pairs(shape),
    }


def evaluate(symbols: str, shape: AttentionShape) -> int:
    """The product that a formula such as ``"2 B H P D"`` names."""
    known = sizes(shape)
    return math.prod(known[name] if name in known else int(name) for name in symbols.split())


def works(shape: AttentionShape) -> tuple[Work, ...]:
    """FLOPs of attention, over the pairs that the mask leaves.

    A multiply-add counts 2. Of the softmax a pair costs a scaling, a comparison for the maximum, a subtraction, an
    exponential, an addition and a division. What benchmarks count (FlashAttention's convention, and ``cost`` here) are
    the two products alone.
    """
    terms = (
        ("attention_scores", "product Q K^T", "2 B H P D"),
        ("attention_scores", "scaling", "B H P"),
        ("softmax_rows", "softmax: max, subtract, exp, add, divide", "5 B H P"),
        ("weighted_sum", "product P V", "2 B H P D_v"),
    )
    return tuple(Work(kernel, step, symbols, evaluate(symbols, shape)) for kernel, step, symbols in terms)


def product_flops(shape: AttentionShape) -> int:
    """FLOPs of the two products: the field's count, and what rates are given in."""
    return sum(work.flops for work in works(shape) if work.step.startswith("product"))


def naive_movements(shape: AttentionShape) -> tuple[Movement, ...]:
    """Every read and write of the three naive kernels, each tensor once a kernel; hidden scores move like others."""
    return _movements(
        shape,
        ("attention_scores", "read", "Q", "B H S_q D"),
        ("attention_scores", "read", "K", "B H_kv S_kv D"),
        ("attention_scores", "write", "scores", "B H S_q S_kv"),
        ("softmax_rows", "read", "scores", "B H S_q S_kv"),
        ("softmax_rows", "write", "weights", "B H S_q S_kv"),
        ("weighted_sum", "read", "weights", "B H S_q S_kv"),
        ("weighted_sum", "read", "V", "B H_kv S_kv D_v"),
        ("weighted_sum", "write", "output", "B H S_q D_v"),
    )


def eager_movements(shape: AttentionShape) -> tuple[Movement, ...]:
    """Every read and write of eager attention's operations in torch, each tensor once an operation.

    Besides the operations that are written there are torch's own copies: a batched product wants batch and heads in
    one dimension, which ``[B, S, H, D]`` tensors seen as ``[B, H, S, D]`` are not, and ``masked_fill`` clones first.
    """
    scores, keys, values = "B H S_q S_kv", "B H S_kv D", "B H S_kv D_v"
    terms: list[tuple[str, Action, str, str]] = []
    if shape.group > 1:
        terms += [
            ("repeat", "read", "K", "B H_kv S_kv D"),
            ("repeat", "write", "K of every head", keys),
            ("repeat", "read", "V", "B H_kv S_kv D_v"),
            ("repeat", "write", "V of every head", values),
        ]
    if is_copied(shape, shape.seq_q):
        terms += [("copy", "read", "Q", "B H S_q D"), ("copy", "write", "Q", "B H S_q D")]
    if shape.group == 1 and is_copied(shape, shape.seq_kv):
        terms += [("copy", "read", "K", keys), ("copy", "write", "K", keys)]
    terms += [
        ("matmul", "read", "Q", "B H S_q D"),
        ("matmul", "read", "K", keys),
        ("matmul", "write", "scores", scores),
        ("scale", "read", "scores", scores),
        ("scale", "write", "scores", scores),
    ]
    if shape.causal:
        terms += [
            ("clone", "read", "scores", scores),
            ("clone", "write", "scores", scores),
            ("masked_fill", "read", "scores", scores),
            ("masked_fill", "read", "mask", "S_q S_kv"),
            ("masked_fill", "write", "scores", scores),
        ]
    terms += [("softmax", "read", "scores", scores), ("softmax", "write", "weights", scores)]
    if shape.group == 1 and is_copied(shape, shape.seq_kv):
        terms += [("copy", "read", "V", values), ("copy", "write", "V", values)]
    terms += [
        ("matmul", "read", "weights", scores),
        ("matmul", "read", "V", values),
        ("matmul", "write", "output", "B H S_q D_v"),
    ]
    return _movements(shape, *terms)


def fused_movements(shape: AttentionShape) -> tuple[Movement, ...]:
    """What a fused kernel must move at least: its inputs in, its output out, once each."""
    return _movements(
        shape,
        ("fused", "read", "Q", "B H S_q D"),
        ("fused", "read", "K", "B H_kv S_kv D"),
        ("fused", "read", "V", "B H_kv S_kv D_v"),
        ("fused", "write", "output", "B H S_q D_v"),
    )


def total_bytes(movements: Iterable[Movement]) -> int:
    return sum(movement.bytes for movement in movements)


def tile_traffic(shape: AttentionShape, block_q: int, block_k: int, *, keeps_q: bool = True) -> TileTraffic:
    """Bytes that the tiles of flash attention load and store.

    One program holds ``block_q`` queries, walks over the blocks of ``block_k`` keys that any of them sees, and writes
    its output once (FlashAttention-2, arXiv 2307.08691, algorithm 1). So K and V are read again for every block of
    queries of every query head. With ``keeps_q`` false its queries are read again for every block of keys, too.
    """
    rows, first_key, last_key, key_blocks = _tiles(shape, block_q, block_k)
    item, programs = ITEM_BYTES[shape.dtype], shape.batch * shape.heads
    keys = programs * int((last_key - first_key).sum())
    queries = programs * int((rows if keeps_q else rows * key_blocks).sum())
    return TileTraffic(
        block_q,
        block_k,
        q=queries * shape.head_dim * item,
        k=keys * shape.head_dim * item,
        v=keys * shape.head_dim_v * item,
        out=programs * shape.seq_q * shape.head_dim_v * item,
    )


def is_copied(shape: AttentionShape, length: int) -> bool:
    """Whether torch's batched product must copy a ``[B, S, H, D]`` tensor to have batch and heads in one dimension."""
    return shape.batch > 1 and shape.heads > 1 and length > 1


def _tiles(
    shape: AttentionShape, block_q: int, block_k: int
) -> tuple["np.ndarray", "np.ndarray", "np.ndarray", "np.ndarray"]:
    """Of each block of queries of one head: its rows, the keys ``[first, last)`` that its tiles hold, their number."""
    first_row = np.arange(0, shape.seq_q, block_q, dtype=np.int64)
    last_row = np.minimum(first_row + block_q, shape.seq_q) - 1
    offset, window = shape.seq_kv - shape.seq_q, shape.window
    low, high = np.zeros_like(first_row), np.full_like(first_row, shape.seq_kv)
    if window is not None:
        low = np.maximum(0, first_row + offset - window + 1) // block_k * block_k
        high = np.minimum(high, last_row + offset + window)
    if shape.causal:
        high = np.minimum(high, last_row + offset + 1)
    key_blocks = np.maximum(0, -((low - high) // block_k))
    last_key = np.where(key_blocks > 0, np.minimum(low + key_blocks * block_k, shape.seq_kv), low)
    return last_row - first_row + 1, low, last_key, key_blocks


def _movements(shape: AttentionShape, *terms: tuple[str, Action, str, str]) -> tuple[Movement, ...]:
    item = ITEM_BYTES[shape.dtype]
    return tuple(
        Movement(kernel, action, tensor, symbols, count, count * (MASK_BYTES if tensor == "mask" else item))
        for kernel, action, tensor, symbols in terms
        for count in (evaluate(symbols, shape),)
    )
