"""Memory limits of a processor, predicted before anything is made: a process that asks for too much is killed."""

from typing import Any, Final

from autotune.operation import Operation
from autotune.shape import ITEM_BYTES, AttentionShape, PagedShape, Shape

FP64_BYTES: Final = 8
FP64_OUTPUTS: Final = 5  # tensors as large as the output during a check: the reference, and what the error takes
# Bytes of a score, at the least, in baselines that keep scores in memory: torch's math computes in float32, and a mask
# lies beside its two matrices (2.7 were measured, torch 2.13); eager reads one and writes one.
SCORE_BYTES: Final = {"sdpa math": 4, "eager": 2}
MATRICES: Final = {"sdpa math": 3, "eager": 2}


def why_too_large(operation: Operation[Any], shape: Shape, room: int) -> str | None:
    """Return why inputs, output and its reference do not fit into ``room`` bytes, or None if they may.

    Example:
        >>> why_too_large(OPERATION, replace(shape, batch=100_000, seq_q=65536, seq_kv=65536), 16 * 2**30)
        'inputs, output and its fp64 reference take about 2,400,000.0 GiB, 16.0 GiB may be asked for'
    """
    outputs = 0
    if isinstance(shape, AttentionShape | PagedShape):
        outputs = shape.batch * shape.heads * shape.seq_q * shape.head_dim_v
    needed = operation.cost(shape).bytes + FP64_OUTPUTS * FP64_BYTES * outputs
    return _excess("inputs, output and its fp64 reference take", needed, room)


def why_scores_too_large(name: str, shape: Shape, room: int) -> str | None:
    """Return why the scores of a baseline do not fit into ``room`` bytes, or None if they may or it keeps none."""
    if name not in SCORE_BYTES or not isinstance(shape, AttentionShape):
        return None
    item = max(SCORE_BYTES[name], ITEM_BYTES[shape.dtype])
    needed = MATRICES[name] * item * shape.batch * shape.heads * shape.seq_q * shape.seq_kv
    return _excess("its scores take", needed, room)


def _excess(subject: str, needed: int, room: int) -> str | None:
    if needed <= room:
        return None
    return f"{subject} about {needed / 2**30:,.1f} GiB, {room / 2**30:,.1f} GiB may be asked for"
