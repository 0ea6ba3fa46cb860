"""Write the figures and tables of the documentation from what ships: ``python -m benchmarks.documentation``; no GPU.

Figures go to ``docs/images/``. A table of README.md, docs/results.md or docs/toolchain-drift.md stands below a comment
that names it, and is replaced. ``--report`` also opens a shipped sweep's report in Chromium and takes its picture.
"""

import argparse
import math
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from autotune import sheets
from autotune.lab.drawing.chart import HEIGHT, WIDTH, Axis, Chart, padded_axis
from autotune.lab.drawing.figure_file import Dot, write_scatter
from autotune.shape import AttentionShape, Shape
from autotune.table import shipped_winners
from autotune.trial import Trial, median_us
from benchmarks.merge import RESULTS
from benchmarks.shipped_problems import benchmark_shape
from benchmarks.toolchain_drift.book import SERIES, Book, winners_of
from benchmarks.toolchain_drift.comparing import summary

ROOT: Final = Path(__file__).resolve().parent.parent
IMAGES: Final = ROOT / "docs" / "images"
PAGES: Final = (ROOT / "README.md", ROOT / "docs" / "results.md", ROOT / "docs" / "toolchain-drift.md")
H200: Final = "nvidia_h200"
H100: Final = "nvidia_h100_80gb_hbm3"
PICTURED: Final = "triton_b4_h16_s4096_d128_causal_bfloat16"
PICTURE_SIZE: Final = (1100, 985)
CHROMIUM: Final = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
STEPS: Final = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True, slots=True)
class Prefill:
    """One race of dense attention: ours, the fastest that was compared, and the winner of ``triton`` in the same race.

    Rates are in TFLOP/s; ``ratio`` is the other's time over ours.
    """

    shape: AttentionShape
    tflops: float
    other_tflops: float
    triton_tflops: float | None

    @property
    def ratio(self) -> float:
        return self.tflops / self.other_tflops


def prefills() -> list[Prefill]:
    """Return the races of an H200 with cuDNN over the cells of heads of 64 and 128, by head dim, mask and length."""
    beside = {trial.race_id: trial for trial in shipped_winners("flash_attention", implementation="triton", slug=H200)}
    found = []
    for trial in shipped_winners("flash_attention", implementation="gluon_hopper", slug=H200):
        shape = trial.shape
        assert isinstance(shape, AttentionShape)
        if trial.baseline_timing is None or shape.head_dim not in (64, 128):
            continue
        if shape != benchmark_shape(shape.head_dim, shape.causal, shape.seq_q):
            continue
        assert "cudnn" in trial.baseline
        assert trial.tflops is not None
        other = trial.tflops * median_us(trial) / trial.baseline_timing.median_us
        triton = beside.get(trial.race_id)
        found.append(Prefill(shape, trial.tflops, other, None if triton is None else triton.tflops))
    return sorted(found, key=lambda each: (each.shape.head_dim, each.shape.causal, each.shape.seq_q))


def geometric_mean(values: Iterable[float]) -> float:
    known = list(values)
    return math.exp(sum(map(math.log, known)) / len(known))


def prefill_table(found: Sequence[Prefill]) -> str:
    """Write all races in Markdown."""
    rows = [
        (
            *(each.shape.head_dim, "yes" if each.shape.causal else "no", each.shape.seq_q),
            *(f"{each.other_tflops:.0f}", f"{each.tflops:.0f}", f"{each.ratio:.3f}"),
        )
        for each in found
    ]
    return markdown(("D", "causal", "S", "cuDNN", "autotune", "of cuDNN"), rows)


def short_table(found: Sequence[Prefill]) -> str:
    """Write ours and cuDNN's rates of heads of 128 in Markdown, a row for each mask, a column for each length."""
    wide = [each for each in found if each.shape.head_dim == 128]
    lengths = sorted({each.shape.seq_q for each in wide})
    rows = []
    for causal in (False, True):
        own = {each.shape.seq_q: each for each in wide if each.shape.causal is causal}
        cells = [f"{own[n].tflops:.0f} / {own[n].other_tflops:.0f}, {own[n].ratio:.2f}x" for n in lengths]
        rows.append(("causal" if causal else "full", *cells))
    return markdown(("autotune / cuDNN", *(f"S = {length}" for length in lengths)), rows)


def h100_pairs() -> list[tuple[AttentionShape, float, float]]:
    """Return each shape that an H100 raced both implementations at, with microseconds of the best of either."""
    races: dict[str, dict[str, Trial]] = defaultdict(dict)
    for name in ("gluon_hopper", "triton"):
        for trial in shipped_winners("flash_attention", implementation=name, slug=H100):
            races[trial.race_id][name] = trial
    found = []
    for race in races.values():
        if len(race) == 2:
            shape = race["triton"].shape
            assert isinstance(shape, AttentionShape)
            found.append((shape, median_us(race["gluon_hopper"]), median_us(race["triton"])))
    return sorted(found, key=lambda each: each[2] / each[1])


def h100_table() -> str:
    """Write the races on an H100 in Markdown, the one that gains least first."""
    rows = [
        (str(shape), f"{gluon:.1f}", f"{triton:.1f}", f"{triton / gluon:.2f}") for shape, gluon, triton in h100_pairs()
    ]
    return markdown(("shape", "gluon_hopper, us", "triton, us", "ratio"), rows)


def decodes() -> list[Trial]:
    """Return the shipped races of paged decode with cuDNN on an H200, over bfloat16."""
    rows = shipped_winners("paged_decode", implementation="triton", slug=H200)
    return [trial for trial in rows if trial.baseline_timing is not None and "cudnn" in trial.baseline]


def decode_table() -> str:
    """Write in Markdown how ours compares with cuDNN over paged caches, by the batch."""
    groups: dict[str, list[float]] = defaultdict(list)
    for trial in decodes():
        assert trial.baseline_timing is not None
        batch = shape_field(trial.shape, "batch")
        name = "1 sequence" if batch == 1 else "2 to 16" if batch <= 16 else "more than 16"
        groups[name].append(trial.baseline_timing.median_us / median_us(trial))
    rows = [
        (name, len(own), f"{geometric_mean(own):.2f}", f"{min(own):.2f}", f"{max(own):.2f}")
        for name in ("1 sequence", "2 to 16", "more than 16")
        if (own := groups.get(name, []))
    ]
    return markdown(("sequences", "races", "of cuDNN, geometric mean", "least", "most"), rows)


def drift_table() -> str:
    """Return what each newer Triton changes of the shipped winners, by implementation and device."""
    found = Book(RESULTS).all_of(winners_of(None, None, RESULTS))
    text = sheets.markdown(summary(found, SERIES[1:]))
    return text.replace("on NVIDIA H200", "on H200").replace("on NVIDIA H100 80GB HBM3", "on H100")


def shape_field(shape: Shape, name: str) -> int:
    value = shape.as_dict()[name]
    assert isinstance(value, int)
    return value


def markdown(head: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def tables() -> dict[str, str]:
    """Return every table of the pages by its name."""
    found = prefills()
    ratios = [each.ratio for each in found]
    mean = f"Geometric mean of cuDNN's time over ours: {geometric_mean(ratios):.3f}; at worst {min(ratios):.3f}.\n"
    return {
        "prefill": prefill_table(found),
        "prefill-short": short_table(found),
        "prefill-mean": mean,
        "h100": h100_table(),
        "decode": decode_table(),
        "drift": drift_table(),
    }


def with_tables(text: str, made: Mapping[str, str]) -> str:
    """Replace the paragraph below each comment ``<!-- made by benchmarks.documentation: NAME -->``."""

    def replaced(match: re.Match[str]) -> str:
        return f"{match[1]}{made[match[2]]}"

    return re.sub(r"(<!-- made by benchmarks\.documentation: ([\w-]+) -->\n\n)(?:.+\n)+", replaced, text)


def rate_axis(name: str, values: Iterable[float]) -> Axis:
    """Make a linear axis from 0, so that heights compare as the values do."""
    high = 1.1 * max(values)
    size = 10.0 ** math.floor(math.log10(high / 5))
    step = next(step * size for step in STEPS if high / (step * size) <= 6)
    ticks = tuple((step * index, f"{step * index:g}") for index in range(int(high / step) + 1))
    return Axis(name, 0.0, high, ticks, float)


def draw_prefill(path: Path) -> None:
    found = prefills()
    panels = []
    for width in (64, 128):
        own = [each for each in found if each.shape.head_dim == width]
        dots = []
        for each in own:
            variant = "causal" if each.shape.causal else "full"
            rates = (("autotune", each.tflops), ("cuDNN", each.other_tflops), ("best of triton", each.triton_tflops))
            dots += [Dot(each.shape.seq_q, rate, name, variant) for name, rate in rates if rate is not None]
        across = padded_axis(f"tokens a sequence, heads of {width}", [dot.x for dot in dots])
        chart = Chart(across, rate_axis("TFLOP/s", [dot.y for dot in dots]), WIDTH, HEIGHT)
        panels.append((chart, dots, None))
    title = (
        "Prefill on an NVIDIA H200, bfloat16",
        "batch x seq = 16,384 tokens, heads x width = 2048; each column one race",
    )
    write_scatter(path, title, panels)


def draw_h100(path: Path) -> None:
    dots = [
        Dot(
            gluon,
            triton / gluon,
            "causal" if shape.causal else "full",
            "softcap" if shape.softcap else window_name(shape),
        )
        for shape, gluon, triton in h100_pairs()
    ]
    across = padded_axis("microseconds of gluon_hopper", [dot.x for dot in dots])
    chart = Chart(across, rate_axis("time of triton over it", [dot.y for dot in dots]), 480, 280)
    title = (
        "Two implementations on an NVIDIA H100, bfloat16",
        "shapes of named models; both are tuned, each point is one race",
    )
    write_scatter(path, title, [(chart, dots, None)])


def window_name(shape: AttentionShape) -> str:
    return "no window" if shape.window is None else "window"


def draw_decode(path: Path) -> None:
    dots = []
    for trial in decodes():
        assert trial.baseline_timing is not None
        assert trial.gbps is not None
        moved = trial.gbps * median_us(trial) / 1000  # GB/s times us is kB
        cudnn = trial.gbps * median_us(trial) / trial.baseline_timing.median_us
        even = trial.shape.as_dict()["mean_context"] == trial.shape.as_dict()["max_context"]
        variant = "even lengths" if even else "ragged"
        dots += [Dot(moved, trial.gbps, "autotune", variant), Dot(moved, cudnn, "cuDNN", variant)]
    across = padded_axis("megabytes of keys and values", [dot.x for dot in dots])
    chart = Chart(across, rate_axis("GB/s", [dot.y for dot in dots]), 480, 280)
    write_scatter(
        path, ("Paged decode on an NVIDIA H200, bfloat16", "each pair of points is one race"), [(chart, dots, None)]
    )


FIGURES: Final[Mapping[str, Callable[[Path], None]]] = {
    "prefill-h200.svg": draw_prefill,
    "implementations-h100.svg": draw_h100,
    "decode-h200.svg": draw_decode,
}


def take_picture(path: Path) -> None:
    """Write the pictured sweep's section of its report as PNG; exit where there is no Chromium."""
    chromium = next((found for name in CHROMIUM if (found := shutil.which(name))), None)
    if chromium is None:
        sys.exit("benchmarks.documentation: no Chromium is installed; `apt-get install chromium`")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        report = [sys.executable, "-m", "autotune", "report", PICTURED, "--output", str(page)]
        subprocess.run(report, check=True, cwd=ROOT)
        page.write_text(without_overview(page.read_text(encoding="utf-8")), encoding="utf-8")
        size = ",".join(map(str, PICTURE_SIZE))
        flags = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={size}")
        subprocess.run([chromium, *flags, f"--screenshot={path}", page.as_uri()], check=True, capture_output=True)


def without_overview(html: str) -> str:
    """Leave out what stands between a report's title and its first problem, whose drawings the picture is of."""
    html = re.sub(r"<nav.*?</nav>", "", html, count=1, flags=re.S)
    problem = html.rindex("<", 0, html.index('id="problem-0"'))
    return html[: html.index('<div class="cards">')] + html[problem:]


def main(arguments: Sequence[str] | None = None) -> None:
    """Write figures and tables, and print the name of each file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.documentation", description=__doc__)
    parser.add_argument("--report", action="store_true", help="also take the picture of a report; needs Chromium")
    chosen = parser.parse_args(arguments)
    made = tables()
    for name, draw in FIGURES.items():
        draw(IMAGES / name)
        print(IMAGES / name)
    for page in PAGES:
        page.write_text(with_tables(page.read_text(encoding="utf-8"), made), encoding="utf-8")
        print(page)
    if chosen.report:
        take_picture(IMAGES / "report.png")
        print(IMAGES / "report.png")


if __name__ == "__main__":
    main()
