"""``autotune tables diff``: which winners moved between two tables, and by how much."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.cli.tables.paths import refused_lines, require_there, table_arguments
from autotune.console.command import command
from autotune.console.options import json_option
from autotune.console.output import make_console, print_json
from autotune.console.winners import trial_data
from autotune.errors import TableError
from autotune.table.difference import Difference, differences
from autotune.table.vouched import read_files
from autotune.units import count_text, percent_text, short_time_text


@command("diff")
@table_arguments("paths", "OLD NEW", 2)
@json_option
def diff(paths: tuple[Path, Path], as_json: bool) -> None:
    """Compare the winners of two folders of tables: which were added, removed, moved or measured again.

    How much a winner that moved gains is said where one race measured both configs; times of different races are not
    compared. The exit code is 0, differences or none, and 1 where a file could not be read: winners that stand on the
    other side alone are then left out, since that file may have them.
    """
    require_there("tables", *paths)
    unread: tuple[list[TableError], list[TableError]] = ([], [])
    old, new = (list(read_files([path], errors.append)) for path, errors in zip(paths, unread, strict=True))
    every, refused = differences(old, new), [*unread[0], *unread[1]]
    doubtful = [change for change, errors in zip(("added", "removed"), unread, strict=True) if errors]
    found = [each for each in every if each.change not in doubtful]
    left_out = [each for each in every if each.change in doubtful]
    if as_json:
        data = {"differences": list(map(_data, found)), "left_out": len(left_out)}
        print_json({**data, "refused": list(map(str, refused))})
    else:
        lines = [*map(difference_line, found), *refused_lines(refused)]
        make_console().print(*lines, summary_line(found, left_out), sep="\n")
    if refused:
        raise TableError(f"{count_text(len(refused), 'file')} could not be read, the first is {refused[0]}")


def summary_line(found: Sequence[Difference], left_out: Sequence[Difference] = ()) -> str:
    """Count the differences by their kinds; ``left_out`` are those that a file which was not read may undo."""
    counted = _count(found) or ("nothing else differs" if left_out else "the winners are the same")
    if not left_out:
        return counted
    return f"{counted}; left out, as the files that could not be read may have them: {_count(left_out)}"


def _count(found: Sequence[Difference]) -> str:
    changes = [each.change for each in found]
    return ", ".join(f"{changes.count(change)} {change}" for change in dict.fromkeys(changes))


def difference_line(difference: Difference) -> str:
    """Return which winner differs, and how."""
    trial = difference.trial
    where = f"{trial.operation}/{trial.implementation}, {trial.shape}, {trial.device.name}"
    before, after = difference.before, difference.after
    if before is None or after is None:
        assert trial.timing is not None
        return f"{difference.change}: {where}: {trial.config} ({short_time_text(trial.timing.median_us)})"
    if difference.change == "measured again":
        return f"{difference.change}: {where}: {after.config}, {after.started_at:%Y-%m-%d}"
    return f"moved: {where}: {before.config} -> {after.config}: {_gain(difference)}"


def _gain(difference: Difference) -> str:
    race = difference.race
    if race is None:
        return "not raced together"
    before, after = (short_time_text(timing.median_us) for timing in (race.before, race.after))
    if race.before.overlaps(race.after):
        return f"level in race {race.race_id} ({before}, {after})"
    word = "faster" if race.gain > 0 else "slower"
    return f"{percent_text(abs(race.gain))} {word} in race {race.race_id} ({before}, {after})"


def _data(difference: Difference) -> dict[str, Any]:
    race = difference.race
    return {
        "change": difference.change,
        "before": None if difference.before is None else trial_data(difference.before),
        "after": None if difference.after is None else trial_data(difference.after),
        "race": None if race is None else {"race_id": race.race_id, "before": race.before, "after": race.after},
        "gain": None if race is None else race.gain,
    }
