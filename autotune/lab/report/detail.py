"""One screening in detail: its times, the place of the fast configs, and the regret of finding one."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from autotune.lab.drawing.chart import Chart, log_axis, regret_axis
from autotune.lab.drawing.markup import Html, element, figure
from autotune.lab.report.heat import choose_layout, heat_maps
from autotune.lab.report.parameters import Shares, combined, importance_figure
from autotune.lab.report.screening import Screening, judged_seconds
from autotune.trial import Status, Trial, median_us
from autotune.units import count_text, duration_text, percent_text, short_time_text

POINTS: Final = 60  # of a curve: more than its pixels tell apart
QUANTILES: Final = (0.05, 0.5, 0.95)


@dataclass(frozen=True, slots=True)
class Curve:
    """Regret over effort: the time of the best so far over the best of all, less 1; ``inf`` before any ran.

    ``low`` and ``high`` are the 5th and 95th percentiles of random orders; a single search has the median alone.
    """

    effort: tuple[float, ...]
    median: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Regret:
    """The two curves of a screening, against trials and against seconds; ``is_random``: of random orders of a sweep."""

    by_trials: Curve
    by_seconds: Curve
    is_random: bool


def regret(screening: Screening) -> Regret | None:
    """Return the regret of a screening; None where fewer than two configs have a time.

    A search is shown in the order in which it tried configs. A sweep has no such order: instead the regret of a random
    search after as many trials is computed exactly, each trial of the mean cost.
    """
    if screening.best is None or len(screening.timed) < 2:
        return None
    times = [median_us(trial) if trial.timing and trial.status is Status.OK else math.inf for trial in screening.trials]
    best = median_us(screening.best)
    if screening.is_sweep:
        by_trials = random_order(np.array(times) / best - 1.0)
        cost = float(np.mean([judged_seconds(trial) for trial in screening.trials]))
        by_seconds = replace(by_trials, effort=tuple(drawn * cost for drawn in by_trials.effort))
    else:
        values = (np.minimum.accumulate(times) / best - 1.0).tolist()
        by_trials = Curve(tuple(range(1, len(values) + 1)), tuple(values))
        by_seconds = replace(by_trials, effort=elapsed_seconds(screening.trials))
    return Regret(by_trials, by_seconds, is_random=screening.is_sweep)


def random_order(values: NDArray[np.float64]) -> Curve:
    """Return percentiles of the least of ``n`` values drawn without replacement, in closed form, for ``n`` up to all.

    All of ``n`` draws of ``N`` values are beyond the ``k`` smallest with probability ``C(N-k, n) / C(N, n)``.

    Example:
        >>> random_order(np.array([0.0, 1.0])).median
        (0.0, 0.0)
    """
    ordered, total = np.sort(values), len(values)
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, total + 1)))])  # of factorials
    drawn = sorted({round(total ** (step / POINTS)) for step in range(POINTS + 1)})
    percentiles = []
    for count in drawn:
        left = np.arange(total)[::-1]  # beyond the best k values, for each k from 1
        chance = np.exp(logs[left] - logs[np.maximum(left - count, 0)] - logs[total] + logs[total - count])
        chance[left < count] = 0.0
        # the least value whose rank is reached with at least that probability; rounding must not lose the last
        ranks = [min(int(np.searchsorted(1.0 - chance, quantile - 1e-12)), total - 1) for quantile in QUANTILES]
        percentiles.append([float(ordered[rank]) for rank in ranks])
    low, median, high = zip(*percentiles, strict=True)
    return Curve(tuple(float(count) for count in drawn), median, low, high)


def elapsed_seconds(trials: Sequence[Trial]) -> tuple[float, ...]:
    """Return the seconds from the start of a search to each verdict, pauses between two runs left out.

    A replay takes next to no time: the cost of its recording is used instead.
    """
    total, seconds = 0.0, []
    for before, trial in zip([None, *trials], trials, strict=False):
        if before is None or trial.worker != before.worker or trial.executor == "replay":
            total += judged_seconds(trial)
        else:
            total += (trial.started_at - before.started_at).total_seconds()
        seconds.append(total)
    return tuple(seconds)


NEAR: Final = 0.01  # a regret that measurement hardly tells from none


def screening_details(screening: Screening, shares: Shares, missing: str, *, anchor: str, is_open: bool) -> Html:
    """Write a fold-out with the facts, heat maps, regret and importance of one screening."""
    layout = choose_layout(screening, combined(shares)) if screening.best else None
    found = regret(screening)
    figures = [_regret_figure(screening, found) if found else None, importance_figure(shares, missing)]
    body = element(
        "div",
        element("p", *_facts(screening)),
        heat_maps(screening, layout) if layout else None,
        element("div", *figures, class_="columns"),
        id=anchor,
        class_="detail",
    )
    name = element("summary", element("h4", screening.name), element("span", _headline(screening), class_="muted"))
    return element("details", name, body, open=is_open)


def _headline(screening: Screening) -> str:
    kind = "sweep" if screening.is_sweep else "search"
    ran = f"{kind} of {count_text(len(screening.trials), 'config')}"
    if screening.best is None:
        return f"{ran}, none ran"
    best = median_us(screening.best)
    default = f", default {median_us(screening.default) / best:.2f}x" if screening.default else ""
    return f"{ran}, best {short_time_text(best)}{default}"


def _facts(screening: Screening) -> Iterator[Html | str]:
    configs, timed = count_text(len(screening.trials), "config"), screening.timed
    kind = "A sweep: every valid config was tried" if screening.is_sweep else "A search"
    spent = duration_text(sum(map(judged_seconds, screening.trials)))
    yield f"{kind}, {configs}, of which {len(timed):,} ran; {spent} of compiling and judging. "
    if screening.best is None:
        yield "No config ran."
        return
    best, middle = median_us(screening.best), median_us(timed[len(timed) // 2])
    yield f"The fastest takes {short_time_text(best)} at screening: "
    yield element("code", screening.best.config)
    yield f". The median config takes {middle / best:.2f} times as long"
    if screening.default is not None:
        yield f", the default {median_us(screening.default) / best:.2f} times"
    near = count_text(sum(median_us(trial) <= (1 + NEAR) * best for trial in timed), "config")
    yield f"; {near} within 1 % of the fastest. A race, not the screening, decides who wins."


def _regret_figure(screening: Screening, found: Regret) -> Html:
    if found.is_random:
        remark = (
            "what a random search of this sweep would have: median and 5th to 95th percentile over all orders, "
            "exactly; each trial at the mean cost of compiling and judging, one after the other"
        )
    else:
        cost = "seconds as recorded in the sweep that answered" if screening.is_replay else "seconds of wall time"
        remark = f"this search in the order of its trials, against the best that it found; {cost}"
    return figure(
        "Regret: how much slower the best so far is",
        remark,
        _chart("trials", found.by_trials),
        _chart("seconds", found.by_seconds),
        element("p", _first_near(found), class_="note"),
    )


def _first_near(found: Regret) -> str:
    """State after how many trials the best so far was within 1 % of the best of all, where it ever was."""
    curves = zip(found.by_trials.effort, found.by_seconds.effort, found.by_trials.median, strict=True)
    for trials, seconds, value in curves:
        if value <= NEAR:
            subject = "Half of all random orders are" if found.is_random else "The search was"
            after = f"{count_text(int(trials), 'trial')} ({duration_text(seconds)})"
            return f"{subject} within 1 % of the best after {after}."
    return ""


def _chart(name: str, curve: Curve) -> Html:
    efforts = [max(effort, 1e-3) for effort in curve.effort]
    chart = Chart(log_axis(name, efforts), regret_axis("regret", (*curve.median, *curve.high)))
    known = [(n, value) for n, value in zip(efforts, curve.median, strict=True) if math.isfinite(value)]
    few = [known[index] for index in sorted({0, len(known) // 2, len(known) - 1})] if known else []
    values = ", ".join(f"{percent_text(value)} after {n:.3g}" for n, value in few)
    return chart.drawing(
        f"Regret against {name}",
        f"Median regret: {values} {name}.",
        chart.band(efforts, curve.low, curve.high, "band") if curve.low else None,
        chart.line(efforts, curve.median, "line", stepped=True),
    )
