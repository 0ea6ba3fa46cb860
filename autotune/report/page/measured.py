"""Rooflines that were measured: every kernel under its device's ceilings, and bytes by the model beside ncu's."""

import math
from collections.abc import Iterator, Sequence
from datetime import UTC
from typing import Final

from autotune.analysis.ceilings import Ceilings
from autotune.analysis.counters import FUSED, TOLERANCE, CountedBeside
from autotune.analysis.derivation import USUAL_TILE
from autotune.analysis.dram import Dram, fused_dram, naive_dram, sum_dram
from autotune.analysis.measured import MeasuredRoofline
from autotune.analysis.roofline import KERNELS, Place, Point, kernel_model, place
from autotune.analysis.sheets import tflops_text
from autotune.analysis.traffic import product_flops
from autotune.comparison.on_gpu import OURS
from autotune.report.page.bars import legend
from autotune.report.page.markup import Child, Html, count, element, figure_svg, join, percent, table
from autotune.report.page.roofline import HEIGHT, WIDTH, roof_chart
from autotune.report.summary import describe_time
from autotune.roofline import Roof
from autotune.shape import AttentionShape
from autotune.trial import Toolchain

DASH: Final = "\N{EN DASH}"
NAIVE: Final = "naive"
COUNTER: Final = "autotune analyze roofline --ncu"
DOTS: Final = {"ours": "tuned", "another implementation": "baseline", "one of naive attention's kernels": "default"}

Placed = tuple[Point, Place]


def measured_section(rooflines: Sequence[MeasuredRoofline]) -> Html:
    """A heading, a figure and tables for each of them."""
    return join(*(part for roofline in rooflines for part in _parts(roofline)))


def _parts(measured: MeasuredRoofline) -> Iterator[Html]:
    ceilings = measured.ceilings
    placed = [(point, place(point, ceilings)) for point in measured.points]
    timed = [(point, found) for point, found in placed if point.timing is not None]
    yield element("h3", f"{ceilings.processor}, {ceilings.dtype}")
    yield element("p", _ceilings(measured))
    if timed:
        yield element("div", _figure(measured, timed), class_="columns")
        yield _timed(measured, timed)
        yield _reasons(timed)
    if absent := _absent(measured.points):
        yield element("p", f"Not measured: {'; '.join(absent)}.", class_="note")
    yield _bytes(measured)


def _absent(points: Sequence[Point]) -> list[str]:
    """What has no time, at which lengths and why, a line for each reason."""
    lengths: dict[tuple[str, str], list[str]] = {}
    for point in points:
        if point.timing is None:
            lengths.setdefault((point.name, point.reason), []).append(str(point.shape.seq_q))
    return [f"{name} at {', '.join(at)}: {reason}" for (name, reason), at in lengths.items()]


def _ceilings(measured: MeasuredRoofline) -> str:
    ceilings, toolchain = measured.ceilings, measured.toolchain
    when = "" if measured.measured_at is None else f" on {measured.measured_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    versions = "" if toolchain is None else f" with {_versions(toolchain)}"
    return (
        f"Ceilings measured{when}{versions}: {ceilings.gbps:,.0f} GB/s and {tflops_text(ceilings.tflops)}, which meet "
        f"at {ceilings.ridge:.1f} FLOPs a byte. Left of that the memory is a kernel's ceiling, right of it arithmetic."
    )


def _versions(toolchain: Toolchain) -> str:
    known = ((name, getattr(toolchain, name)) for name in ("torch", "triton", "cuda", "driver"))
    return ", ".join(f"{name} {version}" for name, version in known if version)


def _figure(measured: MeasuredRoofline, timed: Sequence[Placed]) -> Html:
    ceilings = measured.ceilings
    scale, unit = _unit(ceilings)
    dots = [(point, point.intensity, scale * (point.tflops or 0.0)) for point, _ in timed]
    roof = Roof(scale * ceilings.tflops, scale * ceilings.gbps)
    chart, line = roof_chart("FLOPs a byte by formula", unit, [(x, y) for _, x, y in dots], roof)
    marks = [
        element(
            "circle",
            element("title", f"{point.name} at {point.shape.seq_q}: {y:.3g} {unit}"),
            cx=chart.x(x),
            cy=chart.y(y),
            r=4,
            class_=f"dot-{DOTS[_kind(point)]}",
        )
        for point, x, y in dots
    ]
    lengths = {point.shape.seq_q for point, _ in timed}
    names = [(x, y, point.name if len(lengths) == 1 else f"{point.name} {point.shape.seq_q}") for point, x, y in dots]
    kinds = [kind for kind in DOTS if any(_kind(point) == kind for point, _ in timed)]
    title = f"Measured roofline of {ceilings.processor.name}, {ceilings.dtype}"
    told = f"{count(len(timed), 'time')} below measured ceilings; the table that follows has the numbers."
    return element(
        "figure",
        element("figcaption", "Roofline", element("small", "ceilings are measured, bytes are by formula")),
        figure_svg(title, told, WIDTH, HEIGHT, chart.axes(), line, *marks, chart.names(names), kind="wide"),
        legend([(f"bar-{DOTS[kind]}", kind) for kind in kinds]),
        class_="roofline",
    )


def _unit(ceilings: Ceilings) -> tuple[float, str]:
    """What TFLOP/s are multiplied with, and what that makes them: small machines have GFLOP/s."""
    return (1.0, "TFLOP/s") if ceilings.tflops >= 1.0 else (1000.0, "GFLOP/s")


def _kind(point: Point) -> str:
    ours, other, kernel = DOTS
    return ours if point.name == OURS else kernel if point.name in KERNELS else other


def _timed(measured: MeasuredRoofline, timed: Sequence[Placed]) -> Html:
    """FLOPs and bytes by formula, the time, and how near it is to the ceiling."""
    scale, unit = _unit(measured.ceilings)
    head: list[Child] = ["kernel", "S", "heads", "GFLOP", "MiB", "FLOP/B", "time", unit]
    head += ["bound by", "ceiling there", "reached"]
    rows: list[list[Child]] = []
    for point, found in timed:
        assert point.timing is not None
        median, interval = describe_time(point.timing).split(" (")
        rows.append(
            [
                point.name,
                f"{point.shape.seq_q:,}",
                f"{point.shape.batch * point.shape.heads:,}",
                _gflop(point.flops),
                _mib(point.bytes),
                f"{point.intensity:.1f}",
                join(element("span", median, class_="whole"), element("small", interval.rstrip(")"), class_="whole")),
                f"{scale * (point.tflops or 0.0):.1f}",
                "memory" if found.bound == "memory" else "arithmetic",
                f"{scale * found.attainable:.1f}",
                percent(found.reached or 0.0),
            ]
        )
    caption = "Under the roof: FLOPs of the products, of a softmax its own; bytes by formula"
    return table(head, rows, numbers=frozenset({1, 2, 3, 4, 5, 7, 9, 10}), caption=caption)


def _reasons(timed: Sequence[Placed]) -> Html:
    lines = (element("li", f"{point.name} at {point.shape.seq_q}: {found.why}") for point, found in timed)
    return element("details", element("summary", "What limits each of them"), element("ul", *lines))


def _bytes(measured: MeasuredRoofline) -> Html:
    """Bytes of the memory by the model and, where they were counted, by Nsight Compute."""
    if measured.ceilings.processor.kind == "cpu":
        return element("p", "Bytes of the memory were not counted: Nsight Compute counts on a GPU.", class_="note")
    head: list[Child] = ["kernel", "S", "MiB predicted", "MiB counted", "prediction"]
    head += ["heads", "GFLOP", "FLOP/B counted", "memory", "SMs"]
    counted = measured.counted or ()
    rows = [(item.shape.seq_q, _counted_row(item)) for item in counted]
    known = {item.shape.seq_q for item in counted}
    for shape in dict.fromkeys(point.shape for point in measured.points):
        if shape.seq_q not in known:
            rows += [(shape.seq_q, row) for row in _uncounted_rows(shape, measured)]
    if not rows:
        return Html("")
    caption = "Bytes of the memory behind the L2, read + written: predicted, and counted by ncu"
    ordered = [row for _, row in sorted(rows, key=lambda row: row[0])]
    note = (
        "Counted over batches so large that little stays in the L2, unless a batch was asked for. Heads are those of "
        "all sequences; memory and SMs: how busy they were, as shares of their peak throughput."
    )
    return join(
        _verdict(counted),
        table(head, ordered, numbers=frozenset(range(1, len(head))), caption=caption),
        element("p", note, class_="note") if counted else None,
    )


def _counted_row(item: CountedBeside) -> list[Child]:
    off = element("strong", f"{100 * item.deviation:+.1f} %")
    return [
        *_predicted(item.kernel, item.shape, item.predicted),
        _moved(item.counted.read, item.counted.write),
        element("span", off, class_="level" if item.agrees else "down"),
        *_work(item.kernel, item.shape),
        f"{_own_flops(item.kernel, item.shape) / item.counted.total:.1f}",
        f"{item.counted.memory_percent:.0f} %",
        f"{item.counted.compute_percent:.0f} %",
    ]


def _uncounted_rows(shape: AttentionShape, measured: MeasuredRoofline) -> Iterator[list[Child]]:
    """The model's bytes of the shape as it was timed, and why none stand beside them."""
    l2_bytes = measured.ceilings.processor.cache_bytes
    reason = join(DASH, element("small", _why_uncounted(shape, measured)))
    fused = fused_dram(shape, *USUAL_TILE, l2_bytes)  # what reaches the memory is the same with every tile
    for dram in (sum_dram(NAIVE, naive_dram(shape, l2_bytes)), fused):
        yield [*_predicted(dram.kernel, shape, dram), reason, DASH, *_work(dram.kernel, shape), *[DASH] * 3]


def _why_uncounted(shape: AttentionShape, measured: MeasuredRoofline) -> str:
    if measured.counted is None:
        return f"not asked for: {COUNTER}"
    told = [failure.removeprefix(f"{shape}: ") for failure in measured.failures if failure.startswith(f"{shape}: ")]
    return next(iter(told or measured.failures), "no reason was kept")


def _predicted(kernel: str, shape: AttentionShape, dram: Dram) -> list[Child]:
    name = f"{NAIVE}, all three" if kernel == NAIVE else kernel
    return [name, f"{shape.seq_q:,}", _moved(dram.read, dram.write)]


def _work(kernel: str, shape: AttentionShape) -> list[Child]:
    return [f"{shape.batch * shape.heads:,}", _gflop(_own_flops(kernel, shape))]


def _verdict(counted: Sequence[CountedBeside]) -> Html | None:
    """Whether the model holds for naive and for fused attention, length by length."""
    wholes = {"naive": NAIVE, "fused": FUSED}
    parts = []
    for name, kernel in wholes.items():
        found = [f"{100 * item.deviation:+.1f} % at {item.shape.seq_q:,}" for item in counted if item.kernel == kernel]
        parts += [f"{name} {' and '.join(found) if len(found) < 3 else ', '.join(found)}"] if found else []
    if not parts:
        return None
    apart = sum(not item.agrees for item in counted if item.kernel in wholes.values())
    limit = f"{100 * TOLERANCE:.0f} %"
    verdict = f"further than {limit} off in {count(apart, 'case')}" if apart else f"within {limit} at every length"
    return element("p", f"Predicted against counted bytes of attention as a whole: {verdict}; {'; '.join(parts)}.")


def _own_flops(kernel: str, shape: AttentionShape) -> int:
    return kernel_model(kernel, shape)[0] if kernel in KERNELS else product_flops(shape)


def _moved(read: int, written: int) -> Html:
    """The sum, and below it what was read and what was written."""
    parts = f"{_mib(read)} + {_mib(written)}"
    return join(element("span", _mib(read + written), class_="whole"), element("small", parts, class_="whole"))


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f}"


def _gflop(flops: int) -> str:
    return f"{flops / 1e9:,.{max(0, 2 - math.floor(math.log10(max(1.0, flops / 1e9))))}f}"
