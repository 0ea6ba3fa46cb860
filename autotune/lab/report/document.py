"""Trials as one HTML file that needs nothing else: winners, gains, heat maps, regret, importance and failures."""

import base64
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from autotune.device import Device
from autotune.errors import UsageError
from autotune.lab.drawing.markup import Html, element, join, left_out
from autotune.lab.report.between_devices import between_devices_section, kinds_of
from autotune.lab.report.detail import screening_details
from autotune.lab.report.failures import failures_section
from autotune.lab.report.overview import cards, checks_list, environment_section, gain_lines, screening_lines
from autotune.lab.report.parameters import Shares, importance_figure, mean_shares, shares_of
from autotune.lab.report.screening import Screening, group, grouped, sorting_key, span_text
from autotune.lab.report.style import STYLE
from autotune.lab.report.winner_table import roofline_figures, winners_section
from autotune.lab.roofline.saved import MeasuredRoofline
from autotune.lab.roofline.section import measured_section
from autotune.operation import Operation
from autotune.registry import get_operation
from autotune.table import Outsider
from autotune.table import winners as winners_of
from autotune.table.transfers import transfers
from autotune.trial import Trial
from autotune.units import count_text
from autotune.version import VERSION

ROOFLINES: Final = "Roofline, measured"
TRANSFER: Final = "Between devices"
MAX_DETAILED: Final = 30  # screenings shown in detail, those with the most trials; fANOVA takes seconds for each
MAX_DETAIL_BYTES: Final = 1_500_000  # of all details together: the page stays below 3 MB

OnScreening = Callable[[Screening, int, int], None]  # a screening, its number and the number of all


class Weighed(NamedTuple):
    """A screening's place on the page, the importance of its parameters, and the reason why an evaluator has none."""

    anchor: str
    shares: Shares
    missing: str


@dataclass(frozen=True)
class DeviceReport:
    """One operation on one device, which the page shows together."""

    operation: Operation[Any]
    device: Device
    winners: Sequence[Trial]
    screenings: Sequence[Screening]
    raced: Sequence[Trial]

    @property
    def by_implementation(self) -> dict[str, list[Screening]]:
        """The screenings of each implementation, none of one that has winners alone."""
        screened = grouped(self.screenings, lambda screening: screening.first.implementation)
        return screened | {won.implementation: [] for won in self.winners if won.implementation not in screened}


def html_report(
    trials: Iterable[Trial],
    *,
    source: str,
    made_at: datetime,
    rooflines: Sequence[MeasuredRoofline] = (),
    served: Iterable[Trial] = (),
    outsiders: Sequence[Outsider] = (),
    grids: Iterable[Trial] = (),
    on_screening: OnScreening | None = None,
) -> str:
    """Make a self-contained page about trials: no script, no request, below 3 MB, light and dark.

    Args:
        trials: rows of any operations and devices; those of races make winners, screened ones the rest.
        source: the origin of the rows, for the head of the page.
        made_at: the time that the page names as its own.
        rooflines: measurements that have a section of their own, such as ``read_roofline`` reads.
        served: rows of a table of winners; where they are among the trials, no other race decides about their shapes.
        outsiders: rows that are not of today's spaces: listed, and counted nowhere else.
        grids: rows that tell how winners transfer between devices, beside the trials, and are shown nowhere else.
        on_screening: called before the parameters of each screening are weighed, which takes seconds.

    Example:
        >>> page = html_report(sweep.trials(), source=sweep.name, made_at=datetime.now(UTC))
        >>> Path("report.html").write_text(page, encoding="utf-8")

    Raises:
        UsageError: there is no trial.
    """
    rows = list(dict.fromkeys(trials))
    if not rows:
        raise UsageError("trials=[] make no report; expected at least one")
    parts = _device_reports(rows, set(rows).intersection(served))
    winners = [winner for part in parts for winner in part.winners]
    screenings = [screening for part in parts for screening in part.screenings]
    weighed = _weigh(screenings, on_screening)
    main = element(
        "main",
        cards(winners, screenings, rows),
        element("h2", "Summary", id="summary"),
        element("div", *(_summary(part, parts, weighed) for part in parts), class_="summary"),
        element("h2", "Is it trustworthy?", id="trust"),
        checks_list(rows, winners, len(outsiders)),
        *_sections(parts, weighed),
        _transfer_section(winners, [*rows, *grids]),
        join(element("h2", ROOFLINES, id="roofline"), measured_section(rooflines)) if rooflines else None,
        element("h2", "Environment", id="environment"),
        environment_section(rows, outsiders),
    )
    made = f"attention-autotune {VERSION}, {made_at:%Y-%m-%d %H:%M} UTC. This file is complete in itself."
    header = _header(source, parts, rows, with_rooflines=bool(rooflines), with_transfer=bool(kinds_of(winners)))
    body = element("body", header, main, element("footer", made))
    return f"<!doctype html>\n{element('html', _head(source), body, lang='en')}\n"


def _device_reports(trials: Sequence[Trial], served: Iterable[Trial]) -> list[DeviceReport]:
    def key(trial: Trial) -> tuple[str, Device]:
        return trial.operation, trial.device

    chosen = [*winners_of(trials), *winners_of(served)]  # of each shape the last
    won = {(w.operation, w.implementation, w.device, w.shape, w.policy): w for w in chosen}
    winners = grouped(sorted(won.values(), key=sorting_key), key)
    screenings = grouped(group(trials), lambda screening: key(screening.first))
    raced = grouped((trial for trial in trials if trial.race_id), key)
    return [
        DeviceReport(get_operation(at[0]), at[1], winners.get(at, []), screenings.get(at, []), raced.get(at, []))
        for at in dict.fromkeys(map(key, sorted(trials, key=sorting_key)))
    ]


def _weigh(screenings: Sequence[Screening], on_screening: OnScreening | None) -> dict[Screening, Weighed]:
    chosen = set(sorted(screenings, key=lambda each: -len(each.trials))[:MAX_DETAILED])
    weighed: dict[Screening, Weighed] = {}
    for index, screening in enumerate(screenings):
        if screening in chosen:
            if on_screening is not None:
                on_screening(screening, len(weighed) + 1, len(chosen))
            weighed[screening] = Weighed(f"problem-{index}", *shares_of(screening))
    return weighed


def _head(source: str) -> Html:
    """Write metadata, a policy under which nothing is loaded and no script runs, and the style by its digest."""
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name_="color-scheme", content="light dark"),
        element("meta", name_="referrer", content="no-referrer"),
        element("title", f"Tuning report: {source}"),
        element("style", Html(STYLE)),
    )


def _transfer_section(winners: Sequence[Trial], timed: Iterable[Trial]) -> Html | None:
    """Write how winners transfer between devices; None where no implementation has winners on several."""
    if not kinds_of(winners):
        return None
    heading = element("h2", TRANSFER, id="transfer")
    return join(heading, between_devices_section(winners, transfers(winners, timed)))


def _header(
    source: str, parts: Sequence[DeviceReport], trials: Sequence[Trial], *, with_rooflines: bool, with_transfer: bool
) -> Html:
    dates = span_text((trial.started_at for trial in trials), "{:%Y-%m-%d}".format)
    devices = ", ".join(dict.fromkeys(part.device.name for part in parts))
    operations = ", ".join(dict.fromkeys(part.operation.name for part in parts))
    rows = f"{count_text(len(trials), 'row')} of {dates}"
    links = {
        "summary": "Summary",
        "trust": "Is it trustworthy?",
        **{f"part-{index}": _title(part, parts) for index, part in enumerate(parts)},
        **({"transfer": TRANSFER} if with_transfer else {}),
        **({"roofline": ROOFLINES} if with_rooflines else {}),
        "environment": "Environment",
    }
    return element(
        "header",
        element("h1", f"Tuning of {operations} on {devices}"),
        element("p", f"From {source}: {rows}.", class_="muted"),
        element("nav", *(element("a", text, href=f"#{to}") for to, text in links.items()), aria_label="Sections"),
    )


def _summary(part: DeviceReport, parts: Sequence[DeviceReport], weighed: Mapping[Screening, Weighed]) -> Html:
    paragraphs = [element("h3", _title(part, parts))] if len(parts) > 1 else []
    for name, screenings in part.by_implementation.items():
        gains = gain_lines([winner for winner in part.winners if winner.implementation == name])
        texts = [*gains, *screening_lines(screenings, mean_shares(_shares(screenings, weighed)))]
        heading = element("strong", f"{name}: ") if len(part.by_implementation) > 1 else None
        paragraphs.append(element("p", heading, " ".join(texts)))
    return join(*paragraphs)


def _sections(parts: Sequence[DeviceReport], weighed: Mapping[Screening, Weighed]) -> Iterator[Html]:
    """Yield the parts one after the other, with details as long as they fit the page."""
    room, is_first = MAX_DETAIL_BYTES, True
    for index, part in enumerate(parts):
        details: dict[Screening, Html] = {}
        for screening in part.screenings:
            if (found := weighed.get(screening)) is None:
                continue
            drawn = screening_details(screening, found.shares, found.missing, anchor=found.anchor, is_open=is_first)
            if len(drawn.encode()) <= room:
                room, is_first = room - len(drawn.encode()), False
                details[screening] = drawn
        yield element("h2", _title(part, parts), id=f"part-{index}")
        yield _section(part, weighed, details)


def _section(part: DeviceReport, weighed: Mapping[Screening, Weighed], details: Mapping[Screening, Html]) -> Html:
    found = ((each.first, weighed[each].anchor) for each in details)
    anchors = {(trial.implementation, trial.shape, trial.policy): anchor for trial, anchor in found}
    figures = roofline_figures(part.operation, part.device, part.screenings, part.winners)
    screened = {name: screenings for name, screenings in part.by_implementation.items() if screenings}
    failures = []
    for name, screenings in screened.items():
        shares = _shares(screenings, weighed)
        if len(shares) > 1:
            figures.append(importance_figure(mean_shares(shares), name if len(screened) > 1 else "", len(shares)))
        tried = [trial for screening in screenings for trial in screening.trials]
        raced = [trial for trial in part.raced if trial.implementation == name]
        failures += [
            element("h3", f"What failed of {name}" if len(screened) > 1 else "What failed"),
            failures_section(screenings[0].space.parameters, tried, raced),
        ]
    winners = [element("h3", "Winners"), winners_section(part.winners, anchors)] if part.winners else []
    return join(
        *winners,
        element("div", *figures, class_="columns"),
        *failures,
        *([element("h3", "Problem by problem"), *details.values()] if details else []),
        left_out(len(part.screenings) - len(details), "more problem", "not shown in detail."),
    )


def _shares(screenings: Iterable[Screening], weighed: Mapping[Screening, Weighed]) -> list[Shares]:
    return [shares for screening in screenings if screening in weighed and (shares := weighed[screening].shares)]


def _title(part: DeviceReport, parts: Sequence[DeviceReport]) -> str:
    """Name the operation and device, with the power cap where it alone tells two devices apart."""
    namesakes = {other.device for other in parts if other.device.name == part.device.name}
    cap = f", {part.device.power_cap_watts} W" if len(namesakes) > 1 else ""
    return f"{part.operation.name} on {part.device.name}{cap}"
