"""The likeness of two shapes to a config: the classes, features and sizes by which a portfolio's choice is made.

``Shape.distance`` asks whose winner may be borrowed, and never mixes families. Here the question is wider: which of all
recorded shapes of a class says best what a new shape wants. So what a config hardly feels counts little, and a feature
that differs costs a step instead of parting families.
"""

import math
from collections.abc import Iterable
from functools import lru_cache
from operator import ne
from typing import Final, NamedTuple

from autotune.device import Device
from autotune.dtypes import ITEM_BYTES, KV_ITEM_BYTES
from autotune.rounding import power_of_two
from autotune.shape import EVENNESS_WEIGHT, AttentionShape, PagedShape, Shape
from autotune.varlen_shape import VarlenShape

# Rows of queries of one program, about; the recorded winners of 16 bits have 64.
TILE_ROWS: Final = 64
# Tiles for each SM from which on their number makes no difference: an SM that ends its last tile early then idles for
# at most an eighth of the time, whatever the config. Below, it does not matter how many programs are resident.
MANY_TILES: Final = 8
MIN_WIDTH: Final = 16  # columns of a tile: matrix instructions take no fewer
# Of what changes which bytes an SM finds in the L2, and not what it computes: a factor of 16 counts as one of two.
SLIGHT: Final = 0.25
# Fields of families that sizes, kinds, types and masks tell; all others are features as they are.
TOLD: Final = ("dtype", "head_dim", "head_dim_v", "kv_dtype", "page_size", "causal", "window")
FEATURE_STEP: Final = 1.0  # a feature that differs counts as a factor of two in one size


class Likeness(NamedTuple):
    """A shape on a device as configs feel it.

    Shapes of one ``kind`` are compared. ``features`` are equal or not, ``sizes`` are log2: 1 is a factor of two.
    ``dtype`` tells the types of one width apart.
    """

    kind: tuple[object, ...]
    features: tuple[object, ...]
    sizes: tuple[float, ...]
    dtype: str = ""

    def distance(self, other: "Likeness") -> float:
        """Measure the Euclidean distance over sizes, features and the type; infinite between kinds."""
        if self.kind != other.kind:
            return math.inf
        apart, differ = math.dist(self.sizes, other.sizes), int(self.dtype != other.dtype)
        if self.features != other.features:
            differ += sum(map(ne, self.features, other.features))
        return math.hypot(apart, FEATURE_STEP * math.sqrt(differ)) if differ else apart

    def is_like(self, other: "Likeness") -> bool:
        """Return True if both are of one kind, type and features, and differ in sizes alone."""
        return (self.kind, self.features, self.dtype) == (other.kind, other.features, other.dtype)

    def is_among(self, others: Iterable["Likeness"]) -> bool:
        """Return True if others are like this one, and no size is beyond theirs by more than a factor of two."""
        alike = [other.sizes for other in others if self.is_like(other)]
        return bool(alike) and all(
            min(theirs) - 1.0 <= size <= max(theirs) + 1.0
            for size, theirs in zip(self.sizes, zip(*alike, strict=True), strict=True)
        )


@lru_cache(maxsize=4096)
def likeness(shape: Shape, device: Device) -> Likeness:
    """Describe a shape on a device as configs feel it; one of an unknown class by its family and coordinates.

    Types of 16 bits are one kind, since tiles, loads and matrix instructions are the same, and so are head dims that
    are padded to one width. Dense attention is told by its tiles for each SM (up to ``MANY_TILES``), queries, keys that
    a query may see, heads per KV head (slight) and head dims; a mask with a diagonal, a window and softcap are
    features. Paged attention by its KV heads for each SM, rows of a KV head, mean length, how even lengths are, page
    size (slight) and head dims; several queries, layout, mask, window, softcap, sinks and ALiBi are features. Packed
    sequences by tiles, mean queries and keys, how even lengths are, and what else tells dense attention.

    Example:
        >>> short, long = (AttentionShape(batch=64, heads=16, seq_q=seq, head_dim=128) for seq in (1024, 4096))
        >>> likeness(short, NVIDIA_H200).distance(likeness(long, NVIDIA_H200)) == math.hypot(2, 2)
        True
    """
    if isinstance(shape, AttentionShape):
        return _of_dense(shape, device)
    if isinstance(shape, VarlenShape):
        return _of_varlen(shape, device)
    if isinstance(shape, PagedShape):
        return _of_paged(shape, device)
    return Likeness((type(shape), *shape.family()), (), shape.coordinates())


def _of_dense(shape: AttentionShape, device: Device) -> Likeness:
    tiles = shape.batch * shape.heads * -(-shape.seq_q // TILE_ROWS)
    has_window = shape.window is not None
    return Likeness(
        kind=(AttentionShape, ITEM_BYTES[shape.dtype], _width(shape.head_dim), _width(shape.head_dim_v)),
        features=(shape.causal, has_window, *_other_features(shape)),
        sizes=(
            math.log2(min(MANY_TILES, tiles / device.sm_count)),
            math.log2(shape.seq_q),
            math.log2(min(shape.seq_kv, shape.window or shape.seq_kv)),
            SLIGHT * math.log2(shape.group),
            math.log2(shape.head_dim),
            math.log2(shape.head_dim_v),
        ),
        dtype=shape.dtype,
    )


def _of_varlen(shape: VarlenShape, device: Device) -> Likeness:
    tiles = shape.batch * shape.kv_heads * -(-shape.mean_seq_q * shape.group // TILE_ROWS)
    has_window = shape.window is not None
    return Likeness(
        kind=(VarlenShape, ITEM_BYTES[shape.dtype], _width(shape.head_dim), _width(shape.head_dim_v)),
        features=(shape.causal, has_window, *_other_features(shape)),
        sizes=(
            math.log2(min(MANY_TILES, tiles / device.sm_count)),
            math.log2(shape.mean_seq_q),
            math.log2(min(shape.mean_seq_kv, shape.window or shape.mean_seq_kv)),
            EVENNESS_WEIGHT * shape.evenness,
            SLIGHT * math.log2(shape.group),
            math.log2(shape.head_dim),
            math.log2(shape.head_dim_v),
        ),
        dtype=shape.dtype,
    )


def _of_paged(shape: PagedShape, device: Device) -> Likeness:
    item_bytes = KV_ITEM_BYTES[shape.kv_dtype]
    stored = shape.kv_dtype if item_bytes == 1 else item_bytes  # what one byte means decides how it is converted
    heads = shape.batch * shape.kv_heads
    return Likeness(
        kind=(PagedShape, ITEM_BYTES[shape.dtype], stored, _width(shape.head_dim), _width(shape.head_dim_v)),
        features=(shape.seq_q > 1, shape.causal, shape.window is not None, *_other_features(shape)),
        sizes=(
            math.log2(min(MANY_TILES, heads / device.sm_count)),
            math.log2(shape.group * shape.seq_q),
            math.log2(min(shape.mean_context, shape.window or shape.mean_context)),
            EVENNESS_WEIGHT * shape.evenness,
            SLIGHT * math.log2(shape.page_size),
            math.log2(shape.head_dim),
            math.log2(shape.head_dim_v),
        ),
        dtype=shape.dtype,
    )


def _other_features(shape: Shape) -> tuple[object, ...]:
    """Return the values of what else parts families, of a field that joins later too."""
    return tuple(getattr(shape, name) for name in shape.FAMILY if name not in TOLD)


def _width(head_dim: int) -> int:
    """Return the width of a tile that holds a head."""
    return max(MIN_WIDTH, power_of_two(head_dim))
