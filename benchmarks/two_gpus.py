"""A grid of studies on one GPU of this host and then on two: ``python -m benchmarks.two_gpus --results FOLDER``.

Eight shapes of ``flash_attention`` and eight of ``paged_decode`` are tuned by ``autotune.tune(shapes, gpus=[0])``, and
again by ``gpus=[0, 1]``, each time with an empty store and an empty Triton cache. Wanted: both GPUs together take at
most 1/1.85 of the time of one, each is busy for at least 60 % of it, and of 15 of the 16 winners measurement cannot
tell that they are slower than those of one GPU: the winner is among the ties of that GPU's race or, if it was not in
it, ties with their fastest in one more race. Exits with 1 beyond. By its budgets it takes nine minutes at most.

``every_gpu`` is for work that has no need of a coordinator: it starts a benchmark on each GPU, as a process of its own
with its share of the cores and of the problems, and one that ends early leaves its GPU idle. Here one process hands out
the studies, all cores compile for whichever GPU waits, and the last studies are screened by both.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from autotune import platforms
from autotune.dispatch import reload
from autotune.executor.gpu import GpuExecutor
from autotune.executor.settings import Settings
from autotune.executor.several_gpus import GpuUse
from autotune.registry import get_operation
from autotune.shape import AttentionShape, PagedShape, Shape
from autotune.table import Store
from autotune.table.winners import TIE_RATIO
from autotune.trial import Candidate
from autotune.tuning import TunedShape, tune
from autotune.workload import Workload, read_workloads
from benchmarks.console import require_gpu

SPEED_UP: Final = 1.85
INSIDE: Final = 15
BUSY: Final = 0.60
RACE_SECONDS: Final = 1.0
# Long problems: a GPU judges a config of a short one in 0.02 to 0.05 s, which takes 1 to 4 s of a core to compile
# (the recorded grids of an H100 and an H200), so that two GPUs would wait for the same cores.
DENSE: Final = [
    AttentionShape(batch=batch, heads=32, kv_heads=8, seq_q=seq, head_dim=128, causal=causal)
    for batch, seq, causal in (
        *((2, 16384, True), (4, 16384, True), (1, 32768, True), (2, 32768, True)),
        *((1, 16384, False), (2, 16384, False), (1, 24576, False), (1, 32768, False)),
    )
]
PAGED: Final = [
    PagedShape(batch=batch, heads=32, kv_heads=8, max_context=context, head_dim=128)
    for batch in (8, 16)
    for context in (24576, 49152, 73728, 98304)
]


@dataclass(frozen=True, slots=True)
class Tuned:
    """One tuning of the grid: its wall time, the part of each GPU, and a result for each shape."""

    seconds: float
    gpus: tuple[GpuUse, ...]
    results: tuple[TunedShape, ...]


def grid() -> list[Workload]:
    shapes: list[Shape | Workload | tuple[str, Shape]] = [
        *(("flash_attention", shape) for shape in DENSE),
        *(("paged_decode", shape) for shape in PAGED),
    ]
    return read_workloads(shapes, None)


def tune_on(gpus: Sequence[int], folder: Path, *, trials: int, budget: float) -> Tuned:
    """Tune the grid with nothing known and nothing compiled."""
    os.environ.update(TRITON_CACHE_DIR=str(folder / "triton"), AUTOTUNE_HOME=str(folder / "home"))
    reload()
    began = time.monotonic()
    found = tune(grid(), gpus=gpus, trials=trials, budget=budget, store=Store(folder / "home"))
    if found.interrupted:
        sys.exit("interrupted")
    tuned = Tuned(time.monotonic() - began, found.gpus, found.results)
    print(f"on GPUs {', '.join(map(str, gpus))}: {tuned.seconds:.0f} s", *found.gpus, sep="\n  ", flush=True)
    return tuned


def is_inside(one: TunedShape, two: TunedShape, executor: GpuExecutor) -> bool:
    """Return True if the winner of two GPUs ties with that of one: in its race, or in one more on the first GPU."""
    if one.winner is None or two.winner is None:
        return False
    ties = list(dict.fromkeys([one.winner.candidate, *(trial.candidate for trial in one.ties)]))
    if two.winner.candidate in ties:
        return True
    executor.open(get_operation(one.operation), one.shape)
    return ties_in_race(executor, ties, two.winner.candidate)


def ties_in_race(executor: GpuExecutor, ties: Sequence[Candidate], rival: Candidate) -> bool:
    race = executor.race([*ties, rival], seconds=RACE_SECONDS, baselines="none")
    times = {each.candidate: each.timing for each in race.outcomes if each.timing is not None}
    fastest = min((times[each] for each in ties if each in times), key=lambda timing: timing.median_us, default=None)
    mine = times.get(rival)
    if mine is None or fastest is None:
        return mine is not None
    return mine.median_us <= fastest.median_us or (
        mine.overlaps(fastest) and mine.median_us <= TIE_RATIO * fastest.median_us
    )


def summarize(one: Tuned, two: Tuned, inside: Sequence[bool | None]) -> dict[str, Any]:
    """Return what is wanted and what was found, as plain data; None is a winner that was not judged yet."""
    return {
        "seconds": [one.seconds, two.seconds],
        "speed_up": one.seconds / two.seconds,
        "inside": sum(map(bool, inside)),
        "gpus": [[asdict(use) for use in tuned.gpus] for tuned in (one, two)],
        "studies": [_study(*pair) for pair in zip(one.results, two.results, inside, strict=True)],
    }


def _study(one: TunedShape, two: TunedShape, is_inside: bool | None) -> dict[str, Any]:
    def told(found: TunedShape) -> dict[str, Any]:
        search, winner = found.search, found.winner
        return {
            "winner": None if winner is None else str(winner.candidate),
            "median_us": None if winner is None or winner.timing is None else winner.timing.median_us,
            "ties": [str(trial.candidate) for trial in found.ties],
            "measured": 0 if search is None else search.measured,
            "seconds": None if search is None else search.seconds,
            "failure": found.failure,
        }

    shape = {"operation": one.operation, "shape": one.shape.as_dict()}
    return {**shape, "one": told(one), "two": told(two), "inside": is_inside}


def misses(found: Mapping[str, Any]) -> list[str]:
    """Return what was wanted and is not so."""
    missed = [] if found["speed_up"] >= SPEED_UP else [f"the speed-up is {found['speed_up']:.2f}, not {SPEED_UP}"]
    if found["inside"] < INSIDE:
        missed.append(f"{found['inside']} winners tie with those of one GPU, not {INSIDE}")
    idle = [use for use in found["gpus"][1] if use["busy"] < BUSY or use["dropped"]]
    return [*missed, *(f"GPU {use['index']} is busy {use['busy']:.0%} of the time, not {BUSY:.0%}" for use in idle)]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.two_gpus",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--results", type=Path, required=True, metavar="FOLDER", help="where two_gpus.json is written")
    parser.add_argument("--trials", type=int, default=40, metavar="N", help="of each study")
    parser.add_argument("--budget", type=float, default=40.0, metavar="SECONDS", help="of each study")
    return parser.parse_args(arguments)


def main() -> None:
    options = parse()
    require_gpu("two_gpus")
    if (count := platforms.gpu_count()) < 2:
        sys.exit(f"benchmarks.two_gpus: it needs two GPUs, and {count} is visible")
    with tempfile.TemporaryDirectory() as folder:
        one, two = (
            tune_on(gpus, Path(folder) / name, trials=options.trials, budget=options.budget)
            for name, gpus in (("one", [0]), ("two", [0, 1]))
        )
    options.results.mkdir(parents=True, exist_ok=True)
    inside: list[bool | None] = [None] * len(one.results)
    found = summarize(one, two, inside)
    with closing(GpuExecutor(Settings(index=0))) as executor:
        for index, pair in enumerate(zip(one.results, two.results, strict=True)):
            # What was found so far stays where the time of the machine ends.
            (options.results / "two_gpus.json").write_text(json.dumps(found, indent=2) + "\n")
            inside[index] = is_inside(*pair, executor)
            found = summarize(one, two, inside)
    (options.results / "two_gpus.json").write_text(json.dumps(found, indent=2) + "\n")
    print(f"speed-up {found['speed_up']:.2f}, {found['inside']} of {len(inside)} winners tie with those of one GPU")
    missed = misses(found)
    print(*(f"missed: {each}" for each in missed), sep="\n")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
