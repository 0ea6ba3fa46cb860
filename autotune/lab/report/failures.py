"""Failures: the share of configs by parameter value and status, and the commonest messages."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from autotune import sheets
from autotune.lab.drawing.bars import Bar, bar_rows, legend
from autotune.lab.drawing.markup import Html, element, figure, join, left_out, table
from autotune.lab.report.screening import RIGHT, grouped
from autotune.sheets import Sheet
from autotune.space import Parameter
from autotune.trial import Status, Trial
from autotune.units import count_text, percent_text

MAX_MESSAGES: Final = 8
MAX_MESSAGE_LENGTH: Final = 300
ALIKE_LENGTH: Final = 100  # messages that begin alike are one: further on stand temporary paths and stacks
COLOURS: Final = 5  # the commonest statuses have one each, the others share the last


def is_failure(trial: Trial) -> bool:
    """Return True if a config has no right time; one that was stopped early has one."""
    return trial.status not in RIGHT


def failed_share(screened: Sequence[Trial]) -> float:
    """Return the share of screened configs that failed, races left out; every part of the page shows this one."""
    return sum(map(is_failure, screened)) / len(screened)


def failures_section(parameters: Iterable[Parameter], screened: Sequence[Trial], raced: Sequence[Trial] = ()) -> Html:
    """Return the failure map of screened configs of one space on one device, and the messages of races, too."""
    failed, late = (list(filter(is_failure, trials)) for trials in (screened, raced))
    configs = count_text(len(screened), "screened config")
    share = f"{len(failed):,} of {configs} failed ({percent_text(failed_share(screened))})"
    races = f"; {count_text(len(late), 'trial')} of races did" if late else ""
    summary = element("p", f"{share if failed else f'None of {configs} failed'}{races}.")
    if not failed:
        return join(summary, _messages(late) if late else None)
    totals = Counter(trial.status for trial in failed).most_common()
    kinds = {status: f"status-{min(index, COLOURS - 1)}" for index, (status, _) in enumerate(totals)}
    maps = [_map(parameter, screened, kinds) for parameter in parameters]
    drawing = figure(
        "Failure map: share of the configs of each value that failed, by status",
        None,
        legend((kinds[status], f"{status} ({count:,})") for status, count in totals),
        element("div", *maps, class_="columns"),
    )
    return join(summary, drawing, _messages([*failed, *late]))


def _map(parameter: Parameter, trials: Sequence[Trial], kinds: Mapping[Status, str]) -> Html | None:
    by_value = grouped(trials, lambda trial: trial.config[parameter.name])
    if len(by_value) < 2:
        return None
    bars = []
    for value in (None, *parameter.values):
        if found := by_value.get(value):
            counted = Counter(trial.status for trial in found if is_failure(trial))
            parts = [(kind, counted[status] / len(found)) for status, kind in kinds.items() if counted[status]]
            share = percent_text(counted.total() / len(found))
            bars.append(Bar("-" if value is None else value, parts, f"{share} of {len(found):,}"))
    return element("div", element("h5", parameter.name), bar_rows(bars), class_="group narrow")


def _messages(failed: Sequence[Trial]) -> Html:
    """List the commonest messages; those that begin alike but for numbers are one, shown by the commonest of them."""

    def beginning(trial: Trial) -> tuple[Status, str]:
        return trial.status, re.sub(r"\d+", "0", trial.outcome.message)[:ALIKE_LENGTH]

    ranked = sorted(grouped(failed, beginning).items(), key=lambda item: (-len(item[1]), item[0]))
    rows = []
    for (status, _), trials in ranked[:MAX_MESSAGES]:
        messages = Counter(trial.outcome.message for trial in trials)
        message = messages.most_common(1)[0][0]
        short = message if len(message) <= MAX_MESSAGE_LENGTH else f"{message[:MAX_MESSAGE_LENGTH]}…"
        variants = f" and {count_text(len(messages) - 1, 'variant')} of it" if len(messages) > 1 else ""
        text = join(element("code", short), variants) if message else element("span", "no message", class_="muted")
        rows.append((len(trials), str(status), text))
    columns = (sheets.number("trials"), sheets.text("status"), sheets.text("message"))
    rare = sum(len(trials) for _, trials in ranked[MAX_MESSAGES:])
    listed = table(Sheet("The commonest messages", columns, tuple(rows)))
    return join(listed, left_out(rare, "trial", "with rarer messages not listed."))
