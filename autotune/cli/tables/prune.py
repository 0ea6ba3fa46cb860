"""``autotune tables prune``: rows of the user's tables that go by a rule."""

from dataclasses import asdict
from pathlib import Path

from autotune.cli.tables.paths import own_store
from autotune.console.command import command, integer, option
from autotune.console.options import json_option, tables_option
from autotune.console.output import make_console, print_json
from autotune.console.winners import trial_data
from autotune.errors import UsageError
from autotune.table import warn_damaged
from autotune.table.pruning import Going, Rules
from autotune.table.pruning import prune as prune_store
from autotune.units import count_text


@command("prune")
@option("--outside", is_flag=True, help="Rows that are not of today's spaces.")
@option("--stale", is_flag=True, help="Rows of another source of their kernel than this tree's.")
@option("--failed", is_flag=True, help="Trials without a right result.")
@option("--keep", metavar="N", type=integer(1), help="All but the N fastest of each screening and race.")
@option("--apply", "is_applied", is_flag=True, help="Drop them; without it they are only counted.")
@tables_option
@json_option
def prune(
    outside: bool, stale: bool, failed: bool, keep: int | None, is_applied: bool, tables: Path | None, as_json: bool
) -> None:
    """Count the rows of your tables that go by a rule, and with --apply drop them; shipped tables are never touched.

    --keep leaves every winner where it is. Other rules may take winners, which are named first.
    """
    rules = Rules(outside=outside, stale=stale, failed=failed, keep=keep)
    if not rules.name_something:
        raise UsageError("prune needs a rule; expected --outside, --stale, --failed or --keep N, several together too")
    store = own_store(tables, must_exist=True)
    found = prune_store(store, rules, warn_damaged, apply=is_applied)
    if as_json:
        print_json({"applied": is_applied, "rules": asdict(rules), "tables": list(map(_data, found))})
        return
    total = sum(each.total for each in found)
    left = sum(each.rows for each in found) - total
    ending = f"{count_text(total, 'row')} of {total + left:,}"
    ending = f"dropped {ending}" if is_applied else f"would drop {ending}{'; --apply does it' if total else ''}"
    make_console().print(*(line for each in found for line in _lines(each)), ending, sep="\n")


def _lines(going: Going) -> list[str]:
    shelf = going.shelf
    title = f"{shelf.operation}/{shelf.implementation} on {shelf.device.name}"
    lines = []
    if going.total:
        counts = ", ".join(f"{count:,} {rule}" for rule, count in going.counts.items())
        lines.append(f"{title}: {counts} of {count_text(going.rows, 'row')}")
    lines += [f"  a winner goes: {trial.shape}: {trial.config}" for trial in going.winners]
    if going.held:
        files = count_text(len(going.held), "file")
        lines.append(f"{title}: {files} left whole for rows outside of today's space; --outside drops these")
    return lines


def _data(going: Going) -> dict[str, object]:
    return {
        "operation": going.shelf.operation,
        "implementation": going.shelf.implementation,
        "device": going.shelf.device.name,
        "rows": going.rows,
        "going": going.counts,
        "winners": [trial_data(trial) for trial in going.winners],
        "held": [str(path) for path in going.held],
    }
