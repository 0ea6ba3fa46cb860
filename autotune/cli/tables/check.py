"""``autotune tables check``: a build fails on tables that are damaged, stale or slower than they could be."""

import os
from pathlib import Path
from typing import Any

from autotune.cli.tables.paths import require_there
from autotune.console.command import command, option
from autotune.console.options import PATH, json_option, parse_share
from autotune.console.output import make_console, print_json
from autotune.console.winners import trial_data
from autotune.errors import AutotuneError, TableError
from autotune.table import home
from autotune.table.audit import Fault, audit
from autotune.table.parts import OnDamaged
from autotune.units import count_text

USUAL_SHARE = "5%"


@command("check")
@option("--against", metavar="FOLDER", type=PATH, required=True, help="Folder of tables to check, such as results/.")
@option(
    "--races",
    metavar="FOLDER",
    type=PATH,
    multiple=True,
    help="Tables with newer races; may be repeated.",
    default_text="$AUTOTUNE_HOME, where there is one",
)
@option("--slower", metavar="PERCENT", default=USUAL_SHARE, help="Loss in a newer race that fails, in percent.")
@json_option
def check(against: Path, races: tuple[Path, ...], slower: str, as_json: bool) -> None:
    """Fail with the reason on tables that this tree or newer races contradict; needs no GPU.

    It fails on a file that is damaged or foreign, or missing where a SHA256SUMS names it, on a winner whose kernel's
    source has changed since, and on a winner that took more than --slower longer than a rival in a newer race, with
    intervals apart. Newer races are those of the tables themselves and of --races; without it your own tables are
    read, of which damage is told and fails nothing. Recorded sweeps and grids may be older.
    """
    share = parse_share(slower, "slower")
    require_there("against", against)
    require_there("races", *races)
    unread: list[TableError] = []
    if races:
        found = audit(against, races, slower=share)
    else:  # what a user has beside is no part of what is checked
        found = audit(against, _own_races(against, unread.append), slower=share, on_damaged_race=unread.append)
    if as_json:
        data: dict[str, Any] = {"winners": len(found.winners), "newer_races": found.races}
        print_json({**data, "faults": list(map(_data, found.faults)), "unread": list(map(str, unread))})
    else:
        winners, newer = count_text(len(found.winners), "winner"), count_text(found.races, "newer race")
        told = [f"newer races not read: {' '.join(str(error).split())}" for error in unread]
        make_console().print(*map(_line, found.faults), *told, f"checked {winners} against {newer}", sep="\n")
    if found.faults:
        first = found.faults[0]
        where = "" if first.winner is None else f"{against}: "  # a reason without a winner names its file
        raise AutotuneError(f"{where}{count_text(len(found.faults), 'fault')}, the first is {_line(first)}")
    if not found.winners:
        raise AutotuneError(f"{against}: no winners there; expected a folder of tables")


def _own_races(against: Path, on_damaged: OnDamaged) -> tuple[Path, ...]:
    """Return the user's own store, unless it is what is checked or there is none."""
    try:
        own = home()
    except TableError as error:  # an account without a home folder
        on_damaged(error)
        return ()
    return (own,) if os.path.isdir(own) and own.resolve() != against.resolve() else ()


def _line(fault: Fault) -> str:
    winner = fault.winner
    reason = " ".join(fault.reason.split())
    if winner is None:
        return f"{fault.kind}: {reason}"
    where = f"{winner.operation}/{winner.implementation}, {winner.shape}, {winner.device.name}"
    return f"{fault.kind}: {where}: {reason}"


def _data(fault: Fault) -> dict[str, Any]:
    winner = None if fault.winner is None else trial_data(fault.winner)
    return {"kind": fault.kind, "reason": fault.reason, "winner": winner}
