"""Searches of 15 s on a cold machine: ``python -m benchmarks.small_budgets``, on a machine with a GPU.

Each of eight shapes, of which the long one alone ships a winner (of an H200), is searched by the command ``autotune
search`` in a process of its own, with an empty store and an empty Triton cache: its time is the process's, from start
to end. A longer search then goes on from what the short one left, and one race of the winners, interleaved, says how
far the short one's is behind.
``--only`` and ``--part 1/2`` split the shapes over several commands, of about 70 s a shape; ``--seeds 0-9 --long 0``
searches a shape ten times and judges each winner by the best of all. With ``--store`` those searches are kept: the same
command continues, ``--minutes`` ends a run, and all winners that are kept race each time.

Wanted, of each search: its process ends within 3 s of its budget, its first config is measured within 5 s, and its
winner is at most 5 % behind; exits with 1 beyond, or while searches are left. The steps of each start are printed, so
that a miss says where the time went: seconds from the process's start.
"""

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

from autotune.executor.gpu import GpuExecutor
from autotune.registry import get_implementation, get_operation, our_implementations
from autotune.space import Config
from autotune.table.files import write_bytes
from autotune.trial import Candidate
from benchmarks.console import parse_duration, print_head, print_row, require_gpu
from benchmarks.live import processes
from benchmarks.problem_parts import cut, parse_part

SHAPES: Final[Mapping[str, tuple[str, ...]]] = {
    "llama prefill, D 128": ("--batch=1", "--heads=32", "--kv-heads=8", "--seq=5000"),
    "qwen batch, D 128": ("--batch=3", "--heads=28", "--kv-heads=4", "--seq=1536"),
    "image, full, D 128": ("--batch=1", "--heads=24", "--seq=4608", "--no-causal"),
    "long, full, D 128": ("--batch=1", "--heads=16", "--seq=16384", "--no-causal"),
    "small heads, D 64": ("--batch=2", "--heads=16", "--kv-heads=8", "--seq=3000", "--head-dim=64"),
    "gemma, D 256": ("--batch=2", "--heads=8", "--kv-heads=4", "--seq=2500", "--head-dim=256"),
    "decode, 8k": ("--operation=paged_decode", "--batch=24", "--heads=28", "--kv-heads=4", "--context=8192"),
    "decode, 2k": ("--operation=paged_decode", "--batch=96", "--heads=32", "--kv-heads=8", "--context=2000"),
}
GRACE_SECONDS: Final = 3.0  # beyond the budget, until the process has ended
FIRST_SECONDS: Final = 5.0  # until the first config is measured
RACE_SECONDS: Final = 4.0
MARGIN_SECONDS: Final = 120.0  # beyond the budget, after which a search is killed


class Searched(NamedTuple):
    """One search as a process: its wall time, the steps of its start, and what it stored."""

    seed: int
    seconds: float
    stages: Mapping[str, float]
    winner: Candidate
    measured: int
    shape: Mapping[str, Any]
    operation: str


class JudgedSearch(NamedTuple):
    """A search, and the time of its winner over that of the fastest of its shape."""

    name: str
    searched: Searched
    ratio: float

    def misses(self, budget: float, within: float) -> list[str]:
        """Name what is beyond the limits."""
        first = self.searched.stages.get("first_measured", float("inf"))
        limits = {
            "end": (self.searched.seconds, budget + GRACE_SECONDS),
            "first": (first, FIRST_SECONDS),
            "winner": (self.ratio, 1.0 + within),
        }
        return [name for name, (value, limit) in limits.items() if not value <= limit]


def execute(name: str, folder: Path, *, budget: float, seed: int) -> processes.Finished:
    """Search a shape in a process of its own, whose store and cache are in that folder."""
    return processes.run(
        *("autotune", "search", *SHAPES[name], f"--budget={budget:g}", f"--seed={seed}", "--json"),
        seconds=budget + MARGIN_SECONDS,
        environment=processes.cold(folder),
    )


def run_search(name: str, folder: Path, *, budget: float, seed: int) -> Searched:
    """Search as ``execute`` does, and read what was found; raise RuntimeError with the last words of a failure."""
    finished = execute(name, folder, budget=budget, seed=seed).require()
    return read_search(finished.output, finished.seconds, seed)


def read_search(output: str, seconds: float, seed: int) -> Searched:
    """Read what the command printed."""
    (found,) = json.loads(output)
    row = found["winner"]
    space = get_implementation(found["operation"], row["implementation"]).space
    config = Config({parameter.name: row["config"].get(parameter.name) for parameter in space.parameters})
    return Searched(
        seed=seed,
        seconds=seconds,
        stages={**found["stages"], "searched": found["seconds"]},
        winner=Candidate(row["implementation"], config),
        measured=found["measured"],
        shape=found["shape"],
        operation=found["operation"],
    )


def sources_of(output: str) -> list[str]:
    """Return the hashes of all sources that the search which printed this may have measured, as they are today."""
    (found,) = json.loads(output)
    return [each.source_hash for each in our_implementations(found["operation"])]


def origin_of(output: str, sources: Sequence[str]) -> tuple[str, ...]:
    """Return the GPU, the Triton and the sources of a search, which searches that are judged together share."""
    (found,) = json.loads(output)
    return found["winner"]["device"]["name"], found["winner"]["toolchain"]["triton"], *sources


def judge(name: str, short: Sequence[Searched], rivals: Sequence[Searched]) -> list[JudgedSearch]:
    """Race the winners of all searches of a shape, interleaved; rivals are judged by, and not judged."""
    first = short[0]
    operation = get_operation(first.operation)
    candidates = list(dict.fromkeys(each.winner for each in (*short, *rivals)))
    if len(candidates) == 1:
        return [JudgedSearch(name, each, 1.0) for each in short]
    with closing(GpuExecutor()) as executor:
        executor.open(operation, operation.shape_class(**first.shape))
        race = executor.race(candidates, seconds=RACE_SECONDS, baselines="none")
    times = {each.candidate: each.timing.median_us for each in race.outcomes if each.timing is not None}
    return [JudgedSearch(name, each, times.get(each.winner, float("inf")) / min(times.values())) for each in short]


def measure(name: str, folder: Path, *, budget: float, long: float, seeds: Sequence[int]) -> list[JudgedSearch]:
    short = [run_search(name, folder / f"{name}-{seed}", budget=budget, seed=seed) for seed in seeds]
    rivals = [run_search(name, folder / f"{name}-{seeds[0]}", budget=long, seed=seeds[0])] if long > 0 else []
    return judge(name, short, rivals)


def measure_kept(
    name: str, store: Path, *, budget: float, seeds: Sequence[int], deadline: float = math.inf
) -> list[JudgedSearch]:
    """Search with each seed whose search the store does not keep, until the deadline, and judge all that are kept.

    Args:
        deadline: ``time.monotonic()``; no search begins that would end later.
    """
    kept: list[Searched] = []
    origins = set[tuple[str, ...]]()
    for seed in seeds:
        path = store / f"{name.replace(', ', '-').replace(' ', '_')}-{budget:g}s-{seed}.json"
        if not path.exists() and time.monotonic() + budget + GRACE_SECONDS <= deadline:
            with tempfile.TemporaryDirectory() as folder:
                finished = execute(name, Path(folder), budget=budget, seed=seed).require()
            record = {"seconds": finished.seconds, "output": finished.output, "sources": sources_of(finished.output)}
            write_bytes(path, json.dumps(record).encode())
        if path.exists():
            record = json.loads(path.read_bytes())
            kept.append(read_search(record["output"], record["seconds"], seed))
            origins.add(origin_of(record["output"], record["sources"]))
        if len(origins) > 1:  # before another search is in vain
            several = "keeps searches of several GPUs, Tritons or sources"
            sys.exit(f"benchmarks.small_budgets: {store} {several}; name another")
    return judge(name, kept, []) if kept else []


def print_judged(judged: JudgedSearch, misses: Sequence[str]) -> None:
    searched = judged.searched
    first = searched.stages.get("first_measured", float("nan"))
    verdict = "missed: " + ", ".join(misses) if misses else "held"
    print_row(
        *(judged.name, searched.seed, f"{searched.seconds:.1f}", f"{first:.1f}", searched.measured),
        *(f"{judged.ratio:.3f}", searched.winner, verdict),
    )
    print("  " + ", ".join(f"{step} {seconds:.2f}" for step, seconds in searched.stages.items()), flush=True)


def parse_seeds(text: str) -> list[int]:
    """Parse ``3`` or ``0-9``."""
    first, _, last = text.partition("-")
    try:
        seeds = list(range(int(first), int(last or first) + 1))
    except ValueError:
        seeds = []
    if not seeds:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; expected a seed, or a range such as 0-9")
    return seeds


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.small_budgets",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="shapes whose name has this part")
    parser.add_argument("--part", type=parse_part, default=(1, 1), metavar="I/N", help="one of N parts of the shapes")
    parser.add_argument("--budget", type=float, default=15.0, metavar="SECONDS", help="of each search")
    parser.add_argument("--long", type=float, default=40.0, metavar="SECONDS", help="of the longer search; 0: none")
    parser.add_argument("--seeds", type=parse_seeds, default=[0], metavar="A-B", help="a search with each")
    parser.add_argument("--within", type=float, default=0.05, metavar="SHARE", help="how far a winner may be behind")
    parser.add_argument("--store", type=Path, metavar="FOLDER", help="keep searches here, and continue from them")
    parser.add_argument("--minutes", type=parse_duration, help="begin no search that would end later; with --store")
    given = parser.parse_args(arguments)
    if given.store is not None and given.long > 0:
        parser.error("argument --store: allowed with --long 0 alone, as a longer search needs the trials of the short")
    if given.minutes is not None and given.store is None:
        parser.error("argument --minutes: allowed with --store alone, which keeps what a run did not reach")
    return given


def measure_named(name: str, options: argparse.Namespace, started: float) -> list[JudgedSearch]:
    """Measure a shape as the options say."""
    if options.store is not None:
        deadline = math.inf if options.minutes is None else started + 60 * options.minutes
        return measure_kept(name, options.store, budget=options.budget, seeds=options.seeds, deadline=deadline)
    with tempfile.TemporaryDirectory() as folder:
        return measure(name, Path(folder), budget=options.budget, long=options.long, seeds=options.seeds)


def main() -> None:
    options, started = parse(), time.monotonic()
    require_gpu("small_budgets")
    names = [name for name in SHAPES if not options.only or any(part in name for part in options.only)]
    missed = False
    print_head("shape", "seed", "s", "first s", "configs", "ratio", "winner", "")
    for name in cut(names, options.part):
        found = measure_named(name, options, started)
        for each in found:
            misses = each.misses(options.budget, options.within)
            print_judged(each, misses)
            missed = missed or bool(misses)
        if len(found) < len(options.seeds):
            print(f"{name}: {len(found)} of {len(options.seeds)} searches; run the same command again")
            missed = True
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
