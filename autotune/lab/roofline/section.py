"""A measured roofline drawn: a section of the report, with bytes by the model beside ncu's, and an SVG file."""

from collections.abc import Iterator, Sequence
from datetime import UTC
from pathlib import Path
from typing import Final

from autotune.lab.bench.comparison import OURS
from autotune.lab.drawing.bars import legend
from autotune.lab.drawing.chart import Chart, roof_chart
from autotune.lab.drawing.figure_file import Dot, write_scatter
from autotune.lab.drawing.markup import Html, element, join, table
from autotune.lab.machine.ceilings import Ceilings
from autotune.lab.roofline.derivation import USUAL_TILE
from autotune.lab.roofline.dram import Dram, fused_dram, naive_dram, sum_dram
from autotune.lab.roofline.ncu import FUSED, TOLERANCE, CountedBeside
from autotune.lab.roofline.placement import KERNELS, RooflinePoint, rate_unit
from autotune.lab.roofline.saved import MeasuredRoofline
from autotune.lab.roofline.words import NAIVE, counter_sheet, point_sheet
from autotune.roofline import Roof
from autotune.shape import AttentionShape
from autotune.trial import Toolchain
from autotune.units import count_text, tflops_text

DASH: Final = "\N{EN DASH}"
COUNTER: Final = "autotune analyze roofline --ncu"
DOTS: Final = {"ours": "tuned", "another implementation": "baseline", "one of naive attention's kernels": "default"}


def measured_section(rooflines: Sequence[MeasuredRoofline]) -> Html:
    return join(*(part for roofline in rooflines for part in _parts(roofline)))


def _parts(measured: MeasuredRoofline) -> Iterator[Html]:
    ceilings = measured.ceilings
    timed = [point for point in measured.points if point.timing is not None]
    under = point_sheet(measured.points, ceilings)
    yield element("h3", f"{ceilings.processor}, {ceilings.dtype}")
    yield element("p", _ceilings(measured))
    if timed:
        yield element("div", _figure(measured, timed), class_="columns")
        yield table(under)
    lines = (element("li", note) for note in under.notes)
    yield element("details", element("summary", "What limits each of them"), element("ul", *lines))
    yield _bytes(measured)


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


def _figure(measured: MeasuredRoofline, timed: Sequence[RooflinePoint]) -> Html:
    ceilings = measured.ceilings
    scale, unit = rate_unit(ceilings)
    dots = [(point, point.intensity, scale * (point.tflops or 0.0)) for point in timed]
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
    lengths = {point.shape.seq_q for point in timed}
    names = [(x, y, point.name if len(lengths) == 1 else f"{point.name} {point.shape.seq_q}") for point, x, y in dots]
    kinds = [kind for kind in DOTS if any(_kind(point) == kind for point in timed)]
    title = f"Measured roofline of {ceilings.processor.name}, {ceilings.dtype}"
    told = f"{count_text(len(timed), 'time')} below measured ceilings; the table that follows has the numbers."
    return element(
        "figure",
        element("figcaption", "Roofline", element("small", "ceilings are measured, bytes are by formula")),
        chart.drawing(title, told, line, *marks, chart.names(names), kind="wide"),
        legend([(f"bar-{DOTS[kind]}", kind) for kind in kinds]),
        class_="roofline",
    )


def _kind(point: RooflinePoint) -> str:
    ours, other, kernel = DOTS
    return ours if point.name == OURS else kernel if point.name in KERNELS else other


def _bytes(measured: MeasuredRoofline) -> Html:
    if measured.ceilings.processor.kind == "cpu":
        return element("p", "Bytes of the memory were not counted: Nsight Compute counts on a GPU.", class_="note")
    counted = measured.counted or ()
    known = {item.shape.seq_q for item in counted}
    shapes = dict.fromkeys(point.shape for point in measured.points if point.shape.seq_q not in known)
    uncounted = [row for shape in shapes for row in _uncounted(shape, measured)]
    if not counted and not uncounted:
        return Html("")
    note = (
        "Counted over batches so large that little stays in the L2, unless a batch was asked for. Heads are those of "
        "all sequences; memory and SMs: how busy they were, as shares of their peak throughput."
    )
    return join(
        _verdict(counted),
        table(counter_sheet(counted, uncounted)),
        element("p", note, class_="note") if counted else None,
    )


def _uncounted(shape: AttentionShape, measured: MeasuredRoofline) -> Iterator[tuple[AttentionShape, Dram, str]]:
    """Yield the model's bytes of the shape as it was timed, with the reason why none were counted."""
    l2_bytes = measured.ceilings.processor.cache_bytes
    reason = f"{DASH} {_why_uncounted(shape, measured)}"
    yield shape, sum_dram(NAIVE, naive_dram(shape, l2_bytes)), reason
    yield shape, fused_dram(shape, *USUAL_TILE, l2_bytes), reason  # the same bytes reach the memory with every tile


def _why_uncounted(shape: AttentionShape, measured: MeasuredRoofline) -> str:
    if measured.counted is None:
        return f"not asked for: {COUNTER}"
    told = [failure.removeprefix(f"{shape}: ") for failure in measured.failures if failure.startswith(f"{shape}: ")]
    return next(iter(told or measured.failures), "no reason was kept")


def _verdict(counted: Sequence[CountedBeside]) -> Html | None:
    wholes = {"naive": NAIVE, "fused": FUSED}
    parts = []
    for name, kernel in wholes.items():
        found = [f"{100 * item.deviation:+.1f} % at {item.shape.seq_q:,}" for item in counted if item.kernel == kernel]
        parts += [f"{name} {' and '.join(found) if len(found) < 3 else ', '.join(found)}"] if found else []
    if not parts:
        return None
    apart = sum(not item.agrees for item in counted if item.kernel in wholes.values())
    limit = f"{100 * TOLERANCE:.0f} %"
    verdict = f"further than {limit} off in {count_text(apart, 'case')}" if apart else f"within {limit} at every length"
    return element("p", f"Predicted against counted bytes of attention as a whole: {verdict}; {'; '.join(parts)}.")


WIDTH, HEIGHT = 600, 430


def draw_roofline(points: Sequence[RooflinePoint], ceilings: Ceilings, path: Path) -> None:
    """Draw the rates over FLOPs a byte, both axes logarithmic, and write the file; unmeasured points are left out.

    Rates are in TFLOP/s, or in GFLOP/s where the ceiling is below 1 TFLOP/s.
    """
    factor, unit = rate_unit(ceilings)
    dots = [
        Dot(point.intensity, factor * point.tflops, point.name, f"S = {point.shape.seq_q}")
        for point in points
        if point.tflops is not None
    ]
    roof = Roof(factor * ceilings.tflops, factor * ceilings.gbps)
    across = "arithmetic intensity, FLOP/B of the memory's traffic by formula"
    chart, line = roof_chart(across, unit, [(dot.x, dot.y) for dot in dots], roof, width=WIDTH, height=HEIGHT)
    processor = ceilings.processor
    details = str(processor).removeprefix(f"{processor.name}, ")
    title = (f"Roofline of {processor.name}", f"{details}, {ceilings.dtype}")
    write_scatter(path, title, [(chart, dots, join(line, _roof_labels(chart, roof, ceilings.gbps, unit)))])


def _roof_labels(chart: Chart, roof: Roof, gbps: float, unit: str) -> Html:
    low, high = chart.across.low, chart.across.high
    slope = (low * roof.ridge) ** 0.5
    ridge, top = chart.x(roof.ridge), chart.y(roof.tflops)
    bottom = chart.y(chart.up.low)
    return join(
        element("text", f"{gbps:.0f} GB/s", x=chart.x(slope) - 8, y=chart.y(roof.attainable(slope)) - 4, class_="end"),
        element("text", f"{roof.tflops:.0f} {unit}", x=chart.x(high) - 4, y=top - 5, class_="end"),
        element("line", x1=ridge, x2=ridge, y1=top, y2=bottom, class_="ridge"),
        element("text", f"ridge {roof.ridge:.1f}", x=ridge + 4, y=bottom - 6, class_="quiet"),
    )
