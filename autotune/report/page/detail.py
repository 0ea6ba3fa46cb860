"""One problem in detail: what its configs took, where the fast ones lie, and how soon a search finds one."""

import math
from collections.abc import Sequence
from typing import Final

from autotune.report.page.chart import Chart, log_axis, regret_axis
from autotune.report.page.curves import Curve, Regret, regret
from autotune.report.page.heat import choose_layout, heat_maps
from autotune.report.page.markup import Html, count, element, figure_svg, percent, short_time, span_seconds
from autotune.report.page.parameters import Shares, combined, importance_figure
from autotune.report.page.problem import Problem, judged_seconds, median_us

NEAR: Final = 0.01  # a regret that measurement hardly tells from none


def problem_details(problem: Problem, shares: Shares, missing: str, *, anchor: str, is_open: bool) -> Html:
    """A fold-out with the facts, heat maps, regret and importance of one problem."""
    layout = choose_layout(problem, combined(shares)) if problem.best else None
    found = regret(problem)
    figures = [regret_figure(problem, found) if found else None, importance_figure(shares, missing)]
    body = element(
        "div",
        element("p", *facts(problem)),
        heat_maps(problem, layout) if layout else None,
        element("div", *figures, class_="columns"),
        id=anchor,
        class_="detail",
    )
    name = element("summary", element("h4", problem.name), element("span", _headline(problem), class_="muted"))
    return element("details", name, body, open=is_open)


def facts(problem: Problem) -> list[Html | str]:
    """What the trials of a problem were, in words."""
    total, timed = len(problem.trials), problem.timed
    kind = "A sweep: every valid config was tried" if problem.is_sweep else "A search"
    spent = span_seconds(sum(map(judged_seconds, problem.trials)))
    parts: list[Html | str] = [
        f"{kind}, {count(total, 'config')}, of which {len(timed):,} ran; {spent} of compiling and judging. "
    ]
    if problem.best is None:
        return [*parts, "No config ran."]
    best, middle = median_us(problem.best), median_us(timed[len(timed) // 2])
    parts += [
        f"The fastest takes {short_time(best)} at screening: ",
        element("code", problem.best.config),
        f". The median config takes {middle / best:.2f} times as long",
    ]
    if problem.default is not None:
        parts.append(f", the default {median_us(problem.default) / best:.2f} times")
    near = sum(median_us(trial) <= (1 + NEAR) * best for trial in timed)
    return [
        *parts,
        f"; {count(near, 'config')} within 1 % of the fastest. A race, not the screening, decides who wins.",
    ]


def regret_figure(problem: Problem, found: Regret) -> Html:
    """Two charts: regret against trials and against seconds."""
    if found.is_random:
        how = (
            "what a random search of this sweep would have: median and 5th to 95th percentile over all orders, exactly"
        )
        cost = "each trial at the mean cost of compiling and judging, one after the other"
    else:
        how = "this search in the order of its trials, against the best that it found"
        cost = "seconds as recorded in the sweep that answered" if problem.is_replay else "seconds of wall time"
    return element(
        "figure",
        element("figcaption", "Regret: how much slower the best so far is", element("small", f"{how}; {cost}")),
        _chart("trials", found.by_trials),
        _chart("seconds", found.by_seconds),
        element("p", regret_words(found), class_="note"),
        class_="regret",
    )


def regret_words(found: Regret) -> str:
    """After how many trials the best so far was within 1 % of the best of all."""
    curve = found.by_trials
    reached = [n for n, value in zip(curve.effort, curve.median, strict=True) if value <= NEAR]
    if not reached:
        return ""
    at = curve.effort.index(reached[0])
    spent = span_seconds(found.by_seconds.effort[at])
    subject = "Half of all random orders are" if found.is_random else "The search was"
    return f"{subject} within 1 % of the best after {count(int(reached[0]), 'trial')} ({spent})."


def _chart(name: str, curve: Curve) -> Html:
    efforts = [max(effort, 1e-3) for effort in curve.effort]
    up = regret_axis("regret", [value for value in (*curve.median, *curve.high) if math.isfinite(value)])
    chart = Chart(log_axis(name, efforts), up)
    known = [(n, value) for n, value in zip(efforts, curve.median, strict=True) if math.isfinite(value)]
    told = ", ".join(f"{percent(value)} after {n:.3g}" for n, value in _few(known))
    return figure_svg(
        f"Regret against {name}",
        f"Median regret: {told} {name}.",
        chart.width,
        chart.height,
        chart.axes(),
        chart.band(efforts, curve.low, curve.high, "band") if curve.low else None,
        chart.line(efforts, curve.median, "line", stepped=True),
    )


def _few(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """The first, middle and last of some points."""
    return [points[index] for index in sorted({0, len(points) // 2, len(points) - 1})] if points else []


def _headline(problem: Problem) -> str:
    kind = "sweep" if problem.is_sweep else "search"
    ran = f"{kind} of {count(len(problem.trials), 'config')}"
    if problem.best is None:
        return f"{ran}, none ran"
    best = median_us(problem.best)
    default = f", default {median_us(problem.default) / best:.2f}x" if problem.default else ""
    return f"{ran}, best {short_time(best)}{default}"
