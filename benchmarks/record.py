"""Records what ships in ``results/`` on the GPU here: ``python -m benchmarks.record winners`` or ``sweeps``.

The problems are those of ``benchmarks.grids``, of flash attention unless ``--operation`` names another. A recording may
be split over several runs by ``--only``, ``--head-dim``, ``--part`` and ``--missing``: every result is written as it
comes, and tables that are there already are merged with.

Runs at the same time need a GPU and a ``--results`` each, since a table has one writer; a ``--store`` they may share,
and so learn from each other. ``benchmarks.merge`` then adds what they wrote to ``results/``. On four GPUs of one host::

    for i in 1 2 3 4; do
        CUDA_VISIBLE_DEVICES=$((i - 1)) python -m benchmarks.record winners --operation flex_attention \\
            --part $i/4 --results $OUT/$i --store $OUT/store &
    done; wait
    python -m benchmarks.merge $OUT/1 $OUT/2 $OUT/3 $OUT/4
"""

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from autotune import hardware
from autotune.cli.progress import Progress
from autotune.dispatch import neighbour_configs, reload
from autotune.errors import SearchError
from autotune.executor import Executor
from autotune.executor.gpu import GpuExecutor
from autotune.executor.select import NO_GPU
from autotune.operation import Operation
from autotune.registry import get_operation
from autotune.report.summary import ending_line, result_lines
from autotune.search import DEFAULT_SAMPLER, SAMPLERS, Limits, Sampler, SearchResult, search
from autotune.search.sweeps import ship_sweep
from autotune.shape import Shape
from autotune.table import Store, home, shipped_winners
from benchmarks.grids import SWEEPS, WINNERS, Cell
from benchmarks.grids import grid_shape as grid_shape  # where the other benchmarks look for it
from benchmarks.merge import RESULTS, add_winners

OPERATION = "flash_attention"
WINNER_SECONDS = 20.0
IN_PLACE_SECONDS = 240.0  # where the worker compiles, one config after the other: some 50 of 4 s and the race


class Recording:
    """Records problems of one operation one after the other, until a deadline; ``home()`` holds its trials.

    Args:
        executor: where they are measured.
        operation: theirs.
        results: the folder of the tables that ship.
        seconds: the budget of each search.
        sampler: that of winners; sweeps are exhaustive.
        deadline: ``time.monotonic()`` after which nothing is measured any more.
    """

    def __init__(
        self,
        executor: Executor,
        operation: Operation[Any],
        results: Path,
        *,
        seconds: float = WINNER_SECONDS,
        sampler: Sampler = DEFAULT_SAMPLER,
        deadline: float | None = None,
    ) -> None:
        self._executor = executor
        self._operation = operation
        self._results = results
        self._seconds = seconds
        self._sampler = sampler
        self._deadline = deadline
        self._store = Store(home())
        self._console = Console(soft_wrap=True, highlight=False, markup=False)

    def winners(self, cells: Sequence[Cell]) -> bool:
        """Search each problem and merge its winner into the shipped table; whether none failed or is left."""
        return self._run(cells, is_sweep=False)

    def sweeps(self, cells: Sequence[Cell]) -> bool:
        """Measure every valid config of each problem; whether none failed or is left.

        One that the deadline cuts short does not ship; over the same store a later run continues it.
        """
        return self._run(cells, is_sweep=True)

    def missing(self, cells: Sequence[Cell]) -> list[Cell]:
        """Those without a shipped winner of this source on this device."""
        source = self._operation.source_hash_under(self._executor.toolchain)
        shipped = shipped_winners(self._operation.name, results=self._results)
        done = {t.shape for t in shipped if (t.device, t.source_hash) == (self._executor.device, source)}
        return [cell for cell in cells if cell.shape not in done]

    def _run(self, cells: Sequence[Cell], *, is_sweep: bool) -> bool:
        failed = 0
        for number, cell in enumerate(cells):
            left = None if self._deadline is None else self._deadline - time.monotonic()
            if left is not None and left < (0.0 if is_sweep else self._seconds):
                self._console.print(f"time is up: {len(cells) - number} of {len(cells)} are left")
                return False
            limits = Limits(seconds=left if is_sweep else self._seconds)
            try:
                result = self._search(cell.shape, limits, is_sweep=is_sweep)
                if result.interrupted:
                    return False
                self._ship(result, is_sweep=is_sweep)
            except SearchError as error:
                self._console.print(f"{cell}: failed, {error}")
                failed += 1
                continue
            self._console.print(f"{cell}: {ending_line(result)}", *result_lines(result), sep="\n  ")
        return failed == 0

    def _search(self, shape: Shape, limits: Limits, *, is_sweep: bool) -> SearchResult:
        reload()  # the winners of this recording so far are neighbours
        with Progress(Console(file=sys.stderr, quiet=True), limits) as progress:
            return search(
                self._operation,
                shape,
                self._executor,
                self._store,
                limits=limits,
                neighbours=neighbour_configs(self._operation, shape, self._executor.device),
                sampler="exhaustive" if is_sweep else self._sampler,
                observer=progress,
            )

    def _ship(self, result: SearchResult, *, is_sweep: bool) -> None:
        if is_sweep:
            ship_sweep(result, self._results)
            return
        name = self._operation.name
        add_winners(name, self._store.trials(name, self._executor.device), self._results)


def seconds_of(operation: Operation[Any]) -> float:
    """The budget of a winner unless one is given."""
    return WINNER_SECONDS if operation.compiles_ahead else IN_PLACE_SECONDS


def parse_part(text: str) -> tuple[int, int]:
    """``2/4`` as the second of four.

    Raises:
        argparse.ArgumentTypeError: it is none of so many.
    """
    found = re.fullmatch(r"(\d{1,4})/(\d{1,4})", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; expected a part and their number, such as 2/4")
    return int(found[1]), int(found[2])


def cut(cells: Sequence[Cell], part: tuple[int, int]) -> list[Cell]:
    """One of so many parts of the problems, as equal as can be; neighbours stay together and learn from each other."""
    number, count = part
    return list(cells[len(cells) * (number - 1) // count : len(cells) * number // count])


def choose(cells: Sequence[Cell], only: Sequence[str], head_dims: Sequence[int]) -> list[Cell]:
    """The problems whose text has one of these parts, and whose head dimension is one of these; of none, all."""
    return [
        cell
        for cell in cells
        if (not only or any(part.lower() in str(cell).lower() for part in only))
        and (not head_dims or cell.shape.as_dict()["head_dim"] in head_dims)
    ]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command's arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.record",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=("winners", "sweeps"))
    parser.add_argument("--operation", choices=sorted(WINNERS), default=OPERATION)
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="problems with this in their text")
    parser.add_argument("--head-dim", type=int, action="append", default=[], help="problems of this head dimension")
    parser.add_argument("--part", type=parse_part, default=(1, 1), metavar="I/N", help="the I-th of N parts of these")
    parser.add_argument("--missing", action="store_true", help="winners that are not there yet, of this source")
    parser.add_argument("--list", action="store_true", help="only list the problems; needs no GPU")
    parser.add_argument(
        "--seconds",
        type=float,
        help=f"the budget of each winner [default: {WINNER_SECONDS:g}; {IN_PLACE_SECONDS:g} of flex_attention]",
    )
    parser.add_argument(
        "--sampler", choices=SAMPLERS, default=DEFAULT_SAMPLER, help="of winners; exhaustive where binaries are shared"
    )
    parser.add_argument("--max-minutes", type=float, help="begin nothing that would end later; cuts a sweep short")
    parser.add_argument("--store", type=Path, help="keep the trials here, and continue from them")
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser.parse_args(arguments)


def main() -> None:
    """Entry of the command."""
    started, arguments = time.monotonic(), parse()
    grid = WINNERS if arguments.what == "winners" else SWEEPS
    operation = get_operation(arguments.operation)
    cells = cut(choose(grid[arguments.operation], arguments.only, arguments.head_dim), arguments.part)
    if arguments.list or not cells:
        print(*cells, f"{len(cells)} of {len(grid[arguments.operation])} problems", sep="\n")
        sys.exit(0 if cells else 2)
    if not hardware.has_gpu():
        sys.exit(f"benchmarks.record: {NO_GPU}")
    deadline = None if arguments.max_minutes is None else started + 60 * arguments.max_minutes
    executor = GpuExecutor(early_stop=arguments.what == "winners")
    with tempfile.TemporaryDirectory() as folder:
        # What this recording finds stands for the user's tables, whose own winners are no neighbours of what ships.
        os.environ["AUTOTUNE_HOME"] = str(arguments.store or folder)
        recording = Recording(
            executor,
            operation,
            arguments.results,
            seconds=seconds_of(operation) if arguments.seconds is None else arguments.seconds,
            sampler=arguments.sampler,
            deadline=deadline,
        )
        try:
            if arguments.missing and arguments.what == "winners":
                cells = recording.missing(cells)
            complete = recording.winners(cells) if arguments.what == "winners" else recording.sweeps(cells)
        finally:
            executor.close()
    sys.exit(0 if complete else 1)


if __name__ == "__main__":
    main()
