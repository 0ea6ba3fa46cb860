"""Checks of a table of winners for a build: damaged files, kernels that changed since, and winners that lost a race."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from autotune.errors import TableError
from autotune.registry import get_implementation
from autotune.table.computed import read_computed
from autotune.table.listed import check_listed
from autotune.table.parts import OnDamaged
from autotune.table.regrets import races_of
from autotune.table.vouched import TableFile, read_files, trials_of
from autotune.table.winners import ranked, winners
from autotune.trial import Stage, Status, Trial
from autotune.units import count_text, percent_text

SLOWER: Final = 0.05  # a winner that takes this much longer than a rival in a newer race fails

FaultKind = Literal["damaged", "stale", "slower"]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a table, its reason, and the winner that has it; None of a file that cannot be read."""

    kind: FaultKind
    reason: str
    winner: Trial | None = None


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of a check: the winners that were read, how many races of their problems are newer, and the faults."""

    winners: tuple[Trial, ...]
    races: int
    faults: tuple[Fault, ...]


def audit(
    table: Path, races: Iterable[Path] = (), *, slower: float = SLOWER, on_damaged_race: OnDamaged | None = None
) -> Audit:
    """Check the winners of a table, a store or a folder of tables that ship, against this tree and newer races.

    A file is damaged that is not what its name or list says, foreign, or missing where a list names it.

    A winner is stale whose row is not of this tree's source of its kernel; it is slower where it took more than
    ``slower`` longer than a rival, with intervals apart, in a race that is newer than its own: of all of its
    implementation, and of the winner that is served also of others that are ours. Races are those of the table and of
    the tables in ``races``, where another process did not disturb them. ``on_damaged_race`` is called with the error of
    each file of ``races`` that cannot be read; without it that is a fault too.
    """
    damaged: list[TableError] = []
    files = list(read_files([table], damaged.append))
    if table.is_dir():
        deque(read_computed(table, damaged.append), maxlen=0)
        check_listed(table, damaged.append)
    own = trials_of(file for file in files if not file.is_recording)
    every = trials_of([*files, *read_files(races, on_damaged_race or damaged.append)])
    problems = _by_problem(winners(own))
    raced = _by_problem(row for row in every if row.stage is Stage.RACE and row.executor == "gpu")
    found = [Fault("damaged", text) for text in dict.fromkeys(map(str, damaged))]
    found += [Fault("stale", reason) for file in files if (reason := _why_outside(file)) is not None]
    every_newer: set[tuple[object, str]] = set()
    for problem, rows in problems.items():
        in_order = ranked(rows)
        newer = [race for race in races_of(raced.get(problem, ())) if not any(map(_is_disturbed, race))]
        for winner in in_order:
            if not get_implementation(winner.operation, winner.implementation).is_source_of(winner):
                found.append(Fault("stale", _why_stale(winner), winner))
            later = [race for race in newer if _is_newer(race, winner)]
            every_newer |= {(problem, race[0].race_id) for race in later}
            if (reason := _why_slower(winner, later, slower, is_served=winner is in_order[0])) is not None:
                found.append(Fault("slower", reason, winner))
    return Audit(tuple(row for rows in problems.values() for row in rows), len(every_newer), tuple(found))


def _why_outside(file: TableFile) -> str | None:
    """Return why a table has winners that are of no space of this tree, or None; a recording may be older."""
    won = [each for each in file.table.outsiders if each.columns["stage"] == Stage.RACE]
    if not won or file.is_recording:
        return None
    return f"{file.path}: {count_text(len(won), 'raced row')} not of today's space: {won[0].reason}"


def _by_problem(trials: Iterable[Trial]) -> dict[tuple[object, ...], list[Trial]]:
    problems: dict[tuple[object, ...], list[Trial]] = {}
    for trial in trials:
        problems.setdefault((trial.operation, trial.shape, trial.device, trial.policy), []).append(trial)
    return problems


def _is_disturbed(row: Trial) -> bool:
    return row.outcome.conditions.contended


def _is_newer(race: Sequence[Trial], winner: Trial) -> bool:
    return race[0].race_id != winner.race_id and max(row.started_at for row in race) > winner.started_at


def _why_stale(winner: Trial) -> str:
    own = get_implementation(winner.operation, winner.implementation)
    if own.library is not None:
        return f"measured with another {own.library} than its row names"
    now = own.source_hash_under(winner.toolchain)
    return f"the kernel changed: measured with source {winner.source_hash[:12]}, here it is {now[:12]}"


def _why_slower(winner: Trial, races: Sequence[Sequence[Trial]], slower: float, *, is_served: bool) -> str | None:
    """Return the reason of the newest race that the winner lost by more than is allowed, or None."""
    for race in sorted(races, key=lambda rows: max(row.started_at for row in rows), reverse=True):
        timed = [(row, row.timing) for row in race if row.status is Status.OK and row.timing is not None]
        own = next((timing for row, timing in timed if row.candidate == winner.candidate), None)
        if own is None:
            continue
        rivals = [each for each in timed if _is_rival(each[0], winner, is_served=is_served)]
        rival, best = min(rivals, key=lambda each: each[1].median_us, default=(winner, own))
        loss = own.median_us / best.median_us - 1.0
        if loss <= slower or own.overlaps(best):
            return None  # the newest race decides
        return (
            f"{winner.candidate} took {percent_text(loss)} longer than {rival.candidate} in the newer race "
            f"{race[0].race_id} ({own.median_us:.4g} us against {best.median_us:.4g} us, {rival.started_at:%Y-%m-%d})"
        )
    return None


def _is_rival(row: Trial, winner: Trial, *, is_served: bool) -> bool:
    if row.implementation == winner.implementation:
        return True
    return is_served and get_implementation(row.operation, row.implementation).is_ours
