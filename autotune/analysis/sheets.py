"""Analyses as tables of text, which whoever shows them lays out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autotune.analysis.ceilings import Ceilings
from autotune.analysis.clock import time_text
from autotune.analysis.counters import TOLERANCE, CountedBeside
from autotune.analysis.derivation import USUAL_TILE, Claim, closed_forms, intensities, tiles
from autotune.analysis.dram import PROGRAMS_PER_SM, keys_in_flight
from autotune.analysis.memory import Peak, score_matrix
from autotune.analysis.processor import Processor
from autotune.analysis.rocprof import KernelCounters
from autotune.analysis.roofline import Point, place
from autotune.analysis.traffic import (
    Movement,
    eager_movements,
    fused_movements,
    naive_movements,
    product_flops,
    sizes,
    total_bytes,
    works,
)
from autotune.shape import ITEM_BYTES, AttentionShape


@dataclass(frozen=True, slots=True)
class Sheet:
    """A title, a table whose first column is text and whose others are numbers, and lines below it."""

    title: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()


def derivation_sheets(shapes: Sequence[AttentionShape], processor: Processor | None) -> list[Sheet]:
    """The derivation for the last shape, and the trends over all; where a device is known, of its L2, too."""
    shape = shapes[-1]
    return [
        _symbol_sheet(shape),
        _work_sheet(shape),
        _movement_sheet("Naive attention: three kernels, scores in memory", shape, naive_movements(shape)),
        _movement_sheet("Eager attention in torch: an operation at a time", shape, eager_movements(shape)),
        _movement_sheet("Fused attention: inputs in, output out", shape, fused_movements(shape)),
        _intensity_sheet(shapes),
        _tile_sheet(shape, processor),
    ]


def claim_sheet(claims: Iterable[Claim]) -> Sheet:
    lines = [f"{'holds' if claim.holds else 'WRONG'}  {claim.text}: {claim.why}." for claim in claims]
    return Sheet("Claims, put to the test", notes=tuple(lines))


def ceiling_sheet(ceilings: Ceilings) -> Sheet:
    """What was measured, and where the two ceilings meet."""
    rows = [(rate.name, f"{rate.value:.1f} GB/s") for rate in ceilings.memory]
    rows += [(rate.name, tflops_text(rate.value)) for rate in ceilings.compute]
    ridge = f"ridge: {ceilings.gbps:.1f} GB/s and {tflops_text(ceilings.tflops)} meet at {ceilings.ridge:.1f} FLOP/B"
    return Sheet(f"Ceilings measured on {ceilings.processor}", ("tried", "best"), tuple(rows), (ridge,))


def point_sheet(points: Sequence[Point], ceilings: Ceilings) -> Sheet:
    """Every kernel under the roof; of each what limits it, and behind them of those that did not run why."""
    rows, notes = [], []
    for point in points:
        if point.timing is None:
            continue
        found = place(point, ceilings)
        rate, reached = point.tflops or 0.0, found.reached or 0.0
        time = time_text(point.timing.median_us)
        moved = f"{point.gbps:.1f} GB/s"
        row = (point.name, str(point.shape.seq_q), f"{point.intensity:.1f}", time, tflops_text(rate), moved)
        rows.append((*row, found.bound, tflops_text(found.attainable), f"{100 * reached:.0f} %"))
        notes.append(f"{point.name} at {point.shape.seq_q}: {found.why}")
    columns = ("kernel", "S", "FLOP/B", "time", "rate", "bytes by formula", "bound", "ceiling there", "reached")
    absent = absence_lines(
        {
            f"at {seq}": {point.name: point.reason for point in points if point.shape.seq_q == seq and not point.timing}
            for seq in dict.fromkeys(point.shape.seq_q for point in points)
        }
    )
    return Sheet(f"Under the roof, {ceilings.dtype}", columns, tuple(rows), (*notes, *absent))


def counter_sheet(comparisons: Sequence[CountedBeside]) -> Sheet:
    """The model's bytes beside Nsight Compute's."""
    rows = [
        (
            item.kernel,
            str(item.shape.seq_q),
            str(item.shape.batch * item.shape.heads),
            f"{mib(item.predicted.read)} + {mib(item.predicted.write)}",
            f"{mib(item.counted.read)} + {mib(item.counted.write)}",
            f"{100 * item.deviation:+.1f} %",
            f"{item.counted.memory_percent:.1f} %",
            f"{item.counted.compute_percent:.1f} %",
        )
        for item in comparisons
    ]
    columns = ("kernel", "S", "heads", "predicted read + write", "counted", "prediction", "memory", "compute")
    apart = [f"{item.kernel} at {item.shape.seq_q}" for item in comparisons if not item.agrees]
    note = f"within {100 * TOLERANCE:.0f} %: {'all' if not apart else 'all but ' + ', '.join(apart)}"
    return Sheet("Bytes of the memory behind the L2, by the model and by Nsight Compute", columns, tuple(rows), (note,))


def rocprof_sheet(found: Sequence[KernelCounters]) -> Sheet:
    names = list(dict.fromkeys(name for item in found for name in item.values))
    rows = tuple(
        (item.kernel, str(item.launches), *(f"{item.values[n]:g}" if n in item.values else "" for n in names))
        for item in found
    )
    return Sheet("rocprof's counters, means over launches", ("kernel", "launches", *names), rows)


def score_sheet(shapes: Sequence[AttentionShape]) -> Sheet:
    """The scores of one head and of all."""
    matrices = [score_matrix(shape) for shape in shapes]
    rows = tuple((str(m.shape.seq_q), f"{m.of_head // 1024:,} KB", f"{m.total / 2**20:,.1f} MB") for m in matrices)
    shape = shapes[0]
    title = f"The matrix of scores, {shape.dtype}"
    all_heads = f"all {shape.batch * shape.heads} heads" if shape.batch == 1 else f"batch {shape.batch} x {shape.heads}"
    return Sheet(title, ("S", "per head", all_heads), rows, ("KB and MB here are 2^10 and 2^20 bytes",))


def peak_sheet(peaks: Sequence[Peak], how: str) -> Sheet:
    """Predicted and measured peaks; reasons where nothing was measured."""
    rows, absent = [], {}
    for name in dict.fromkeys(peak.name for peak in peaks):
        own = [peak for peak in peaks if peak.name == name]
        if all(peak.measured is None for peak in own) and len({peak.reason for peak in own}) == 1:
            absent[name] = own[0].reason
            continue
        for peak in own:
            ratio = "" if peak.measured is None else f"{peak.measured / peak.predicted:.3f}"
            measured = f"not run: {peak.reason}" if peak.measured is None else mib(peak.measured)
            rows.append((name, str(peak.shape.seq_q), mib(peak.predicted), measured, ratio))
    columns = ("", "S", "predicted", "measured", "measured / predicted")
    notes = (f"measured by {how}", *absence_lines({"": absent}))
    return Sheet("Peak memory beside q, k and v", columns, tuple(rows), notes)


def absence_lines(absent: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Who did not run and why: a line a name and reason. ``absent`` has both for each place, such as ``at 1024``.

    Places are named only where something holds for some of them.

    Example:
        >>> absence_lines({"at 512": {"sdpa cudnn": "sdpa cudnn needs a GPU"}, "at 1024": {}})
        ['not run: sdpa cudnn at 512: needs a GPU']
    """
    found: dict[tuple[str, str], list[str]] = {}
    for place_name, reasons in absent.items():
        for name, reason in reasons.items():
            found.setdefault((name, reason), []).append(place_name)
    return [
        f"not run: {name}{'' if len(places) == len(absent) else ' ' + ', '.join(places)}: {without_name(name, reason)}"
        for (name, reason), places in found.items()
    ]


def without_name(name: str, reason: str) -> str:
    """A reason without the name that it begins with, which stands before it already."""
    return reason[len(name) + 1 :] if reason.lower().startswith(f"{name.lower()} ") else reason


def tflops_text(value: float) -> str:
    return f"{value:.1f} TFLOP/s" if value >= 1.0 else f"{1000 * value:.1f} GFLOP/s"


def mib(count: float) -> str:
    return f"{count / 2**20:,.1f} MiB"


def _symbol_sheet(shape: AttentionShape) -> Sheet:
    values = " ".join(f"{name}={value}" for name, value in sizes(shape).items())
    pairs = "P: the pairs of a query and a key that it sees, of one head"
    return Sheet(f"{shape}", notes=(f"{values} b={ITEM_BYTES[shape.dtype]} bytes an element ({shape.dtype}); {pairs}",))


def _work_sheet(shape: AttentionShape) -> Sheet:
    rows = tuple((work.step, work.symbols, f"{work.flops / 1e9:.4f} GFLOP") for work in works(shape))
    rate = "rates count the products alone, as FlashAttention's benchmarks do: "
    return Sheet("FLOPs", ("step", "symbols", "number"), rows, (f"{rate}{product_flops(shape) / 1e9:.4f} GFLOP",))


def _movement_sheet(title: str, shape: AttentionShape, movements: Sequence[Movement]) -> Sheet:
    rows = tuple(
        (
            f"{m.kernel} {'reads' if m.action == 'read' else 'writes'} {m.tensor}",
            m.symbols,
            f"{m.elements:,}",
            mib(m.bytes),
        )
        for m in movements
    )
    moved = total_bytes(movements)
    crossings = sum(m.bytes for m in movements if m.symbols == "B H S_q S_kv")
    notes = [f"total {mib(moved)}, {product_flops(shape) / moved:.1f} FLOP/B"]
    if crossings:
        count = sum(m.symbols == "B H S_q S_kv" for m in movements)
        notes.append(f"the matrix of scores crosses the memory {count} times: {100 * crossings / moved:.0f} % of it")
    return Sheet(title, ("", "elements", "number", "bytes"), rows, tuple(notes))


def _intensity_sheet(shapes: Sequence[AttentionShape]) -> Sheet:
    rows = tuple(
        (
            str(item.shape.seq_q),
            f"{item.naive:.1f}",
            f"{item.eager:.1f}",
            f"{item.fused:.1f}",
            f"{item.without_l2:.1f}",
        )
        for item in intensities(shapes)
    )
    columns = ("S", "naive", "eager", "fused", f"fused, no L2, {USUAL_TILE[0]} x {USUAL_TILE[1]}")
    mask = "under the causal mask half of the pairs count, and as much moves; only tiles that it hides are not loaded"
    half = (mask,) if shapes[-1].causal else ()
    return Sheet("Arithmetic intensity over S, FLOP/B", columns, rows, (*closed_forms(shapes[-1]), *half))


def _tile_sheet(shape: AttentionShape, processor: Processor | None) -> Sheet:
    once, naive = total_bytes(fused_movements(shape)), total_bytes(naive_movements(shape))
    rows = tuple(
        (
            f"{found.block_q} x {found.block_k}",
            *(mib(count) for count in (found.q, found.k, found.v, found.out, found.total)),
            f"{found.total / once:.1f}x",
            f"{found.total / naive:.2f}x",
            f"{product_flops(shape) / found.total:.1f}",
        )
        for found in tiles(shape)
    )
    notes = [
        f"with an L2 that holds K and V the memory moves {mib(once)} whatever the tile; without, what the tiles load",
        "K and V are read again for each block of queries, so BLOCK_Q decides; BLOCK_K moves only the diagonal's edge",
    ]
    if processor is not None and processor.kind == "cuda":
        held = keys_in_flight(shape, USUAL_TILE[0], processor.units)
        fits = "fit" if held <= processor.cache_bytes else "do not fit, so a part is read again from memory:"
        notes.append(
            f"K and V of the heads in flight ({PROGRAMS_PER_SM} programs an SM, BLOCK_Q {USUAL_TILE[0]}): {mib(held)} "
            f"{fits} the L2's {mib(processor.cache_bytes)}"
        )
    columns = ("BLOCK_Q x BLOCK_K", "Q", "K", "V", "output", "all", "of once", "of naive", "FLOP/B")
    return Sheet("Traffic of a fused kernel's tiles", columns, rows, tuple(notes))
