"""Winners as they are served, where several tables and implementations have one for a shape and device."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, get_args

from autotune.errors import TableError, UsageError
from autotune.registry import get_implementation, implementation_names
from autotune.table.parts import OnDamaged, raise_damaged
from autotune.table.roots import Origin, extra_roots
from autotune.table.shipped import shipped_winners
from autotune.table.store import Store, home, warn_open
from autotune.table.winners import ranked, winners
from autotune.trial import Trial

ORIGINS: Final[tuple[Origin, ...]] = get_args(Origin)


class Served(NamedTuple):
    """A winner, and whose table it stands in."""

    trial: Trial
    origin: Origin


def served_winners(
    operation: str,
    *,
    implementations: Sequence[str] | None = None,
    slug: str = "",
    root: Path | None = None,
    on_damaged: OnDamaged = raise_damaged,
) -> list[Served]:
    """Return a winner for each implementation, shape, device and policy; of one problem the best comes first.

    It is what ``served_of`` leaves of ``stored_winners``, which says what the arguments mean.
    """
    return served_of(
        stored_winners(operation, implementations=implementations, slug=slug, root=root, on_damaged=on_damaged)
    )


def served_of(rows: Iterable[Served]) -> list[Served]:
    """Choose what is served from stored winners of an operation, given in their order.

    Of an implementation that is what the user measured, else what stands in the site's tables, else in a package's,
    else what ships, else what was replayed. A row whose config is not valid for its own shape is left out. Each
    problem, a shape on a device by a policy, is decided by its own rows alone, so that rows of some shapes need not be
    judged for the answer to others.
    """
    problems: dict[tuple[object, ...], dict[str, Served]] = {}
    for row in rows:
        trial = row.trial
        if is_valid(trial):
            problem = problems.setdefault((trial.device, trial.shape, trial.policy), {})
            problem.setdefault(trial.implementation, row)
    return [row for problem in problems.values() for row in _ranked(list(problem.values()))]


def stored_winners(
    operation: str,
    *,
    implementations: Sequence[str] | None = None,
    slug: str = "",
    root: Path | None = None,
    on_damaged: OnDamaged = raise_damaged,
) -> list[Served]:
    """Return the winners of every table, valid or not, those first that go before others of the same problem.

    Nothing is read of other ``implementations`` than those named, of which there are all registered ones by default,
    nor of devices with another ``slug``, where one is given. ``root`` is the user's store, ``home()`` by default; those
    of ``extra_roots`` are read beside it.
    """
    names = implementation_names(operation) if implementations is None else implementations
    stores: list[tuple[Origin, Path]] = []
    try:
        stores.append(("user", root or home()))
    except TableError as error:  # an account without a home folder: what ships is served
        on_damaged(error)
    stores += [(origin, path) for origin, path, _ in extra_roots(on_damaged)]
    for _, path in stores:
        warn_open(path)
    rows = [
        Served(trial, origin)
        for origin, path in stores
        for trial in Store(path).winners(operation, implementations=names, slug=slug, on_damaged=on_damaged)
    ]
    shipped = [
        trial
        for name in names
        for trial in shipped_winners(operation, implementation=name, slug=slug or "*", on_damaged=on_damaged)
    ]
    rows += [Served(trial, "shipped") for trial in winners(shipped)]
    return sorted(rows, key=_precedence)


def is_valid(trial: Trial) -> bool:
    """Return True if a row's config is valid for the row's own shape by today's rules."""
    space = get_implementation(trial.operation, trial.implementation).space
    try:
        return space.reject(trial.config, trial.shape, trial.device) is None  # reading has checked names and values
    except UsageError:  # the architecture belongs to no vendor that is known here
        return False


def _ranked(rows: list[Served]) -> list[Served]:
    if len(rows) == 1:
        return rows
    served = {row.trial: row for row in rows}
    return [served[trial] for trial in ranked(served, lambda trial: _precedence(served[trial]))]


def _precedence(row: Served) -> int:
    place = ORIGINS.index(row.origin)
    return place if row.origin == "shipped" or row.trial.executor == "gpu" else place + len(ORIGINS)
