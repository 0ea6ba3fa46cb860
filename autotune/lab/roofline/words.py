"""The roofline's tables: the derivation by formula, measured ceilings and kernels, and a profiler's counts."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from autotune import sheets
from autotune.dtypes import ITEM_BYTES
from autotune.lab.absent import absence_lines
from autotune.lab.drawing.markup import Html, element
from autotune.lab.formulas import Movement, fused_movements, naive_movements, product_flops, sizes, total_bytes, works
from autotune.lab.machine.ceilings import Ceilings
from autotune.lab.machine.processor import Processor
from autotune.lab.roofline.derivation import MOVEMENTS, USUAL_TILE, Claim, closed_forms, intensities, tiles
from autotune.lab.roofline.dram import PROGRAMS_PER_SM, Dram, keys_in_flight
from autotune.lab.roofline.ncu import TOLERANCE, Counted, CountedBeside
from autotune.lab.roofline.placement import KERNELS, RooflinePoint, kernel_model, place
from autotune.lab.roofline.rocprof import KernelCounters
from autotune.shape import AttentionShape
from autotune.sheets import Sheet
from autotune.units import gbps_text, mib_text, tflops_text

SCORES: Final = "B H S_q S_kv"
NAIVE: Final = "naive"
TITLES: Final = {
    "naive": "Naive attention: three kernels, scores in memory",
    "eager": "Eager attention in torch: an operation at a time",
    "fused": "Fused attention: inputs in, output out",
}


def derivation_sheets(shapes: Sequence[AttentionShape], processor: Processor | None) -> list[Sheet]:
    """Return the derivation for the last shape and the trends over all; the L2 is judged where a device is known."""
    shape = shapes[-1]
    moved = [_movement_sheet(TITLES[name], shape, movements(shape)) for name, movements in MOVEMENTS.items()]
    return [_symbol_sheet(shape), _work_sheet(shape), *moved, _intensity_sheet(shapes), _tile_sheet(shape, processor)]


def claim_sheet(claims: Iterable[Claim]) -> Sheet:
    """Return a line for each claim; one that does not hold is a finding about the claim, not a failure."""
    verdicts = {True: "holds here", False: "does not hold here"}
    lines = [f'"{claim.text}" {verdicts[claim.holds]}: {claim.why}.' for claim in claims]
    return Sheet("Common claims about attention, tested with these numbers", notes=tuple(lines))


def ceiling_sheet(ceilings: Ceilings) -> Sheet:
    """Return the rates that were tried, and the ridge where the two ceilings meet."""
    rows = [(rate.name, gbps_text(rate.value)) for rate in ceilings.memory]
    rows += [(rate.name, tflops_text(rate.value)) for rate in ceilings.compute]
    ridge = f"ridge: {gbps_text(ceilings.gbps)} and {tflops_text(ceilings.tflops)} meet at {ceilings.ridge:.1f} FLOP/B"
    columns = (sheets.text("tried"), sheets.number("best"))
    return Sheet(f"Ceilings measured on {ceilings.processor}", columns, tuple(rows), (ridge,))


def point_sheet(points: Sequence[RooflinePoint], ceilings: Ceilings) -> Sheet:
    """Return every kernel under the roof with its limit, and the reasons of those that did not run."""
    rows, notes = [], []
    for point in points:
        if point.timing is None:
            continue
        found = place(point, ceilings)
        formula = (point.shape.seq_q, point.shape.batch * point.shape.heads, point.flops / 1e9, point.bytes)
        measured = (point.intensity, point.timing, point.tflops, point.gbps)
        rows.append((point.name, *formula, *measured, found.bound, found.attainable, found.reached))
        notes.append(f"{point.name} at {point.shape.seq_q}: {found.why}")
    columns = (
        *(sheets.text("kernel"), sheets.number("S", ""), sheets.number("heads"), sheets.rate("GFLOP", "GFLOP")),
        *(sheets.size("bytes by formula"), sheets.number("FLOP/B", ".1f"), sheets.timing("time (95 %)")),
        *(sheets.tflops("rate"), sheets.gbps("memory"), sheets.text("bound")),
        *(sheets.tflops("ceiling there"), sheets.percent("reached")),
    )
    absent = absence_lines(
        {
            f"at {seq}": {point.name: point.reason for point in points if point.shape.seq_q == seq and not point.timing}
            for seq in dict.fromkeys(point.shape.seq_q for point in points)
        }
    )
    title = f"Under the roof, {ceilings.dtype}: FLOPs of the products, of a softmax its own"
    return Sheet(title, columns, tuple(rows), (*notes, *absent))


class Deviation(NamedTuple):
    """The difference of a prediction from a count; the report marks those beyond the tolerance."""

    item: CountedBeside

    def __str__(self) -> str:
        return f"{100 * self.item.deviation:+.1f} %"

    def __html__(self) -> Html:
        return element("span", element("strong", str(self)), class_="level" if self.item.agrees else "down")


def counter_sheet(
    comparisons: Sequence[CountedBeside], uncounted: Sequence[tuple[AttentionShape, Dram, str]] = ()
) -> Sheet:
    """Return the model's bytes beside Nsight Compute's, and those of shapes that were not counted with the reasons."""
    rows: list[tuple[object, ...]] = []
    for item in comparisons:
        counted = item.counted
        intensity = _own_flops(item.kernel, item.shape) / counted.total
        percents = (counted.memory_percent / 100, counted.compute_percent / 100)
        beside = (_moved(counted), Deviation(item), intensity, *percents)
        rows.append((*_predicted(item.kernel, item.shape, item.predicted), *beside))
    rows += [(*_predicted(dram.kernel, shape, dram), reason, *[None] * 4) for shape, dram, reason in uncounted]
    columns = (
        *(sheets.text("kernel"), sheets.number("S", ""), sheets.number("heads"), sheets.rate("GFLOP", "GFLOP")),
        *(sheets.number("predicted (read + write)"), sheets.number("counted"), sheets.Column("prediction")),
        *(sheets.number("FLOP/B", ".1f"), sheets.percent("memory"), sheets.percent("SMs")),
    )
    apart = [f"{item.kernel} at {item.shape.seq_q}" for item in comparisons if not item.agrees]
    note = f"within {100 * TOLERANCE:.0f} %: {'all' if not apart else 'all but ' + ', '.join(apart)}"
    title = "Bytes of the memory behind the L2, by the model and by Nsight Compute"
    ordered = sorted(rows, key=lambda row: int(str(row[1])))
    return Sheet(title, columns, tuple(ordered), (note,) if comparisons else ())


def rocprof_sheet(found: Sequence[KernelCounters]) -> Sheet:
    names = list(dict.fromkeys(name for item in found for name in item.values))
    rows = tuple((item.kernel, item.launches, *(item.values.get(name) for name in names)) for item in found)
    columns = (sheets.text("kernel"), sheets.number("launches"), *(sheets.number(name, "g") for name in names))
    return Sheet("rocprof's counters, means over launches", columns, rows)


def _symbol_sheet(shape: AttentionShape) -> Sheet:
    values = " ".join(f"{name}={value}" for name, value in sizes(shape).items())
    pairs = "P: the pairs of a query and a key that it sees, of one head"
    return Sheet(f"{shape}", notes=(f"{values} b={ITEM_BYTES[shape.dtype]} bytes an element ({shape.dtype}); {pairs}",))


def _work_sheet(shape: AttentionShape) -> Sheet:
    rows = tuple((work.step, work.symbols, work.flops / 1e9) for work in works(shape))
    rate = "rates count the products alone, as FlashAttention's benchmarks do: "
    columns = (sheets.text("step"), sheets.text("symbols"), sheets.number("GFLOP", ".4f"))
    return Sheet("FLOPs", columns, rows, (f"{rate}{product_flops(shape) / 1e9:.4f} GFLOP",))


def _movement_sheet(title: str, shape: AttentionShape, movements: Sequence[Movement]) -> Sheet:
    rows = tuple((f"{m.kernel} {m.action}s {m.tensor}", m.symbols, m.elements, m.bytes) for m in movements)
    moved = total_bytes(movements)
    crossings = [m.bytes for m in movements if m.symbols == SCORES]
    notes = [f"total {mib_text(moved)}, {product_flops(shape) / moved:.1f} FLOP/B"]
    if crossings:
        share = f"{100 * sum(crossings) / moved:.0f} % of it"
        notes.append(f"the matrix of scores crosses the memory {len(crossings)} times: {share}")
    columns = (sheets.text("movement"), sheets.text("elements"), sheets.number("number"), sheets.mib("bytes"))
    return Sheet(title, columns, rows, tuple(notes))


def _intensity_sheet(shapes: Sequence[AttentionShape]) -> Sheet:
    rows = tuple(
        (item.shape.seq_q, item.naive, item.eager, item.fused, item.without_l2) for item in intensities(shapes)
    )
    names = ("naive", "eager", "fused", f"fused, no L2, {USUAL_TILE[0]} x {USUAL_TILE[1]}")
    columns = (sheets.number("S", ""), *(sheets.number(name, ".1f") for name in names))
    mask = "under the causal mask half of the pairs count, and as much moves; only tiles that it hides are not loaded"
    half = (mask,) if shapes[-1].causal else ()
    return Sheet("Arithmetic intensity over S, FLOP/B", columns, rows, (*closed_forms(shapes[-1]), *half))


def _tile_sheet(shape: AttentionShape, processor: Processor | None) -> Sheet:
    once, naive = total_bytes(fused_movements(shape)), total_bytes(naive_movements(shape))
    rows = tuple(
        (
            *(f"{found.block_q} x {found.block_k}", found.q, found.k, found.v, found.out, found.total),
            *(found.total / once, found.total / naive, product_flops(shape) / found.total),
        )
        for found in tiles(shape)
    )
    columns = (
        *(sheets.text("BLOCK_Q x BLOCK_K"), *(sheets.mib(name) for name in ("Q", "K", "V", "output", "all"))),
        *(sheets.ratio("of once"), sheets.ratio("of naive"), sheets.number("FLOP/B", ".1f")),
    )
    notes = [
        f"with an L2 that holds K and V the memory moves {mib_text(once)} whatever the tile; without, what the tiles "
        "load",
        "K and V are read again for each block of queries, so BLOCK_Q decides; BLOCK_K moves only the diagonal's edge",
    ]
    if processor is not None and processor.kind == "cuda":
        held = keys_in_flight(shape, USUAL_TILE[0], processor.units)
        fits = "fit" if held <= processor.cache_bytes else "do not fit, so a part is read again from memory:"
        notes.append(
            f"K and V of the heads in flight ({PROGRAMS_PER_SM} programs an SM, BLOCK_Q {USUAL_TILE[0]}): "
            f"{mib_text(held)} {fits} the L2's {mib_text(processor.cache_bytes)}"
        )
    return Sheet("Traffic of a fused kernel's tiles", columns, rows, tuple(notes))


def _predicted(kernel: str, shape: AttentionShape, dram: Dram) -> tuple[object, ...]:
    name = "naive, all three" if kernel == NAIVE else kernel
    return (name, shape.seq_q, shape.batch * shape.heads, _own_flops(kernel, shape) / 1e9, _moved(dram))


def _own_flops(kernel: str, shape: AttentionShape) -> int:
    return kernel_model(kernel, shape)[0] if kernel in KERNELS else product_flops(shape)


def _moved(traffic: Dram | Counted) -> str:
    """Return the sum of the bytes, and in parentheses those read and those written."""
    read, written = (f"{count / 2**20:,.1f}" for count in (traffic.read, traffic.write))
    return f"{mib_text(traffic.total)} ({read} + {written})"
