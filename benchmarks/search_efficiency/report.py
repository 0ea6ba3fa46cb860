"""Summaries as Markdown tables, verdicts and one figure."""

import importlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

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

PANEL_INCHES: Final = (3.0, 2.2)


def tables(half: Half, summaries: Sequence[Summary]) -> str:
    """A half of the sweeps: one table by evaluations and one by simulated seconds."""
    if not summaries:
        return f"\n## {half.capitalize()} sweeps\n\nnone"
    first = summaries[0]
    fractions = [f"{fraction:.0%}" for fraction in FRACTIONS]
    found = f"best at {JUDGED_FRACTION:.0%}"
    head = [
        "sampler",
        "seeds",
        "P score",
        "P, default first",
        "the default's lead",
        *fractions,
        found,
        "used",
        "ms an ask",
    ]
    rows = [
        [
            summary.sampler,
            f"{summary.seeds}",
            _interval(summary.p_score),
            _interval(summary.p_score_led),
            _interval(summary.lead) if summary.lead else "",
            *(_spread(summary.regret[fraction]) for fraction in FRACTIONS),
            f"{summary.found_best:.0%}",
            f"{summary.used:.0%}",
            f"{summary.asking_ms:.1f}",
        ]
        for summary in summaries
    ]
    seconds = ["sampler", *(f"1: {s} s" for s in SERIAL_SECONDS), *(f"{COMPILERS}: {s} s" for s in PARALLEL_SECONDS)]
    clock = [
        [
            summary.sampler,
            *(_spread(summary.serial_regret[moment]) for moment in SERIAL_SECONDS),
            *(_spread(summary.parallel_regret[moment]) for moment in PARALLEL_SECONDS),
        ]
        for summary in summaries
    ]
    return "\n".join(
        [
            f"\n## {half.capitalize()} sweeps ({first.sweeps})\n",
            "Regret in %, median / 95th percentile over sweeps and seeds, by valid configs evaluated:\n",
            *_markdown(head, rows),
            f"\nRegret after simulated seconds with 1 compiler and with {COMPILERS}, one GPU:\n",
            *_markdown(seconds, clock),
        ]
    )


def verdict(training: Sequence[Summary], held_out: Sequence[Summary], default: str) -> str:
    """Which sampler the training half prefers, and whether the default meets the targets on the held-out half.

    P scores are those with the default config first: what a good default is worth is no merit of a sampler.
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
    ahead = ", ".join(f"{name} by {_interval(_negated(lead))}" for name, lead in leads.items() if lead.high < 0)
    lines.append(f"- ahead of {default} when paired by sweep: {ahead or 'none'}")
    if lead := leads.get(CONTROL):
        lines.append(_target(lead.low > 0, f"clearly above random search ({CONTROL}): lead {_interval(lead)}"))
    return "\n".join(lines)


def plot(path: Path, recordings: Sequence[Recording], runs: Sequence[Run]) -> None:
    """Regret against the fraction evaluated: a panel for each sampler, its median and 90 % band over all sweeps.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    by_name = {recording.name: recording for recording in recordings}
    names = list(dict.fromkeys(run.sampler for run in runs if run.trace))
    columns = min(4, len(names))
    count = math.ceil(len(names) / columns)
    size = (PANEL_INCHES[0] * columns, PANEL_INCHES[1] * count)
    figure, panels = pyplot.subplots(
        count, columns, figsize=size, sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    percent = 100 * np.array(CURVE)
    for panel, name in zip(panels.flat, names, strict=False):
        mine = [regret_curve(by_name[run.recording], run, CURVE) for run in runs if run.sampler == name and run.trace]
        low, median, high = 100 * np.percentile(np.array(mine), (5, 50, 95), axis=0)
        panel.fill_between(percent, low, high, alpha=0.25, linewidth=0)
        panel.plot(percent, median)
        panel.set_title(name, fontsize="small")
        panel.set_yscale("symlog", linthresh=1)
        panel.grid(alpha=0.3)
    for panel in panels.flat[len(names) :]:
        panel.set_visible(False)
    figure.supxlabel("valid configs evaluated, %")
    figure.supylabel("regret, %")
    figure.savefig(path)


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def _interval(value: Interval) -> str:
    return f"{value.mean:.2f} [{value.low:.2f}, {value.high:.2f}]"


def _negated(value: Interval) -> Interval:
    return Interval(-value.mean, -value.high, -value.low)


def _spread(value: Spread) -> str:
    return f"{100 * value.median:.1f} / {100 * value.high:.1f}"


def _target(is_met: bool, text: str) -> str:
    return f"- {'met' if is_met else 'MISSED'}: {text}"
