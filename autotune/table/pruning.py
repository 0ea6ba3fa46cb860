"""Pruning of a store: rows that go by a rule, part by part; and what compacting saves."""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.registry import get_implementation
from autotune.table.order import in_order
from autotune.table.outsiders import Table
from autotune.table.parquet import encode
from autotune.table.parts import OnDamaged, Shelf
from autotune.table.store import Store
from autotune.table.winners import tie_set, winners
from autotune.trial import Stage, Status, Trial, median_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Rules of pruning; a row goes that any of them names.

    Attributes:
        outside: rows that are not of today's spaces.
        stale: rows of another source of their kernel than this tree's, or of another version of its library.
        failed: trials without a right result in time.
        keep: of each implementation, shape, device, policy and source, the fastest so many of the rows that were
            screened, and of each race; None: all. Winners stay whatever else goes, and what was served or is the
            default stays in its race.
    """

    outside: bool = False
    stale: bool = False
    failed: bool = False
    keep: int | None = None

    @property
    def name_something(self) -> bool:
        return self.outside or self.stale or self.failed or self.keep is not None


@dataclass(frozen=True, slots=True)
class Going:
    """The rows of an implementation on a device that pruning removes: counts by rule, and the winners among them.

    ``rows`` are those there before; ``held`` are parts that stay whole for their rows outside of today's space.
    """

    shelf: Shelf
    rows: int
    counts: dict[str, int]
    winners: tuple[Trial, ...]
    held: tuple[Path, ...]

    @property
    def total(self) -> int:
        return sum(self.counts.values())


def prune(store: Store, rules: Rules, on_damaged: OnDamaged, *, apply: bool = False) -> list[Going]:
    """Say which rows go by the rules; with ``apply`` rewrite the parts that have some.

    New parts are on disk before old ones go, so being killed loses no row that stays. A damaged part is reported and
    left as it is. Nothing else may write to the store meanwhile but ``append``.

    Raises:
        TableError: by ``on_damaged``; or a file cannot be written or removed.
    """
    found = []
    for shelf in store.shelves(on_damaged):
        tables = shelf.read(on_damaged)
        if not any(table.trials or table.outsiders for table in tables.values()):
            continue
        going = _decide(shelf, tables, rules)
        found.append(going)
        if apply and going.total:
            _rewrite(shelf, tables, rules)
    return found


def compact_store(store: Store, on_damaged: OnDamaged) -> list[tuple[Shelf, int, int]]:
    """Merge the small parts of a store and take snapshots; return each shelf with its parts before and after.

    Raises:
        TableError: by ``on_damaged`` for a folder that cannot be listed; a part is damaged, or a file cannot be
            written or removed. Nothing is lost.
    """
    found = []
    for shelf in store.shelves(on_damaged):
        before = len(shelf.parts(on_damaged))
        shelf.compact()  # without a part too, for a snapshot of one that was removed by hand
        if before:
            found.append((shelf, before, len(shelf.parts(on_damaged))))
    return found


def _decide(shelf: Shelf, tables: Mapping[Path, Table], rules: Rules) -> Going:
    trials = _every(tables)
    outsiders = [each for table in tables.values() for each in table.outsiders]
    held = () if rules.outside else tuple(path for path, table in tables.items() if table.outsiders)
    fixed = {trial for path in held for trial in tables[path].trials}
    going = {trial: rule for trial, rule in going_rows(trials, rules).items() if trial not in fixed}
    counts = Counter(going.values())
    if rules.outside:
        counts["outside"] = len(outsiders)
    return Going(
        shelf=shelf,
        rows=len(trials) + len(outsiders),
        counts={rule: count for rule, count in sorted(counts.items()) if count},
        winners=tuple(trial for trial in winners(trials) if trial in going),
        held=held,
    )


def _rewrite(shelf: Shelf, tables: Mapping[Path, Table], rules: Rules) -> None:
    """Write what stays of the parts that lose rows, and then remove these."""
    going = going_rows(_every(tables), rules)
    free = {path: table for path, table in tables.items() if rules.outside or not table.outsiders}
    losing = {path for path, table in free.items() if table.outsiders or not going.keys().isdisjoint(table.trials)}
    kept = [trial for path in losing for trial in tables[path].trials if trial not in going]
    written = {shelf.write(encode(in_order(kept), str(shelf.folder)))} if kept else set()
    for path in losing - written:
        shelf.remove(path)
    shelf.write_snapshot()


def _every(tables: Mapping[Path, Table]) -> list[Trial]:
    return in_order(itertools.chain.from_iterable(table.trials for table in tables.values()))


def going_rows(trials: Sequence[Trial], rules: Rules) -> dict[Trial, str]:
    """Return the rows that go, each with the rule that names it first."""
    found: dict[Trial, str] = {}
    for trial in trials:
        own = get_implementation(trial.operation, trial.implementation)
        if rules.stale and not own.is_source_of(trial):
            found[trial] = "stale"
        elif rules.failed and trial.status not in (Status.OK, Status.SLOW):
            found[trial] = "failed"
    if rules.keep is not None:
        found |= {trial: "loser" for trial in _losers(trials, rules.keep) if trial not in found}
    return found


def _losers(trials: Iterable[Trial], keep: int) -> Iterator[Trial]:
    groups: dict[tuple[object, ...], list[Trial]] = {}
    for trial in trials:
        if trial.timing is not None and trial.status in (Status.OK, Status.SLOW):
            problem = (trial.shape, trial.device, trial.policy, trial.executor)
            groups.setdefault((*problem, trial.stage, trial.race_id, trial.source_hash), []).append(trial)
    for rows in groups.values():
        beyond = sorted(rows, key=lambda trial: (median_us(trial), repr(trial)))[keep:]
        # The winner of every race stays: which race decides hangs on it.
        stays = tie_set(rows)[:1] if rows[0].stage is Stage.RACE else []
        yield from (trial for trial in beyond if not (trial in stays or trial.is_default or trial.is_served))
