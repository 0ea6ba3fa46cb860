"""Model the part of a kernel's traffic that reaches the memory behind the L2, for comparison with a profiler.

A kernel begins with an empty L2 (as under Nsight Compute's ``--cache-control all``), every line enters it once, and it
ends holding the last of the kernel's lines, those that were written among them: these have not reached the memory yet.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from autotune.lab.formulas import Movement, fused_movements, naive_movements, tile_traffic
from autotune.shape import AttentionShape

PROGRAMS_PER_SM: Final = 2  # of a fused kernel; what tiles of 64 to 128 rows leave room for


@dataclass(frozen=True, slots=True)
class Dram:
    """Bytes that a kernel reads from memory and writes to it; ``most`` is what all of it is without an L2."""

    kernel: str
    read: int
    write: int
    most: int

    @property
    def total(self) -> int:
        return self.read + self.write


def naive_dram(shape: AttentionShape, l2_bytes: int) -> tuple[Dram, ...]:
    """Predict each of the three naive kernels; the L2 serves a tile of Q, K or V that is read again."""
    movements = naive_movements(shape)
    names = dict.fromkeys(movement.kernel for movement in movements)
    return tuple(_of_kernel(name, [m for m in movements if m.kernel == name], l2_bytes) for name in names)


def sum_dram(name: str, drams: Iterable[Dram]) -> Dram:
    parts = list(drams)
    return Dram(name, *(sum(getattr(part, field) for part in parts) for field in ("read", "write", "most")))


def fused_dram(shape: AttentionShape, block_q: int, block_k: int, l2_bytes: int) -> Dram:
    """Predict flash attention, whose programs read K and V again from the L2 for every block of queries."""
    streamed = _of_kernel("flash_attention_forward", list(fused_movements(shape)), l2_bytes)
    return replace(streamed, most=tile_traffic(shape, block_q, block_k).total)


def keys_in_flight(shape: AttentionShape, block_q: int, sm_count: int) -> int:
    """Return the bytes of K and V that the running programs of a fused kernel read at one time.

    Programs of one head start beside each other, so as many heads are read as the running programs cover.
    """
    keys = [movement for movement in fused_movements(shape) if movement.tensor in "KV"]
    programs_of_head = -(-shape.seq_q // block_q) * shape.group
    heads = min(shape.batch * shape.kv_heads, -(-sm_count * PROGRAMS_PER_SM // programs_of_head) + 1)
    return heads * sum(movement.bytes for movement in keys) // (shape.batch * shape.kv_heads)


def batch_past_l2(shape: AttentionShape, l2_bytes: int, times: int = 8) -> int:
    """Return the least batch with which the scores, and what a fused kernel moves, are so many times the L2.

    Then what the L2 keeps at a kernel's end is a small part, and the count is the memory's.
    """
    least = min(
        sum(m.bytes for m in naive_movements(shape) if (m.kernel, m.action) == ("attention_scores", "write")),
        sum(m.bytes for m in fused_movements(shape)),
    )
    return -(-times * l2_bytes * shape.batch // least)


def _of_kernel(name: str, movements: list[Movement], l2_bytes: int) -> Dram:
    read = sum(movement.bytes for movement in movements if movement.action == "read")
    written = sum(movement.bytes for movement in movements if movement.action == "write")
    lines = max(read, written) if name == "softmax_rows" else read + written  # the softmax replaces what it read
    kept = min(1.0, l2_bytes / lines)
    return Dram(name, read, round(written * (1.0 - kept)), read + written)
