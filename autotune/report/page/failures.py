"""What failed: the share of configs by parameter value and status, and the commonest messages."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from autotune.report.page.bars import Bar, bar_rows, legend
from autotune.report.page.markup import Child, Html, count, element, join, percent, table
from autotune.space import Parameter, Value
from autotune.trial import Status, Trial

MAX_MESSAGES: Final = 8
MAX_MESSAGE_LENGTH: Final = 300
ALIKE_LENGTH: Final = 100  # messages that begin alike are one: further on stand temporary paths and stacks
COLOURS: Final = 5  # the commonest statuses have one each, the others share the last


def is_failure(trial: Trial) -> bool:
    """Whether a config has no right time; one that was stopped early has."""
    return trial.status not in (Status.OK, Status.SLOW)


def failed_share(screened: Sequence[Trial]) -> float:
    """The share of screened configs that failed: the one that every part of the page tells, races left out."""
    return sum(map(is_failure, screened)) / len(screened)


def failures_section(parameters: Iterable[Parameter], screened: Sequence[Trial], raced: Sequence[Trial] = ()) -> Html:
    """The failure map of the screened configs of one operation on one device, and the messages of races, too."""
    failed, late = ([trial for trial in trials if is_failure(trial)] for trials in (screened, raced))
    configs = count(len(screened), "screened config")
    share = f"{len(failed):,} of {configs} failed ({percent(failed_share(screened))})"
    races = f"; {count(len(late), 'trial')} of races did" if late else ""
    told = element("p", f"{share if failed else f'None of {configs} failed'}{races}.")
    if not failed:
        return join(told, _messages(late) if late else None)
    statuses = [status for status, _ in Counter(trial.status for trial in failed).most_common()]
    kinds = {status: f"status-{min(index, COLOURS - 1)}" for index, status in enumerate(statuses)}
    totals = Counter(trial.status for trial in failed)
    maps = [_map(parameter, screened, kinds) for parameter in parameters]
    return join(
        told,
        element(
            "figure",
            element("figcaption", "Failure map: share of the configs of each value that failed, by status"),
            legend([(kinds[status], f"{status} ({totals[status]:,})") for status in statuses]),
            element("div", *maps, class_="columns"),
            class_="failures",
        ),
        _messages([*failed, *late]),
    )


def _map(parameter: Parameter, trials: Sequence[Trial], kinds: dict[Status, str]) -> Html | None:
    """Bars for the values of a parameter that took several."""
    by_value: dict[Value, list[Trial]] = defaultdict(list)
    for trial in trials:
        by_value[trial.config[parameter.name]].append(trial)
    if len(by_value) < 2:
        return None
    bars = []
    for value in (value for value in (None, *parameter.values) if value in by_value):
        found = by_value[value]
        counted = Counter(trial.status for trial in found if is_failure(trial))
        parts = [(kind, counted[status] / len(found)) for status, kind in kinds.items() if counted[status]]
        share = percent(counted.total() / len(found))
        bars.append(Bar("-" if value is None else value, parts, f"{share} of {len(found):,}"))
    return element("div", element("h5", parameter.name), bar_rows(bars), class_="group narrow")


def _messages(failed: Sequence[Trial]) -> Html:
    """The commonest messages; those that begin alike but for numbers are one, told by the commonest of them."""
    alike: dict[tuple[Status, str], Counter[str]] = defaultdict(Counter)
    for trial in failed:
        shape = re.sub(r"\d+", "0", trial.outcome.message)[:ALIKE_LENGTH]
        alike[trial.status, shape][trial.outcome.message] += 1
    ranked = sorted(alike.items(), key=lambda item: (-item[1].total(), item[0]))
    rows: list[list[Child]] = []
    for (status, _), messages in ranked[:MAX_MESSAGES]:
        message = messages.most_common(1)[0][0]
        short = message if len(message) <= MAX_MESSAGE_LENGTH else f"{message[:MAX_MESSAGE_LENGTH]}…"
        variants = f" and {count(len(messages) - 1, 'variant')} of it" if len(messages) > 1 else ""
        text = join(element("code", short), variants) if message else element("span", "no message", class_="muted")
        rows.append([f"{messages.total():,}", status, text])
    left_out = sum(messages.total() for _, messages in ranked[MAX_MESSAGES:])
    return join(
        table(["trials", "status", "message"], rows, numbers=frozenset({0}), caption="The commonest messages"),
        element("p", f"{count(left_out, 'trial')} with rarer messages not listed.", class_="note")
        if left_out
        else None,
    )
