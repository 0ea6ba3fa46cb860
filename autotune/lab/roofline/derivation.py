"""Derive from the traffic by formula: intensity over lengths, traffic over tiles, and a test of common claims."""

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from autotune.dtypes import ITEM_BYTES
from autotune.lab.formulas import (
    TileTraffic,
    eager_movements,
    fused_movements,
    naive_movements,
    product_flops,
    tile_traffic,
    total_bytes,
    works,
)
from autotune.lab.machine.ceilings import Ceilings
from autotune.shape import AttentionShape
from autotune.units import mib_text

# The pairs of the exercises that users come from, and the tiles that the shipped tables chose most.
TILES: Final = ((32, 32), (32, 64), (64, 32), (64, 64), (128, 64), (64, 128), (128, 128), (256, 64))
USUAL_TILE: Final = (128, 64)
MOVEMENTS: Final = {"naive": naive_movements, "eager": eager_movements, "fused": fused_movements}


@dataclass(frozen=True, slots=True)
class Intensity:
    """FLOPs a byte of the memory's traffic at one shape; ``without_l2`` where K and V come from memory each time."""

    shape: AttentionShape
    naive: float
    eager: float
    fused: float
    without_l2: float


@dataclass(frozen=True, slots=True)
class Claim:
    """A common claim about attention, the verdict for these shapes, and the numbers behind it."""

    text: str
    holds: bool
    why: str


def intensities(shapes: Sequence[AttentionShape], tile: tuple[int, int] = USUAL_TILE) -> list[Intensity]:
    """Return the intensities of each shape; the FLOPs are those of the two products."""
    found = []
    for shape in shapes:
        moved = [total_bytes(movements(shape)) for movements in MOVEMENTS.values()]
        moved.append(tile_traffic(shape, *tile).total)
        found.append(Intensity(shape, *(product_flops(shape) / count for count in moved)))
    return found


def tiles(shape: AttentionShape, pairs: Sequence[tuple[int, int]] = TILES) -> list[TileTraffic]:
    """Return the traffic of the tiles; those longer than the sequences are left out."""
    fitting = [pair for pair in pairs if pair[0] <= shape.seq_q and pair[1] <= shape.seq_kv]
    return [tile_traffic(shape, *pair) for pair in fitting or pairs[:1]]


def closed_forms(shape: AttentionShape) -> list[str]:
    """Return the intensities in symbols, of one head without a mask: S_q = S_kv = S, D_v = D, b bytes an element."""
    item, width = ITEM_BYTES[shape.dtype], shape.head_dim
    query_tile = USUAL_TILE[0]
    return [
        f"naive       4 S^2 D / b (4 S D + 4 S^2) = S D / b (S + D), towards D / b = {width / item:g} FLOP/B",
        "fused       4 S^2 D / 4 b S D = S / b, which grows without end",
        f"no L2       4 S^2 D / 2 b S D (1 + S / BLOCK_Q), towards 2 BLOCK_Q / b = {2 * query_tile / item:g} FLOP/B "
        f"with BLOCK_Q = {query_tile}",
    ]


def claims(shapes: Sequence[AttentionShape], ceilings: Ceilings | None = None) -> list[Claim]:
    """Test common claims about attention's traffic over rising lengths."""
    shape, (block_q, block_k) = shapes[-1], USUAL_TILE
    once, kept = total_bytes(fused_movements(shape)), tile_traffic(shape, *USUAL_TILE)
    again = tile_traffic(shape, *USUAL_TILE, keeps_q=False)
    is_once = again.q <= kept.q
    small, large, wider = (tile_traffic(shape, *tile).total for tile in ((128, 64), (128, 128), (256, 64)))
    found = [
        _claim_falling(shapes),
        Claim(
            "Fused attention reads its inputs once, so its traffic is O(S)",
            kept.total <= once,
            f"of the memory while the L2 holds K and V: {mib_text(once)}. Its tiles load {mib_text(kept.total)} "
            f"({kept.total / once:.1f}x) with BLOCK_Q = {block_q}: K and V once for each block of queries, "
            "S^2 / BLOCK_Q elements; the L2 serves the difference",
        ),
        Claim(
            "A larger BLOCK_K saves traffic",
            large < small,
            f"BLOCK_K 64 to 128 at BLOCK_Q = 128: {mib_text(small)} to {mib_text(large)}; BLOCK_Q 128 to 256: "
            f"{mib_text(small)} to {mib_text(wider)}. What is read again is read once for each block of queries",
        ),
        Claim(
            "Q is read again for each block of keys",
            is_once,
            f"a program keeps its queries in registers: {mib_text(kept.q)} of Q once; read again for each block of "
            f"{block_k} keys it would be {mib_text(again.q)}{': no query sees a second block' if is_once else ''}",
        ),
    ]
    if ceilings is None:
        return found
    symbols, limit = _limit(shape)
    is_past = limit >= ceilings.ridge
    where = "at every length" if shape.window is None else "for long S"  # a window's intensity rises before it falls
    text = f"its intensity ends at {symbols} = {limit:g} FLOP/B, {'past' if is_past else 'below'} this device's ridge"
    pays = "" if is_past else f": it stays memory-bound {where}, which is why fusing pays"
    long = "Three-kernel attention becomes compute-bound for long S"
    return [*found, Claim(long, is_past, f"{text} at {ceilings.ridge:.1f}{pays}")]


def _claim_falling(shapes: Sequence[AttentionShape]) -> Claim:
    if len({shape.seq_q for shape in shapes}) == 1:
        only = shapes[0]
        shapes = (replace(only, seq_q=max(1, only.seq_q // 2), seq_kv=max(1, only.seq_kv // 2)), only)
    ordered = sorted(shapes, key=lambda shape: shape.seq_q * shape.seq_kv)
    values = [item.naive for item in intensities(ordered)]
    falls = all(later < earlier for earlier, later in itertools.pairwise(values))
    numbers = ", ".join(f"{value:.1f} at {shape.seq_q}" for shape, value in zip(ordered, values, strict=True))
    symbols, limit = _limit(ordered[-1])  # a shorter one may have no window
    reason = "it falls" if falls else "FLOPs and the scores' bytes both grow as S^2, Q, K, V and the output only as S"
    why = f"{numbers} FLOP/B, towards {symbols} = {limit:g}: {reason}"
    return Claim("The arithmetic intensity of three-kernel attention falls as S grows", falls, why)


def _limit(shape: AttentionShape) -> tuple[str, float]:
    """Return the limit of three-kernel attention's intensity as its lengths grow together, in symbols and evaluated.

    The scores cross the memory whole, whatever the mask, and the FLOPs are those of the pairs that it leaves.
    """
    seen = _part_seen(shape)
    symbols = "D / b" if shape.head_dim == shape.head_dim_v else "(D + D_v) / 2b"
    limit = (shape.head_dim + shape.head_dim_v) / (2 * ITEM_BYTES[shape.dtype])
    return symbols if seen == 1.0 else f"{seen:g} {symbols}", seen * limit


def _part_seen(shape: AttentionShape) -> float:
    """Return the part of all pairs that the masks leave of long sequences; a window leaves nothing."""
    if shape.window is not None:
        return 0.0
    if not shape.causal:
        return 1.0
    short, long = sorted((shape.seq_q, shape.seq_kv))
    return short / long / 2 if shape.seq_q > shape.seq_kv else 1 - short / long / 2


def derivation_data(shapes: Sequence[AttentionShape]) -> dict[str, Any]:
    shape = shapes[-1]
    return {
        "shape": shape.as_dict(),
        "works": list(map(asdict, works(shape))),
        "movements": {name: list(map(asdict, movements(shape))) for name, movements in MOVEMENTS.items()},
        "tiles": [asdict(found) | {"total": found.total} for found in tiles(shape)],
        "intensities": list(map(asdict, intensities(shapes))),
    }
