"""A grid of studies on one GPU of this host, on two, four and more, and by Ray.

Eight shapes of ``flash_attention`` and eight of ``paged_decode`` are tuned by ``autotune.tune(shapes, gpus=[0])``, by
``gpus=[0, 1]`` and so on up to ``--gpus``, and as tasks of a Ray cluster, each time with an empty store, an empty
Triton cache, and the tables that ship. A search ends by its budget or by its trials, whichever is first, so that a run
is judged by its time and by the configs that it measured in it.

Wanted: two GPUs take at most 1/1.85 of the time of one, four 1/3.5, eight 1/6.5; every study has a winner, and as many
configs were measured as on one GPU, but for 5 %; of 15 of the 16 winners measurement cannot tell that they are slower
than those of one GPU (``benchmarks.many_gpus.ties``); of two GPUs each is busy for at least 60 % of the time. Exits
with 1 beyond, and with 2 for wrong arguments.

Every run and every verdict is kept in ``--results`` at once, and the same command goes on with what is missing there:
where verdicts alone are, one GPU is enough. With ``--only`` it does some of the runs, for a host that is lent for
minutes, and judges nothing before all are there.
By its budgets one GPU takes eleven minutes at most.

With ``--again`` the last GPU alone tunes the grid, too: so many winners tie where nothing differs but the GPU and the
noise of measurements. Nothing is wanted of that run, which may have other work beside it.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Final

from autotune import platforms
from autotune.errors import one_line
from autotune.executor.gpu import GpuExecutor
from autotune.executor.settings import Settings
from autotune.search.result import MIN_RACE_SECONDS
from autotune.table.files import write_bytes
from benchmarks.console import print_head, print_row, require_gpu
from benchmarks.many_gpus.on_ray import run_by_ray
from benchmarks.many_gpus.ties import is_inside
from benchmarks.many_gpus.tuned_grid import GridRun, grid, run_on, this_host

SPEED_UP: Final = {2: 1.85, 4: 3.5, 8: 6.5}
INSIDE: Final = 15
BUSY: Final = {2: 0.60}
MEASURED: Final = 0.95  # of the configs that one GPU measured
ONE: Final = "1"
AGAIN: Final = "1 again"


def counts(gpus: int) -> list[int]:
    """List the numbers of GPUs to compare: 1, 2, 4 and so on, and all of them.

    Example:
        >>> counts(4), counts(6)
        ([1, 2, 4], [1, 2, 4, 6])
    """
    return sorted({*(2**power for power in range(gpus.bit_length())), gpus})


class Found:
    """All runs and verdicts so far, by their names: a number of GPUs, or ``4 by Ray``; kept in a file."""

    def __init__(self, path: Path, options: Mapping[str, Any]) -> None:
        self._path = path
        self._options = dict(options)
        self.runs: dict[str, GridRun] = {}
        self.inside: dict[str, list[bool | None]] = {}  # None: not judged yet
        if path.exists():
            try:
                kept = json.loads(path.read_text())
                there = kept["options"]
                self.runs = {name: GridRun.from_dict(run) for name, run in kept["runs"].items()}
                self.inside = {name: _verdicts(each, self.runs[name]) for name, each in kept["inside"].items()}
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                sys.exit(f"benchmarks.many_gpus: {path} is damaged: {one_line(error)}; move it away to begin anew")
            if there != self._options:
                named, own = (" ".join(f"--{key}={value}" for key, value in each.items()) for each in (there, options))
                sys.exit(f"benchmarks.many_gpus: {path} is of {named}, not of {own}; name another folder")

    def keep(self) -> None:
        """Replace the file whole: a kill on the way leaves the old one."""
        runs = {name: run.as_dict() for name, run in self.runs.items()}
        whole = {"options": self._options, "runs": runs, "inside": self.inside}
        write_bytes(self._path, (json.dumps(whole, indent=2) + "\n").encode())

    def left(self) -> list[tuple[str, int]]:
        """Return the winners that were not judged yet, by their run and their place in the grid."""
        for name, run in self.runs.items():
            if name != ONE:
                self.inside.setdefault(name, [None] * len(run.studies))
        return [
            (name, at) for name, verdicts in self.inside.items() for at, each in enumerate(verdicts) if each is None
        ]


def _verdicts(given: Any, run: GridRun) -> list[bool | None]:
    """Return the verdicts on a run's winners; ValueError where they are none."""
    if not isinstance(given, list) or len(given) != len(run.studies) or not {*given} <= {True, False, None}:
        raise ValueError(f"{given!r} are no verdicts on {len(run.studies)} winners")
    return given


def wanted_runs(gpus: int, *, with_ray: bool, again: bool = False) -> dict[str, Callable[..., GridRun]]:
    runs: dict[str, Callable[..., GridRun]] = {
        str(count): partial(run_on, tuple(range(count))) for count in counts(gpus)
    }
    if again:
        runs[AGAIN] = partial(run_on, (gpus - 1,))
    if with_ray:
        runs[f"{gpus} by Ray"] = partial(run_by_ray, gpus)
    return runs


def measure(found: Found, wanted: Mapping[str, Callable[..., GridRun]], **options: Any) -> None:
    """Do the runs that are missing, each in a process of its own, so that this one never holds a GPU."""
    hosts = {run.host for run in found.runs.values()}
    if not wanted.keys() <= found.runs.keys() and not hosts <= {this_host()}:
        sys.exit(f"benchmarks.many_gpus: the results are of {', '.join(sorted(hosts))}; begin others on {this_host()}")
    for name, run in wanted.items():
        if name not in found.runs:
            print(f"running   {name}", flush=True)
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                found.runs[name] = made = process.submit(run, **options).result()
            found.keep()
            print(f"          {made.seconds:.0f} s", *made.gpus, sep="\n          ", flush=True)


def judge(found: Found) -> None:
    """Judge the winners that were not judged yet, on the first GPU."""
    works = grid()
    with closing(GpuExecutor(Settings(index=0))) as executor:
        for name, index in found.left():
            one, many = (found.runs[each].studies[index] for each in (ONE, name))
            found.inside[name][index] = is_inside(works[index], one, many, executor)
            found.keep()


COLUMNS: Final = (
    *("GPUs", "seconds", "speed-up", "busy", "waiting for compilers", "cores busy", "memory"),
    *("configs", "tied winners", "their times"),
)


def print_runs(found: Found) -> None:
    """Print a row for each run; times of winners are geometric means over those of one GPU, as each race saw them."""
    print_head(*COLUMNS)
    one = found.runs[ONE]
    for name, run in found.runs.items():
        busy, starved = ([getattr(use, field) for use in run.gpus] for field in ("busy", "starved"))
        inside = "" if name == ONE else f"{sum(map(bool, found.inside[name]))} of {len(run.studies)}"
        cores = "" if run.cores_busy is None else f"{run.cores_busy:.0%}"
        cells = (f"{run.seconds:.1f}", f"{one.seconds / run.seconds:.3f}", _range(busy), _range(starved), cores)
        configs = f"{count:,}" if (count := _measured(run)) else ""
        print_row(name, *cells, f"{run.memory_mb / 1e3:.1f} GB", configs, inside, f"{_times(one, run):.3f}")


def _measured(run: GridRun) -> int:
    """Return the number of configs that a run measured; 0 where nothing says, as by Ray."""
    return sum(study.measured for study in run.studies)


def _times(one: GridRun, many: GridRun) -> float:
    times = [(each.median_us, other.median_us) for each, other in zip(one.studies, many.studies, strict=True)]
    return geometric_mean([other / each for each, other in times if each and other] or [math.nan])


def _range(shares: Sequence[float]) -> str:
    return f"{min(shares):.0%} to {max(shares):.0%}" if shares else ""


def misses(found: Found) -> list[str]:
    """Return the differences between what was wanted and what was found."""
    one = found.runs[ONE]
    missed = [
        f"GPU {use.index} of {name} was dropped: {use.dropped}"
        for name, run in found.runs.items()
        for use in run.gpus
        if use.dropped and name != AGAIN
    ]
    for name, run in found.runs.items():
        failed = [study.failure for study in run.studies if study.winner is None]
        missed += [f"{len(failed)} studies of {name} have no winner, the first: {failed[0]}"] if failed else []
        if name in (ONE, AGAIN):
            continue
        if 0 < _measured(run) < MEASURED * _measured(one):
            missed.append(f"{name} measured {_measured(run):,} configs, one GPU {_measured(one):,}")
        speed_up, inside = one.seconds / run.seconds, sum(map(bool, found.inside[name]))
        count = int(name) if name.isdecimal() else 0
        if speed_up < SPEED_UP.get(count, 0.0):
            missed.append(f"the speed-up of {name} GPUs is {speed_up:.3f}, not {SPEED_UP[count]}")
        if inside < INSIDE:
            missed.append(f"{inside} winners of {name} tie with those of one GPU, not {INSIDE}")
        wanted = BUSY.get(count, 0.0)
        idle = [use for use in run.gpus if use.busy < wanted and not use.dropped]
        missed += [f"GPU {use.index} of {name} is busy {use.busy:.1%} of the time, not {wanted:.0%}" for use in idle]
    return missed


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.many_gpus",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--results", type=Path, required=True, metavar="FOLDER", help="where many_gpus.json is kept")
    parser.add_argument("--gpus", type=int, default=2, metavar="N", help="the most that are compared (2)")
    parser.add_argument("--no-ray", action="store_true", help="leave out the run by Ray")
    parser.add_argument("--again", action="store_true", help="also tune the grid on the last GPU alone")
    parser.add_argument("--only", action="append", metavar="RUN", help='such as 2, or "1 again"; may be repeated')
    parser.add_argument("--trials", type=int, default=40, metavar="N", help="of each study (40)")
    parser.add_argument("--budget", type=float, default=40.0, metavar="SECONDS", help="of each study (40)")
    given = parser.parse_args(arguments)
    wanted = wanted_runs(max(2, given.gpus), with_ray=not given.no_ray, again=given.again)
    if given.gpus < 2:
        parser.error(f"--gpus={given.gpus} is not allowed; expected 2 or more")
    if given.trials < 1:
        parser.error(f"--trials={given.trials} is not allowed; expected 1 or more")
    if not MIN_RACE_SECONDS < given.budget < math.inf:
        parser.error(f"--budget={given.budget} is not allowed; expected more than {MIN_RACE_SECONDS:g} seconds")
    if unknown := set(given.only or ()) - wanted.keys():
        also = "" if given.again else ", or '1 again' with --again"
        parser.error(f"--only={min(unknown)!r} is not allowed; expected one of {', '.join(wanted)}{also}")
    try:
        given.results.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--results={str(given.results)!r} cannot be written: {error.strerror}")
    return given


def main(arguments: Sequence[str] | None = None) -> None:
    given = parse(arguments)
    options = {"trials": given.trials, "budget": given.budget}
    found = Found(given.results / "many_gpus.json", options)
    require_gpu("many_gpus")
    wanted, visible = wanted_runs(given.gpus, with_ray=not given.no_ray, again=given.again), platforms.gpu_count()
    chosen = {name: run for name, run in wanted.items() if name in (given.only or wanted)}
    missing = chosen.keys() - found.runs.keys()
    needed = max((int(name) if name.isdecimal() else given.gpus for name in missing), default=0)
    if visible < needed:
        sys.exit(f"benchmarks.many_gpus: --gpus={given.gpus} needs {needed} GPUs, and {visible} are visible")
    measure(found, chosen, **options)
    if left := [name for name in wanted if name not in found.runs]:
        print(f"missing   {', '.join(left)}: the same command without --only goes on there")
        return
    judge(found)
    print_runs(found)
    missed = misses(found)
    print(*(f"missed: {each}" for each in missed), sep="\n")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
