"""Attention over packed sequences as an operation: its shapes, the spread of their lengths, and its cost by formula."""

import math
from collections import Counter
from typing import Final

from autotune.operation import Cost, Operation
from autotune.search_spaces.flash_attention import operation as dense
from autotune.shape import AttentionShape
from autotune.varlen_shape import VarlenShape


def spread_lengths(batch: int, longest: int, mean: int) -> tuple[int, ...]:
    """Return the lengths of a batch, ascending, of which the last is ``longest`` and whose mean is about ``mean``.

    The others are as even parts of a distribution: uniform from 1 to twice their mean, or where ``longest`` is less
    than that ``longest * u ** p``, whose mean is ``longest / (p + 1)``. A single sequence is as long as the longest.
    Those of random inputs are these in a random order, so that the cost, which grows with their squares, is theirs.
    """
    others = batch - 1
    if not others or mean >= longest:
        return (longest,) * batch
    rest = max(1.0, (mean * batch - longest) / others)  # the mean of the others
    parts = [(index + 0.5) / others for index in range(others)]
    if 2.0 * rest <= longest:
        drawn = [2.0 * rest * part for part in parts]
    else:
        drawn = [longest * part ** (longest / rest - 1.0) for part in parts]
    return (*(min(longest, max(1, math.ceil(length))) for length in drawn), longest)


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
