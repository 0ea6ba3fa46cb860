"""Dense attention as an operation: its shapes, and its cost by formula."""

from typing import Final

from autotune.operation import Cost, Operation
from autotune.shape import ITEM_BYTES, AttentionShape


def cost(shape: AttentionShape) -> Cost:
    """Return the FLOPs of both products over the visible scores, and the bytes of q, k, v and the output once each.

    The field's convention (FlashAttention's benchmarks): 2 FLOPs a multiply-add, softmax not counted.
    """
    pairs = visible_pairs(shape)
    flops = 2 * shape.batch * shape.heads * pairs * (shape.head_dim + shape.head_dim_v)
    queries = shape.batch * shape.heads * shape.seq_q * (shape.head_dim + shape.head_dim_v)
    seen = shape.seq_kv
    if shape.window is not None:  # the first query's window begins the band; the last query sees the last key
        seen = min(seen, shape.seq_q + shape.window - 1)
    keys = shape.batch * shape.kv_heads * seen * (shape.head_dim + shape.head_dim_v)
    return Cost(flops=flops, bytes=(queries + keys) * ITEM_BYTES[shape.dtype])


def visible_pairs(shape: AttentionShape) -> int:
    """Count the pairs of a query and a visible key, of one head, in closed form over the band between the masks."""
    offset = shape.seq_kv - shape.seq_q
    reach = shape.seq_q + shape.seq_kv  # further than any key lies
    behind = reach if shape.window is None else shape.window - 1
    ahead = 0 if shape.causal else behind
    # Query i sees max(0, i + offset - behind) <= j <= min(seq_kv - 1, i + offset + ahead).
    return _sum_clamped(offset + ahead + 1, shape.seq_q, shape.seq_kv) - _sum_clamped(
        offset - behind, shape.seq_q, shape.seq_kv
    )


def _sum_clamped(first: int, count: int, limit: int) -> int:
    """Return sum of ``min(max(first + i, 0), limit)`` for ``0 <= i < count``."""

    def below(value: int) -> int:  # sum of max(0, value - i) over the count terms that end at value
        return value * (value + 1) // 2 if value > 0 else 0

    last = first + count - 1
    return (below(last) - below(first - 1)) - (below(last - limit) - below(first - 1 - limit))


OPERATION: Final = Operation(
    name="flash_attention",
    shape_class=AttentionShape,
    cost=cost,
    definition="autotune.kernels.flash_attention.definition:DEFINITION",
    baselines="autotune.kernels.baselines.lists:OF_ATTENTION",
)
