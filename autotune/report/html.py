"""Trials as one HTML file that needs nothing else: what was tuned, gained, tried and failed, and where."""

import base64
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from autotune.analysis.measured import MeasuredRoofline
from autotune.device import Device
from autotune.errors import UsageError
from autotune.operation import Operation
from autotune.registry import get_operation
from autotune.report.page.detail import problem_details
from autotune.report.page.environment import environment_section
from autotune.report.page.failures import failures_section
from autotune.report.page.markup import Html, count, element, join
from autotune.report.page.measured import measured_section
from autotune.report.page.overview import cards, checks, checks_list, gained, tried
from autotune.report.page.parameters import Shares, importance_figure, mean_shares, shares_of
from autotune.report.page.problem import Problem, group, place
from autotune.report.page.roofline import roofline_figures
from autotune.report.page.style import STYLE
from autotune.report.page.winners import winners_section
from autotune.table import winners as winners_of
from autotune.trial import Trial
from autotune.version import VERSION

ROOFLINES: Final = "Roofline, measured"
MAX_DETAILED: Final = 30  # problems that are shown in detail, those with the most trials; fANOVA takes seconds for each
MAX_DETAIL_BYTES: Final = 1_500_000  # of all details together: the page stays below 3 MB

OnProblem = Callable[[Problem, int, int], None]  # a problem, its number and of how many


@dataclass(frozen=True, kw_only=True)
class Part:
    """What is told together: one operation on one device."""

    operation: Operation[Any]
    device: Device
    winners: list[Trial]
    problems: list[Problem]
    raced: list[Trial]

    @property
    def screened(self) -> list[Trial]:
        """A trial of each config of each problem."""
        return [trial for problem in self.problems for trial in problem.trials]


class Study(NamedTuple):
    """What the details of a problem begin with: where they stand, its shares, and why an evaluator has none."""

    anchor: str
    shares: Shares
    missing: str


def html_report(
    trials: Iterable[Trial],
    *,
    source: str,
    made_at: datetime,
    rooflines: Sequence[MeasuredRoofline] = (),
    served: Iterable[Trial] = (),
    on_problem: OnProblem | None = None,
) -> str:
    """A self-contained page about trials: no script, no request, below 3 MB, light and dark.

    Args:
        trials: rows of any operations and devices; those of races make winners, screened ones the rest.
        source: where the rows come from, in words, for the head of the page.
        made_at: the time that the page names as its own.
        rooflines: measurements that have a section of their own, such as ``read_roofline`` reads.
        served: rows of a table of winners; where they are among the trials, no other race decides about their
            problems.
        on_problem: told of each problem before its parameters are weighed, which takes seconds, with its number of how
            many.

    Example:
        >>> page = html_report(sweep.trials(), source=sweep.name, made_at=datetime.now(UTC))
        >>> Path("report.html").write_text(page, encoding="utf-8")

    Raises:
        UsageError: there is no trial.
    """
    rows = list(dict.fromkeys(trials))
    if not rows:
        raise UsageError("trials=[] make no report; expected at least one")
    parts = _parts(rows, set(rows).intersection(served))
    made = f"attention-autotune {VERSION}, {made_at:%Y-%m-%d %H:%M} UTC. This file is complete in itself."
    body = element(
        "body",
        _header(source, parts, rows, with_rooflines=bool(rooflines)),
        _main(parts, rows, rooflines, on_problem),
        element("footer", made),
    )
    return f"<!doctype html>\n{element('html', _head(source), body, lang='en')}\n"


def _parts(trials: Sequence[Trial], served: Iterable[Trial]) -> list[Part]:
    chosen = [*winners_of(trials), *winners_of(served)]  # of each problem the last
    won = {(winner.operation, winner.device, winner.shape, winner.policy): winner for winner in chosen}
    problems, ordered = group(trials), sorted(won.values(), key=place)
    keys = dict.fromkeys((trial.operation, trial.device) for trial in sorted(trials, key=place))
    return [
        Part(
            operation=get_operation(name),
            device=device,
            winners=[winner for winner in ordered if (winner.operation, winner.device) == (name, device)],
            problems=[each for each in problems if (each.operation.name, each.device) == (name, device)],
            raced=[t for t in trials if (t.operation, t.device) == (name, device) and t.race_id],
        )
        for name, device in keys
    ]


def _study(problems: Sequence[Problem], on_problem: OnProblem | None) -> dict[int, Study]:
    """What is shown in detail, by the identity of the problem: those with the most trials."""
    most = sorted(problems, key=lambda problem: -len(problem.trials))[:MAX_DETAILED]
    chosen = {id(problem) for problem in most}
    studied: dict[int, Study] = {}
    for index, problem in enumerate(problems):
        if id(problem) in chosen:
            if on_problem is not None:
                on_problem(problem, len(studied) + 1, len(chosen))
            studied[id(problem)] = Study(f"problem-{index}", *shares_of(problem))
    return studied


def _head(source: str) -> Html:
    """Metadata, with a policy under which nothing is loaded and no script runs, and the style by its digest."""
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


def _header(source: str, parts: Sequence[Part], trials: Sequence[Trial], *, with_rooflines: bool) -> Html:
    dates = [trial.started_at for trial in trials]
    first, last = f"{min(dates):%Y-%m-%d}", f"{max(dates):%Y-%m-%d}"
    devices = ", ".join(dict.fromkeys(part.device.name for part in parts))
    operations = ", ".join(dict.fromkeys(part.operation.name for part in parts))
    when = first if first == last else f"{first} to {last}"
    links = [(f"part-{index}", _title(part, parts)) for index, part in enumerate(parts)]
    links = [("summary", "Summary"), ("trust", "Is it trustworthy?"), *links]
    links += [*([("roofline", ROOFLINES)] if with_rooflines else []), ("environment", "Environment")]
    return element(
        "header",
        element("h1", f"Tuning of {operations} on {devices}"),
        element("p", f"From {source}: {count(len(trials), 'row')} of {when}.", class_="muted"),
        element("nav", *(element("a", text, href=f"#{target}") for target, text in links), aria_label="Sections"),
    )


def _main(
    parts: Sequence[Part],
    trials: Sequence[Trial],
    rooflines: Sequence[MeasuredRoofline],
    on_problem: OnProblem | None,
) -> Html:
    won = [winner for part in parts for winner in part.winners]
    problems = [problem for part in parts for problem in part.problems]
    studied = _study(problems, on_problem)
    return element(
        "main",
        cards(won, problems, trials),
        element("h2", "Summary", id="summary"),
        element("div", *(_words(part, parts, studied) for part in parts), class_="summary"),
        element("h2", "Is it trustworthy?", id="trust"),
        checks_list(checks(trials, won)),
        *_sections(parts, studied),
        join(element("h2", ROOFLINES, id="roofline"), measured_section(rooflines)) if rooflines else None,
        element("h2", "Environment", id="environment"),
        environment_section(trials),
    )


def _words(part: Part, parts: Sequence[Part], studied: Mapping[int, Study]) -> Html:
    """A part of the summary."""
    told = [*gained(part.winners), *tried(part.problems, mean_shares(_shares(part, studied)))]
    return join(element("h3", _title(part, parts)) if len(parts) > 1 else None, element("p", " ".join(told)))


def _sections(parts: Sequence[Part], studied: Mapping[int, Study]) -> Iterator[Html]:
    """The parts one after the other; details are given as long as they fit the page."""
    room, is_first = MAX_DETAIL_BYTES, True
    for index, part in enumerate(parts):
        details: dict[int, Html] = {}
        for problem in part.problems:
            if (study := studied.get(id(problem))) is None:
                continue
            drawn = problem_details(problem, study.shares, study.missing, anchor=study.anchor, is_open=is_first)
            if len(drawn.encode()) <= room:
                room, is_first = room - len(drawn.encode()), False
                details[id(problem)] = drawn
        yield element("h2", _title(part, parts), id=f"part-{index}")
        yield _section(part, studied, details)


def _section(part: Part, studied: Mapping[int, Study], details: Mapping[int, Html]) -> Html:
    shares = _shares(part, studied)
    anchors = {
        (problem.shape, problem.policy): studied[id(problem)].anchor
        for problem in part.problems
        if id(problem) in details
    }
    left_out = len(part.problems) - len(details)
    figures = [
        *roofline_figures(part.operation, part.device, part.problems, part.winners),
        importance_figure(mean_shares(shares), "", len(shares)) if len(shares) > 1 else None,
    ]
    parts: list[Html | None] = [element("div", *figures, class_="columns")]
    if part.winners:
        parts = [element("h3", "Winners"), winners_section(part.winners, anchors), *parts]
    if part.problems:
        parts += [
            element("h3", "What failed"),
            failures_section(part.operation.space.parameters, part.screened, part.raced),
        ]
    if details:
        parts += [element("h3", "Problem by problem"), *details.values()]
    if left_out:
        parts.append(element("p", f"{count(left_out, 'more problem')} not shown in detail.", class_="note"))
    return join(*parts)


def _shares(part: Part, studied: Mapping[int, Study]) -> list[Shares]:
    found = [studied[id(problem)].shares for problem in part.problems if id(problem) in studied]
    return [shares for shares in found if shares]


def _title(part: Part, parts: Sequence[Part]) -> str:
    """The operation and device, with the power cap where it alone tells two devices apart."""
    namesakes = {other.device for other in parts if other.device.name == part.device.name}
    cap = f", {part.device.power_cap_watts} W" if len(namesakes) > 1 else ""
    return f"{part.operation.name} on {part.device.name}{cap}"
