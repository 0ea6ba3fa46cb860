"""Attention over packed sequences as an operation: its shapes, the spread of their lengths, and its cost by formula."""

from collections import Counter
from typing import Final

from autotune.operation import Cost, Operation
from autotune.search_spaces.flash_attention import operation as dense
from autotune.search_spaces.lengths import spread_lengths
from autotune.shape import AttentionShape
from autotune.varlen_shape import VarlenShape


def lengths_of(shape: VarlenShape) -> tuple[tuple[int, int], ...]:
    """Return the queries and the keys of each sequence: who has the most of one has the most of the other."""
    queries = spread_lengths(shape.batch, shape.max_seq_q, shape.mean_seq_q)
    keys = spread_lengths(shape.batch, shape.max_seq_kv, shape.mean_seq_kv)
    return tuple(zip(queries, keys, strict=True))


def cost(shape: VarlenShape) -> Cost:
    """Return the FLOPs of both products over the visible scores, and the bytes of q, k, v and the output once each.

    It is the sum of dense attention over sequences of these lengths, by the same convention.
    """
    names = ("heads", "kv_heads", "head_dim", "head_dim_v", "dtype", "causal", "window")
    alike = {name: getattr(shape, name) for name in names}
    costs = [
        dense.cost(AttentionShape(**alike, batch=count, seq_q=queries, seq_kv=keys))
        for (queries, keys), count in Counter(lengths_of(shape)).items()
    ]
    return Cost(flops=sum(each.flops for each in costs), bytes=sum(each.bytes for each in costs))


OPERATION: Final = Operation(
    name="flash_attention_varlen",
    shape_class=VarlenShape,
    cost=cost,
    definition="autotune.kernels.flash_attention_varlen.definition:DEFINITION",
    baselines="autotune.kernels.baselines.lists:OF_VARLEN",
)
