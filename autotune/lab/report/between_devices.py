"""The report's table of how optima transfer: what a kernel loses with another kind of device's winner."""

from collections.abc import Sequence
from statistics import geometric_mean
from typing import Final

from autotune import sheets
from autotune.lab.drawing.markup import Html, element, join, left_out, table
from autotune.lab.report.screening import grouped, problem_text
from autotune.sheets import Sheet
from autotune.table.transfers import Transfer
from autotune.trial import Trial
from autotune.units import count_text

MAX_LISTED: Final = 200  # transfers in the table of shapes
UNKNOWN: Final = "unknown"


def kinds_of(winners: Sequence[Trial]) -> dict[tuple[str, str], list[str]]:
    """Return the names of the devices with winners, by operation and implementation, where there are several."""
    owners = grouped(winners, lambda winner: (winner.operation, winner.implementation))
    found = {owner: sorted({winner.device.name for winner in won}) for owner, won in owners.items()}
    return {owner: names for owner, names in found.items() if len(names) > 1}


def between_devices_section(winners: Sequence[Trial], transfers: Sequence[Transfer]) -> Html:
    """Return a table of each pair of kinds, and one of the shapes that were raced on both."""
    columns = (
        *(sheets.text(name) for name in ("implementation", "winners of", "on")),
        *(sheets.number(name) for name in ("raced on both", "same config")),
        *(sheets.text(name) for name in ("geometric mean", "worst")),
        sheets.number(UNKNOWN),
    )
    pairs = grouped(transfers, _pair)
    rows = [
        _pair_row(
            f"{operation}/{implementation}", source, target, pairs.get((operation, implementation, source, target), ())
        )
        for (operation, implementation), names in kinds_of(winners).items()
        for source in names
        for target in names
        if source != target
    ]
    note = (
        "A ratio is the time of the other kind's winner over that of the own one, both timed on this device together: "
        "1.05x loses 5 %. Other kinds' winners are only where a search begins; they are not served."
    )
    summary = table(Sheet("How optima transfer between devices", columns, tuple(rows)))
    return join(element("p", note, class_="note"), summary, _shapes(transfers))


def _pair(transfer: Transfer) -> tuple[str, str, str, str]:
    target = transfer.target
    return (target.operation, target.implementation, transfer.source.device.name, target.device.name)


def _pair_row(title: str, source: str, target: str, found: Sequence[Transfer]) -> tuple[object, ...]:
    known = [each.ratio for each in found if each.ratio is not None]
    same = sum(each.source.config == each.target.config for each in found)
    mean, worst = (f"{geometric_mean(known):.2f}x", f"{max(known):.2f}x") if known else (UNKNOWN, UNKNOWN)
    return (title, source, target, len(found), same, mean, worst, len(found) - len(known))


def _shapes(transfers: Sequence[Transfer]) -> Html | None:
    if not transfers:
        return element("p", "No shape was raced on two kinds of devices.", class_="muted")
    worst_first = sorted(transfers, key=lambda each: (each.ratio is None, -(each.ratio or 0.0)))
    columns = ("problem", "winners of", "on", "ratio", "from", "config", "own winner")
    rows = tuple(
        (
            f"{each.target.operation}/{each.target.implementation}: {problem_text(each.target)}",
            each.source.device.name,
            each.target.device.name,
            UNKNOWN if each.ratio is None else f"{each.ratio:.2f}x",
            each.reason,
            str(each.source.config),
            str(each.target.config),
        )
        for each in worst_first[:MAX_LISTED]
    )
    title = f"Shapes that were raced on both kinds ({count_text(len(transfers), 'transfer')})"
    listed = table(Sheet(title, tuple(map(sheets.text, columns)), rows))
    return join(listed, left_out(len(transfers) - len(rows), "more transfer", "not listed."))
