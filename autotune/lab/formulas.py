"""FLOPs and memory traffic of attention, term by term: each number is its printed formula evaluated; without torch."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from autotune.dtypes import ITEM_BYTES
from autotune.search_spaces.flash_attention.operation import visible_pairs
from autotune.shape import AttentionShape

Rows = NDArray[np.int64]  # a value for each block of queries
Action = Literal["read", "write"]
Transfer = tuple[str, tuple[str, ...], str]  # an operation, the tensors that it reads, and the one that it writes

MASK_BYTES: Final = 1  # torch's bool
NAMES: Final = ("B", "H", "H_kv", "S_q", "S_kv", "D", "D_v")
FIELDS: Final = ("batch", "heads", "kv_heads", "seq_q", "seq_kv", "head_dim", "head_dim_v")  # of the same names
SYMBOLS: Final = {
    "Q": "B H S_q D",
    "K": "B H_kv S_kv D",
    "V": "B H_kv S_kv D_v",
    "K of every head": "B H S_kv D",
    "V of every head": "B H S_kv D_v",
    "scores": "B H S_q S_kv",
    "weights": "B H S_q S_kv",
    "mask": "S_q S_kv",
    "output": "B H S_q D_v",
}
# The three naive kernels.
NAIVE: Final[tuple[Transfer, ...]] = (
    ("attention_scores", ("Q", "K"), "scores"),
    ("softmax_rows", ("scores",), "weights"),
    ("weighted_sum", ("weights", "V"), "output"),
)


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
    """Return the values of the formulas' symbols; ``P`` counts one head's pairs of a query and a key that it sees.

    Example:
        >>> sizes(AttentionShape(batch=1, heads=8, seq_q=128, head_dim=64))["P"]
        16384
    """
    named = {name: getattr(shape, field) for name, field in zip(NAMES, FIELDS, strict=True)}
    return {**named, "P": visible_pairs(shape)}


def evaluate(symbols: str, shape: AttentionShape) -> int:
    """Evaluate a product such as ``"2 B H P D"``."""
    known = sizes(shape)
    return math.prod(known[name] if name in known else int(name) for name in symbols.split())


def works(shape: AttentionShape) -> tuple[Work, ...]:
    """Return the FLOPs of attention, over the pairs that the mask leaves.

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
    """Return the FLOPs of the two products, the usual count, on which rates are based."""
    return sum(work.flops for work in works(shape) if work.step.startswith("product"))


def naive_movements(shape: AttentionShape) -> tuple[Movement, ...]:
    """List the reads and writes of the three naive kernels, each tensor once a kernel; masked scores move, too."""
    return _movements(shape, NAIVE)


def eager_movements(shape: AttentionShape) -> tuple[Movement, ...]:
    """List the reads and writes of eager attention's operations in torch, each tensor once an operation.

    Besides the operations that are written there are torch's own copies: a batched product wants batch and heads in
    one dimension, which ``[B, S, H, D]`` tensors seen as ``[B, H, S, D]`` are not, and ``masked_fill`` clones first.
    """
    repeats = shape.group > 1
    keys, values = ("K of every head", "V of every head") if repeats else ("K", "V")
    copies_keys = not repeats and is_copied(shape, shape.seq_kv)
    operations: list[tuple[bool, Transfer]] = [
        (repeats, ("repeat", ("K",), keys)),
        (repeats, ("repeat", ("V",), values)),
        (is_copied(shape, shape.seq_q), ("copy", ("Q",), "Q")),
        (copies_keys, ("copy", ("K",), "K")),
        (True, ("matmul", ("Q", keys), "scores")),
        (True, ("scale", ("scores",), "scores")),
        (shape.causal, ("clone", ("scores",), "scores")),
        (shape.causal, ("masked_fill", ("scores", "mask"), "scores")),
        (True, ("softmax", ("scores",), "weights")),
        (copies_keys, ("copy", ("V",), "V")),
        (True, ("matmul", ("weights", values), "output")),
    ]
    return _movements(shape, (transfer for runs, transfer in operations if runs))


def fused_movements(shape: AttentionShape) -> tuple[Movement, ...]:
    """Return the least that a fused kernel moves: its inputs in and its output out, once each."""
    return _movements(shape, [("fused", ("Q", "K", "V"), "output")])


def total_bytes(movements: Iterable[Movement]) -> int:
    return sum(movement.bytes for movement in movements)


def tile_traffic(shape: AttentionShape, block_q: int, block_k: int, *, keeps_q: bool = True) -> TileTraffic:
    """Count the bytes that the tiles of flash attention load and store.

    One program holds ``block_q`` queries, walks over the blocks of ``block_k`` keys that any of them sees, and writes
    its output once (FlashAttention-2, arXiv 2307.08691, algorithm 1). So K and V are read again for every block of
    queries of every query head. With ``keeps_q`` false its queries are read again for every block of keys, too.
    """
    rows, first_key, last_key, key_blocks = _tiles(shape, block_q, block_k)
    item, programs = ITEM_BYTES[shape.dtype], shape.batch * shape.heads
    keys = programs * int((last_key - first_key).sum())
    queries = programs * int((rows if keeps_q else rows * key_blocks).sum())
    elements = (
        queries * shape.head_dim,
        keys * shape.head_dim,
        keys * shape.head_dim_v,
        programs * shape.seq_q * shape.head_dim_v,
    )
    return TileTraffic(block_q, block_k, *(count * item for count in elements))


def is_copied(shape: AttentionShape, length: int) -> bool:
    """Return True if torch's batched product copies ``[B, S, H, D]`` to have batch and heads in one dimension."""
    return shape.batch > 1 and shape.heads > 1 and length > 1


def _tiles(shape: AttentionShape, block_q: int, block_k: int) -> tuple[Rows, Rows, Rows, Rows]:
    """Return, for each block of queries of one head, its rows, its first and last key, and its blocks of keys."""
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


def _movements(shape: AttentionShape, transfers: Iterable[Transfer]) -> tuple[Movement, ...]:
    found = []
    for kernel, reads, written in transfers:
        moved: list[tuple[str, Action]] = [*((tensor, "read") for tensor in reads), (written, "write")]
        for tensor, action in moved:
            count = evaluate(SYMBOLS[tensor], shape)
            item = MASK_BYTES if tensor == "mask" else ITEM_BYTES[shape.dtype]
            found.append(Movement(kernel, action, tensor, SYMBOLS[tensor], count, count * item))
    return tuple(found)
