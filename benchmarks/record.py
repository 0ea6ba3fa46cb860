"""Record the tables of ``results/`` on the GPU here: ``python -m benchmarks.record winners``, ``sweeps`` or ``grid``.

The problems are those of ``benchmarks.shipped_problems``, of flash attention unless ``--operation`` names another. All
implementations of ours that support a problem meet in its race, unless ``--implementation`` names some; a sweep is of
one, of Triton by default. A recording may be split over several runs by ``--only``, ``--head-dim``, ``--part``
and ``--missing``: every result is written as it comes, and tables that are there already are merged with.

``grid`` measures the model shapes of ``benchmarks.model_grid``, of all operations unless one is named, some seconds
each: what portfolios and expected regrets are computed from. It stops in time and goes on where it stopped::

    python -m benchmarks.record grid --missing --minutes 9 --store $OUT/store --results $OUT/results

Runs at the same time need a GPU and a ``--results`` each, since a table has one writer; a ``--store`` they may share,
and so learn from each other. ``benchmarks.merge`` then adds their tables to ``results/``. On all GPUs of a host::

    python -m benchmarks.every_gpu record winners --implementation flex --results $OUT/{gpu} --store $OUT/store
    python -m benchmarks.merge $OUT/*
"""

import argparse
import contextlib
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from autotune import platforms
from autotune.errors import AutotuneError
from autotune.executor.select import Settings, open_gpu
from autotune.implementation import Implementation
from autotune.operation import Operation
from autotune.registry import get_implementation, get_operation, implementation_names, our_implementations
from autotune.search import DEFAULT_SAMPLER, SAMPLERS, Observer, Sampler, SearchResult
from autotune.shape import Shape
from autotune.table import Store, home, shipped_winners
from autotune.trial import Trial
from autotune.tuning import TunedShape, tune
from autotune.tuning.workloads import find_implementations
from benchmarks.console import parse_count, parse_duration, require_gpu
from benchmarks.merge import RESULTS, add_winners
from benchmarks.model_grid.problems import GridCell, in_order
from benchmarks.model_grid.recording import GridRecording
from benchmarks.problem_parts import cut, deal, parse_part
from benchmarks.shipped_problems import OPERATION, SWEEPS, TRITON, WINNERS, Cell
from benchmarks.user_tables import tables_in

CellT = TypeVar("CellT", Cell, GridCell)
OPERATIONS = sorted({title.split("/")[0] for title in WINNERS})
WINNER_SECONDS = 20.0
IN_PLACE_SECONDS = 240.0  # where the worker compiles, one config after the other: some 50 of 4 s and the race


class TimeIsUpError(Exception):
    """The deadline of a recording has come; its measurements are kept."""


@dataclass
class Shipping(Observer):
    """Ships winners as they come, prints results, and ends the recording at its deadline."""

    results: Path
    store: Store
    is_sweep: bool
    seconds: float  # that a search needs to begin
    deadline: float | None  # ``time.monotonic()`` after which nothing is measured any more
    done: int = 0

    def on_start(
        self, operation: Operation[Any], shape: Shape, *, valid: Mapping[str, int], resumed: int, best: Trial | None
    ) -> None:
        self._require_time(0.0 if self.is_sweep else self.seconds)

    def on_trial(self, trial: Trial) -> None:
        if self.is_sweep:
            self._require_time(0.0)

    def on_result(self, result: SearchResult, *, is_asked: bool) -> None:
        self.done += 1
        name, tried = result.operation.name, result.measured + result.resumed
        print(TunedShape(operation=name, asked=result.shape, shape=result.shape, search=result))
        print(f"  {tried} of {result.valid} configs tried in {result.seconds:.0f} s, until {result.ending}", flush=True)

    def on_saved(self, result: SearchResult, folder: Path) -> None:
        if not self.is_sweep and result.winner is not None:
            name = result.operation.name
            add_winners(name, self.store.trials(name, result.winner.device), self.results)

    def on_failure(self, shape: Shape, error: AutotuneError) -> None:
        self.done += 1
        print(f"{shape}: failed, {error}", flush=True)

    def _require_time(self, seconds: float) -> None:
        if self.deadline is not None and self.deadline - time.monotonic() < seconds:
            raise TimeIsUpError


@dataclass(frozen=True)
class TableRecording:
    """Records problems of one operation, until a deadline; ``home()`` holds its trials."""

    operation: str
    results: Path  # of the tables that ship
    names: Sequence[str] = ()  # of the implementations that meet in a race; all of ours that support the shape
    seconds: float = WINNER_SECONDS  # the budget of each search
    sampler: Sampler = DEFAULT_SAMPLER  # of winners; sweeps are exhaustive
    deadline: float | None = None  # as of ``Shipping``

    def missing(self, cells: Sequence[Cell]) -> list[Cell]:
        """Return the problems for which an implementation has no winner of its source on the device here."""
        here, toolchain, operation = platforms.current_device(), platforms.toolchain(), get_operation(self.operation)
        done = {
            (trial.shape, trial.implementation, trial.source_hash)
            for trial in shipped_winners(self.operation, results=self.results)
            if trial.device == here
        }
        return [
            cell
            for cell in cells
            if not all(
                (cell.shape, each.name, each.source_hash_under(toolchain)) in done
                for each in find_implementations(operation, cell.shape, here, self.names)
            )
        ]

    def record(self, cells: Sequence[Cell], *, is_sweep: bool = False) -> bool:
        """Search each problem and merge its winners into the shipped tables; return True if none failed or is left.

        A sweep measures every valid config of each problem instead, and ships complete: over the same store, a later
        run continues one that the deadline cuts short.
        """
        operation, store = get_operation(self.operation), Store(home())
        shipping = Shipping(self.results, store, is_sweep, self.seconds, self.deadline)
        try:
            found = tune(
                [(operation, cell.shape) for cell in cells],
                implementations=self.names,
                budget=None if is_sweep else self.seconds,
                trials=None,
                sampler="exhaustive" if is_sweep else self.sampler,
                settings=Settings(early_stop=not is_sweep),
                store=store,
                observer=shipping,
                must_measure=True,
                ship_to=self.results if is_sweep else None,
            )
        except TimeIsUpError:
            print(f"time is up: {len(cells) - shipping.done} of {len(cells)} are left")
            return False
        except AutotuneError as error:  # of the only problem
            if len(cells) > 1:
                raise
            shipping.on_failure(cells[0].shape, error)
            return False
        return not (found.failures or found.interrupted)


def named_implementations(operation: str, names: Sequence[str]) -> list[Implementation[Any]]:
    """Return the implementations of these names, all of ours where there is none."""
    return [get_implementation(operation, name) for name in names] or our_implementations(operation)


def problems_of(implementations: Sequence[Implementation[Any]], *, is_sweep: bool) -> list[Cell]:
    """Return the problems of implementations, each shape once."""
    every = SWEEPS if is_sweep else WINNERS
    return list({cell.shape: cell for each in implementations for cell in every.get(each.title, ())}.values())


def seconds_of(implementations: Sequence[Implementation[Any]]) -> float:
    return WINNER_SECONDS if all(each.compiles_ahead for each in implementations) else IN_PLACE_SECONDS


def choose(cells: Sequence[CellT], only: Sequence[str], head_dims: Sequence[int]) -> list[CellT]:
    """Return the problems whose text has one of these parts, and whose head dimension is one of these; of none, all."""
    return [
        cell
        for cell in cells
        if (not only or any(part.lower() in str(cell).lower() for part in only))
        and (not head_dims or cell.shape.as_dict()["head_dim"] in head_dims)
    ]


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.record",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=("winners", "sweeps", "grid"))
    parser.add_argument("--operation", choices=OPERATIONS, help=f"[default: {OPERATION}; of a grid all]")
    parser.add_argument(
        "--implementation",
        action="append",
        default=[],
        metavar="NAME",
        help="measured, and raced with the others named; may be repeated [default: all of ours]",
    )
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="problems with this in their text")
    parser.add_argument(
        "--head-dim", type=parse_count, action="append", default=[], help="problems of this head dimension"
    )
    parser.add_argument("--part", type=parse_part, default=(1, 1), metavar="I/N", help="the I-th of N parts of these")
    left = parser.add_mutually_exclusive_group()
    left.add_argument("--missing", action="store_true", help="what is not there yet, of this source")
    left.add_argument("--untimed", action="store_true", help="of a grid, what is there without its default of today")
    parser.add_argument("--list", action="store_true", help="only list the problems; needs no GPU")
    parser.add_argument(
        "--seconds",
        type=parse_duration,
        help=f"the budget of each winner [default: {WINNER_SECONDS:g}; {IN_PLACE_SECONDS:g} of flex]",
    )
    parser.add_argument(
        "--sampler", choices=SAMPLERS, default=DEFAULT_SAMPLER, help="of winners; exhaustive where binaries are shared"
    )
    parser.add_argument("--minutes", type=parse_duration, help="begin nothing that would end later; cuts a sweep short")
    parser.add_argument("--store", type=Path, help="keep the trials here, and continue from them")
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the arguments, and refuse those that do not go together."""
    parser = make_parser()
    given = parser.parse_args(arguments)
    if given.list and (given.missing or given.untimed):
        parser.error("--list lists every problem, for which it needs no GPU; what is missing is known on one")
    if given.what != "grid":
        given.operation = given.operation or OPERATION
        if given.untimed:
            parser.error(f"--untimed is of a grid, not of {given.what}")
    if given.what == "sweeps":
        given.implementation = given.implementation or [TRITON]
        if len(given.implementation) > 1:
            parser.error(f"a sweep is of one implementation, got {', '.join(given.implementation)}")
    names = [each for each in OPERATIONS if given.operation in (None, each)]
    known = {name for each in names for name in implementation_names(each)}
    if given.what == "grid":
        known = {each.name for name in OPERATIONS for each in our_implementations(name)}
    if strange := set(given.implementation) - known:
        parser.error(f"--implementation {', '.join(sorted(strange))} is unknown; expected {', '.join(sorted(known))}")
    return given


def record_grid(arguments: argparse.Namespace, deadline: float) -> bool:
    """Record the grid, or the part of it that was asked for; return True if none failed or is left."""
    every = in_order(arguments.operation)
    cells = deal(choose(every, arguments.only, arguments.head_dim), arguments.part)
    if not cells:
        sys.exit(f"benchmarks.record: none of {len(every)} problems is as --only, --head-dim and --part want it")
    if arguments.list:
        print(*cells, f"{len(cells)} of {len(every)} problems", sep="\n")
        sys.exit(0)
    require_gpu("record")
    with contextlib.closing(open_gpu(Settings())) as executor, kept_in(arguments.store) as store:
        recording = GridRecording(executor, store, arguments.results, deadline, names=arguments.implementation)
        supported = recording.supported(cells)
        chosen = recording.missing if arguments.missing else recording.untimed if arguments.untimed else list
        return bool(supported) and recording.record(chosen(supported))


@contextlib.contextmanager
def kept_in(folder: Path | None) -> Iterator[Store]:
    """Make a store in a folder, or in a temporary one, stand for the user's tables.

    A search begins from stored winners of like shapes: the user's own must not decide what ships.
    """
    with tables_in(folder):
        yield Store(home())


def main() -> None:
    started, arguments = time.monotonic(), parse()
    deadline = None if arguments.minutes is None else started + 60 * arguments.minutes
    if arguments.what == "grid":
        sys.exit(0 if record_grid(arguments, math.inf if deadline is None else deadline) else 1)
    is_sweep = arguments.what == "sweeps"
    implementations = named_implementations(arguments.operation, arguments.implementation)
    every = problems_of(implementations, is_sweep=is_sweep)
    cells = cut(choose(every, arguments.only, arguments.head_dim), arguments.part)
    if not cells:
        sys.exit(f"benchmarks.record: none of {len(every)} problems is as --only, --head-dim and --part want it")
    if arguments.list:
        print(*cells, f"{len(cells)} of {len(every)} problems", sep="\n")
        sys.exit(0)
    require_gpu("record")
    with kept_in(arguments.store):
        recording = TableRecording(
            arguments.operation,
            arguments.results,
            names=arguments.implementation,
            seconds=seconds_of(implementations) if arguments.seconds is None else arguments.seconds,
            sampler=arguments.sampler,
            deadline=deadline,
        )
        if arguments.missing and not is_sweep:
            cells = recording.missing(cells)
        complete = recording.record(cells, is_sweep=is_sweep)
    sys.exit(0 if complete else 1)


if __name__ == "__main__":
    main()
