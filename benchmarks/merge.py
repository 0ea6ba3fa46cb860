"""Add the tables of several recordings to those that ship: ``python -m benchmarks.merge FOLDER...``; needs no GPU.

A folder is one that ``benchmarks.record --results`` named. Of each problem the newest race decides, of two sweeps of
one problem the newer is kept, and grids keep all trials: neither the order of the folders nor merging one twice makes a
difference. The trials of a ``--store``, as ``benchmarks.served_regret --drawn`` keeps one, join the grids, and their
winners the others, as far as a GPU measured them by the usual policy and of today's source.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from autotune.errors import TableError
from autotune.registry import operation_names, our_implementations
from autotune.table import Store, grid_path, shipped_grid, shipped_sweeps, shipped_winners, winners, write_shipped
from autotune.trial import Policy, Trial

RESULTS = Path(__file__).resolve().parent.parent / "results"


def add_winners(operation: str, trials: Iterable[Trial], results: Path) -> None:
    """Add the winners among trials to the tables of their devices and implementations below ``results``."""
    rows = list(trials)
    found = winners([*shipped_winners(operation, results=results), *rows])
    for slug, name in sorted({(trial.device.slug, trial.implementation) for trial in rows}):
        here = [trial for trial in found if (trial.device.slug, trial.implementation) == (slug, name)]
        write_shipped(Path(slug) / operation / f"{name}.parquet", here, results=results)


def add_sweeps(operation: str, sources: Sequence[Path], results: Path) -> int:
    """Copy the sweeps of other folders, unless a newer one of the same name is there; return how many were found."""
    newest = {sweep.path: sweep.trials() for sweep in shipped_sweeps(operation, results=results)}
    found = [sweep for source in sources for sweep in shipped_sweeps(operation, results=source)]
    for sweep in found:
        trials = sweep.trials()
        if sweep.path not in newest or trials[-1].started_at > newest[sweep.path][-1].started_at:
            newest[sweep.path] = trials
            write_shipped(sweep.path, trials, results=results)
    return len(found)


def add_grid(operation: str, trials: Iterable[Trial], results: Path) -> None:
    """Add trials to the grids of their devices and implementations below ``results``."""
    rows = list(trials)
    places = {grid_path(trial) for trial in rows}
    every = [*shipped_grid(operation, results=results), *rows]
    for path in sorted(places):
        write_shipped(path, [trial for trial in every if grid_path(trial) == path], results=results)


def stored(operation: str, store: Path) -> list[Trial]:
    """Return the trials of a store that may ship: of implementations of ours, not of those that a user registered."""
    sources = {each.name: each.source_hash for each in our_implementations(operation)}
    return [
        trial
        for trial in Store(store).trials(operation)
        if (trial.executor, trial.policy) == ("gpu", Policy())
        and trial.source_hash == sources.get(trial.implementation)
    ]


def merge(sources: Sequence[Path], results: Path, stores: Sequence[Path] = ()) -> list[str]:
    """Add the tables of other folders and the trials of stores, up to a damaged one (TableError); return a line for
    each operation found."""
    lines = []
    for operation in operation_names():
        searched = [trial for store in stores for trial in stored(operation, store)]
        rows = [trial for source in sources for trial in shipped_winners(operation, results=source)]
        add_winners(operation, [*rows, *searched], results)
        swept = add_sweeps(operation, sources, results)
        grid = [trial for source in sources for trial in shipped_grid(operation, results=source)] + searched
        add_grid(operation, grid, results)
        if rows or swept or grid:
            of_grid = f", a grid of {len({trial.shape for trial in grid})} problems" if grid else ""
            lines.append(f"{operation}: {len(rows)} winners, {swept} sweeps{of_grid}")
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.merge", description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    parser.add_argument(
        "--store", action="append", default=[], type=Path, help="trials that join the grids and the winners"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="what they are added to [default: results/]")
    given = parser.parse_args(arguments)
    sources = [*given.folders, *given.store]
    strange = [str(folder) for folder in sources if not folder.is_dir()]
    if strange:
        parser.error(f"{', '.join(strange)} is no folder; expected one that --results or --store of a benchmark named")
    if not sources:
        parser.error("nothing to add; expected a FOLDER or a --store")
    try:
        lines = merge(given.folders, given.results, given.store)
    except TableError as error:
        sys.exit(f"benchmarks.merge: {error}")
    if not lines:
        sys.exit(f"benchmarks.merge: no table in {', '.join(map(str, sources))}")
    print(*lines, f"merged into {given.results}", sep="\n")


if __name__ == "__main__":
    main()
