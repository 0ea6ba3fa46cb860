"""Dense attention as an operation: its shapes, and the cost of attention by formula."""

from collections.abc import Iterable
from typing import Any, Final

from autotune.dtypes import ITEM_BYTES, KV_ITEM_BYTES, QUANTIZED_DTYPES
from autotune.operation import Cost, Operation
from autotune.shape import AttentionShape, PagedShape


def cost(shape: AttentionShape) -> Cost:
    """Return the FLOPs of both products over the visible scores, and the bytes of q, k, v and the output once each.

    The field's convention (FlashAttention's benchmarks): 2 FLOPs a multiply-add, softmax not counted. A mask operand
    saves none, as what it hides is not known; its entries at visible scores count once each, as many as the shape says.
    Nor is it known what ends of keys add to the past.
    """
    widths = shape.head_dim + shape.head_dim_v
    found = _cost(shape, widths, widths * ITEM_BYTES[shape.dtype])
    return Cost(flops=found.flops, bytes=found.bytes + _operand_bytes(shape))


def _operand_bytes(shape: AttentionShape) -> int:
    """Return the bytes of what not every shape has: a mask, sinks, and of e4m3 another byte an element of output."""
    found = shape.heads * ITEM_BYTES["float32"] if shape.sinks else 0
    if shape.kv_ends:
        found += shape.batch * shape.seq_q * 4
    if shape.attn_mask == "boolean":
        found += shape.batch * visible_pairs(shape)
    elif shape.attn_mask == "additive":
        found += shape.heads * visible_pairs(shape) * ITEM_BYTES[shape.dtype]
    if shape.dtype in QUANTIZED_DTYPES:
        found += shape.batch * shape.heads * shape.seq_q * shape.head_dim_v
    return found


def paged_cost(shape: PagedShape, sequences: Iterable[tuple[int, int, int]]) -> Cost:
    """Return the cost of attention over numbers of sequences that have so many queries and so many keys each.

    A latent, which is key and value, is read once.
    """
    fields: dict[str, Any] = {name: getattr(shape, name) for name in ("heads", "kv_heads", "dtype", "causal", "window")}
    fields |= {"head_dim": 8}  # of any width: caches may have wider heads than dense attention
    widths = shape.head_dim + shape.head_dim_v
    token_bytes = (shape.head_dim if shape.is_latent else widths) * KV_ITEM_BYTES[shape.kv_dtype]
    costs = [
        _cost(AttentionShape(**fields, batch=batch, seq_q=seq_q, seq_kv=seq_kv), widths, token_bytes)
        for batch, seq_q, seq_kv in sequences
    ]
    return Cost(flops=sum(cost.flops for cost in costs), bytes=sum(cost.bytes for cost in costs))


def _cost(shape: AttentionShape, widths: int, token_bytes: int) -> Cost:
    """Return the cost of heads whose keys and values together are so wide, and take so many bytes a token."""
    width = shape.batch * widths
    seen = shape.seq_kv
    if shape.window is not None:  # the first query's window begins the band; the last query sees the last key
        seen = min(seen, shape.seq_q + shape.window - 1)
    queries = shape.heads * shape.seq_q * width * ITEM_BYTES[shape.dtype]
    keys = shape.batch * shape.kv_heads * seen * token_bytes
    return Cost(flops=2 * shape.heads * visible_pairs(shape) * width, bytes=queries + keys)


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
