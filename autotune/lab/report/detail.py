"""One screening in detail: its times, the place of the fast configs, and the regret of finding one."""

import math
from collections.abc import Sequence
from typing import Final

from autotune.lab.drawing.chart import Chart, log_axis, regret_axis
from autotune.lab.drawing.markup import Html, element, figure_svg
from autotune.lab.report.curves import Curve, Regret, regret
from autotune.lab.report.heat import choose_layout, heat_maps
from autotune.lab.report.parameters import Shares, combined, importance_figure
from autotune.lab.report.screening import Screening, judged_seconds, median_us
from autotune.units import count_text, duration_text, percent_text, short_time_text

NEAR: Final = 0.01  # a regret that measurement hardly tells from none


def screening_details(screening: Screening, shares: Shares, missing: str, *, anchor: str, is_open: bool) -> Html:
    """Write a fold-out with the facts, heat maps, regret and importance of one screening."""
    layout = choose_layout(screening, combined(shares)) if screening.best else None
    found = regret(screening)
    figures = [regret_figure(screening, found) if found else None, importance_figure(shares, missing)]
    body = element(
        "div",
        element("p", *facts(screening)),
        heat_maps(screening, layout) if layout else None,
        element("div", *figures, class_="columns"),
        id=anchor,
        class_="detail",
    )
    name = element("summary", element("h4", screening.name), element("span", _headline(screening), class_="muted"))
    return element("details", name, body, open=is_open)


def facts(screening: Screening) -> list[Html | str]:
    """Summarise the trials of a screening."""
    total, timed = len(screening.trials), screening.timed
    kind = "A sweep: every valid config was tried" if screening.is_sweep else "A search"
    spent = duration_text(sum(map(judged_seconds, screening.trials)))
    parts: list[Html | str] = [
        f"{kind}, {count_text(total, 'config')}, of which {len(timed):,} ran; {spent} of compiling and judging. "
    ]
    if screening.best is None:
        return [*parts, "No config ran."]
    best, middle = median_us(screening.best), median_us(timed[len(timed) // 2])
    parts += [
        f"The fastest takes {short_time_text(best)} at screening: ",
        element("code", screening.best.config),
        f". The median config takes {middle / best:.2f} times as long",
    ]
    if screening.default is not None:
        parts.append(f", the default {median_us(screening.default) / best:.2f} times")
    near = sum(median_us(trial) <= (1 + NEAR) * best for trial in timed)
    return [
        *parts,
        f"; {count_text(near, 'config')} within 1 % of the fastest. A race, not the screening, decides who wins.",
    ]


def regret_figure(screening: Screening, found: Regret) -> Html:
    """Draw two charts: regret against trials and against seconds."""
    if found.is_random:
        how = (
            "what a random search of this sweep would have: median and 5th to 95th percentile over all orders, exactly"
        )
        cost = "each trial at the mean cost of compiling and judging, one after the other"
    else:
        how = "this search in the order of its trials, against the best that it found"
        cost = "seconds as recorded in the sweep that answered" if screening.is_replay else "seconds of wall time"
    return element(
        "figure",
        element("figcaption", "Regret: how much slower the best so far is", element("small", f"{how}; {cost}")),
        _chart("trials", found.by_trials),
        _chart("seconds", found.by_seconds),
        element("p", regret_words(found), class_="note"),
        class_="regret",
    )


def regret_words(found: Regret) -> str:
    """State after how many trials the best so far was within 1 % of the best of all."""
    curve = found.by_trials
    reached = [n for n, value in zip(curve.effort, curve.median, strict=True) if value <= NEAR]
    if not reached:
        return ""
    at = curve.effort.index(reached[0])
    spent = duration_text(found.by_seconds.effort[at])
    subject = "Half of all random orders are" if found.is_random else "The search was"
    return f"{subject} within 1 % of the best after {count_text(int(reached[0]), 'trial')} ({spent})."


def _chart(name: str, curve: Curve) -> Html:
    efforts = [max(effort, 1e-3) for effort in curve.effort]
    up = regret_axis("regret", [value for value in (*curve.median, *curve.high) if math.isfinite(value)])
    chart = Chart(log_axis(name, efforts), up)
    known = [(n, value) for n, value in zip(efforts, curve.median, strict=True) if math.isfinite(value)]
    told = ", ".join(f"{percent_text(value)} after {n:.3g}" for n, value in _few(known))
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
    """Pick the first, middle and last of some points."""
    return [points[index] for index in sorted({0, len(points) // 2, len(points) - 1})] if points else []


def _headline(screening: Screening) -> str:
    kind = "sweep" if screening.is_sweep else "search"
    ran = f"{kind} of {count_text(len(screening.trials), 'config')}"
    if screening.best is None:
        return f"{ran}, none ran"
    best = median_us(screening.best)
    default = f", default {median_us(screening.default) / best:.2f}x" if screening.default else ""
    return f"{ran}, best {short_time_text(best)}{default}"
