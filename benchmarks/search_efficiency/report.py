"""Summaries as Markdown tables, verdicts and one figure."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from autotune.lab.drawing.chart import Chart, log_axis, regret_axis
from autotune.lab.drawing.figure_file import write_figure
from autotune.lab.drawing.markup import element
from benchmarks.search_efficiency.machine import COMPILERS
from benchmarks.search_efficiency.metrics import Interval
from benchmarks.search_efficiency.recordings import Half, Recording
from benchmarks.search_efficiency.samplers import CONTROL, Run
from benchmarks.search_efficiency.summary import (
    CURVE,
    FRACTIONS,
    JUDGED_FRACTION,
    PARALLEL_SECONDS,
    SERIAL_SECONDS,
    TARGET_MEDIAN,
    TARGET_TAIL,
    Spread,
    Summary,
    regret_curve,
)

COLUMNS, PANEL_GAP = 4, 12  # of panels in the plot


def tables(half: Half, summaries: Sequence[Summary]) -> str:
    """Return the tables of a half of the sweeps: by evaluations, and by simulated seconds."""
    if not summaries:
        return f"\n## {half.capitalize()} sweeps\n\nnone"
    by_evaluations = [
        {
            "sampler": summary.sampler,
            "seeds": f"{summary.seeds}",
            "P score": _interval(summary.p_score),
            "P, default first": _interval(summary.p_score_led),
            "the default's lead": _interval(summary.lead) if summary.lead else "",
            **{f"{fraction:.0%}": _spread(summary.regret[fraction]) for fraction in FRACTIONS},
            f"best at {JUDGED_FRACTION:.0%}": f"{summary.found_best:.0%}",
            "used": f"{summary.used:.0%}",
            "ms an ask": f"{summary.asking_ms:.1f}",
        }
        for summary in summaries
    ]
    by_seconds = [
        {
            "sampler": summary.sampler,
            **{f"1: {moment} s": _spread(summary.serial_regret[moment]) for moment in SERIAL_SECONDS},
            **{f"{COMPILERS}: {moment} s": _spread(summary.parallel_regret[moment]) for moment in PARALLEL_SECONDS},
        }
        for summary in summaries
    ]
    return "\n".join(
        [
            f"\n## {half.capitalize()} sweeps ({summaries[0].sweeps})\n",
            "Regret in %, median / 95th percentile over sweeps and seeds, by valid configs evaluated:\n",
            *_markdown(by_evaluations),
            f"\nRegret after simulated seconds with 1 compiler and with {COMPILERS}, one GPU:\n",
            *_markdown(by_seconds),
        ]
    )


def verdict(training: Sequence[Summary], held_out: Sequence[Summary], default: str) -> str:
    """Return the training half's best sampler and, met or missed on the held-out half, the default's targets.

    P scores are those with the default config first: the worth of a good default is no merit of a sampler.
    """
    lines = ["\n## Verdict\n"]
    if training:
        lines.append(f"- training half: best P score is {training[0].sampler}'s, {_interval(training[0].p_score_led)}")
    mine = next((summary for summary in held_out if summary.sampler == default), None)
    if mine is None:
        return "\n".join([*lines, f"- the default sampler {default} has no run on every held-out sweep: no verdict"])
    at = mine.regret[JUDGED_FRACTION]
    where = f"of {default} at {JUDGED_FRACTION:.0%}, held-out half"
    lines += [
        _target(at.median <= TARGET_MEDIAN, f"median regret {where}: {at.median:.1%}, target {TARGET_MEDIAN:.0%}"),
        _target(at.high <= TARGET_TAIL, f"95th percentile {where}: {at.high:.1%}, target {TARGET_TAIL:.0%}"),
    ]
    others = [summary for summary in held_out if summary.sampler != default]
    above = [s for s in others if s.p_score_led.low > mine.p_score_led.high]
    names = ", ".join(f"{s.sampler} {_interval(s.p_score_led)}" for s in above) or "none"
    lines.append(_target(not above, f"P score of {default}: {_interval(mine.p_score_led)}; clearly above it: {names}"))
    leads = {s.sampler: s.lead for s in others if s.lead}
    behind = {name: Interval(-lead.mean, -lead.high, -lead.low) for name, lead in leads.items() if lead.high < 0}
    ahead = ", ".join(f"{name} by {_interval(by)}" for name, by in behind.items())
    lines.append(f"- ahead of {default} when paired by sweep: {ahead or 'none'}")
    if lead := leads.get(CONTROL):
        lines.append(_target(lead.low > 0, f"clearly above random search ({CONTROL}): lead {_interval(lead)}"))
    return "\n".join(lines)


def plot(path: Path, recordings: Sequence[Recording], runs: Sequence[Run]) -> None:
    """Draw regret over the fraction evaluated as SVG: a panel for each sampler, its median and 90 % band."""
    by_name = {recording.name: recording for recording in recordings}
    names = list(dict.fromkeys(run.sampler for run in runs if run.trace))
    curves = {
        name: np.percentile(
            [regret_curve(by_name[run.recording], run, CURVE) for run in runs if run.sampler == name and run.trace],
            (5, 50, 95),
            axis=0,
        )
        for name in names
    }
    across = log_axis("valid configs evaluated, %", [100 * fraction for fraction in CURVE])
    up = regret_axis("regret", [float(value) for curve in curves.values() for value in curve.ravel()])
    chart = Chart(across, up)
    drawn = []
    for index, (name, (low, median, high)) in enumerate(curves.items()):
        row, column = divmod(index, COLUMNS)
        xs = [100 * fraction for fraction in CURVE]
        place = f"translate({column * chart.width} {row * (chart.height + PANEL_GAP)})"
        label = element("text", name, x=chart.width / 2, y=8, class_="middle")
        parts = (chart.axes(), chart.band(xs, low, high, "band"), chart.line(xs, median, "line"), label)
        drawn.append(element("g", *parts, transform=place))
    rows = math.ceil(len(names) / COLUMNS)
    title = ("Regret over the fraction of the space that was evaluated", "median and 90 % band over all sweeps")
    write_figure(path, title, COLUMNS * chart.width, rows * (chart.height + PANEL_GAP), *drawn)


def _markdown(rows: Sequence[dict[str, str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (rows[0], ["---"] * len(rows[0]), *(row.values() for row in rows))]


def _interval(value: Interval) -> str:
    return f"{value.mean:.2f} [{value.low:.2f}, {value.high:.2f}]"


def _spread(value: Spread) -> str:
    return f"{100 * value.median:.1f} / {100 * value.high:.1f}"


def _target(is_met: bool, text: str) -> str:
    return f"- {'met' if is_met else 'MISSED'}: {text}"
