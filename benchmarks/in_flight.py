"""Costs of configs in flight for a search that learns: ``python -m benchmarks.in_flight``; needs no GPU.

Searches of the recorded sweeps of ``flash_attention`` run on a simulated machine until they converge; the table has
their distance from the optimum then, and the simulated seconds until then.
"""

import argparse
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from autotune.search import DEFAULT_SAMPLER
from autotune.search.convergence import Convergence
from benchmarks.console import print_row
from benchmarks.search_efficiency.machine import simulate
from benchmarks.search_efficiency.recordings import Recording
from benchmarks.search_efficiency.samplers import open_source
from benchmarks.search_efficiency.tasks import recordings

MISSED: Final = 0.02  # regret of a search that counts as missed


class Converged(NamedTuple):
    regret: float
    seconds: float
    tried: int


def converge(recording: Recording, seed: int, *, compilers: int, in_flight: int) -> Converged:
    """Search a recording until it has converged or its budget is spent."""
    source = open_source(DEFAULT_SAMPLER, recording, seed)
    convergence = Convergence((), recording.size)
    best, tried, seconds = np.inf, 0, 0.0
    for judged in simulate(recording, source, compilers=compilers, in_flight=in_flight):
        convergence.note(recording.outcomes[judged.config])
        best = np.fmin(best, recording.times_us[judged.config])
        tried, seconds = tried + 1, judged.seconds
        if convergence.is_reached:
            break
    return Converged(best / float(np.nanmin(recording.times_us)) - 1.0, seconds, tried)


def _run(run: tuple[str, int], *, compilers: int, in_flight: int) -> Converged:
    name, number = run
    recording = recordings()[name]
    return converge(recording, recording.seed(number), compilers=compilers, in_flight=in_flight)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.in_flight", description=__doc__)
    parser.add_argument("--seeds", type=int, default=4, help="searches of each sweep")
    parser.add_argument("--compilers", type=int, default=31, help="of the simulated machine")
    parser.add_argument("--in-flight", type=int, nargs="+", default=[8, 16, 32], metavar="N")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    arguments = parser.parse_args()
    runs = [(name, number) for name in recordings() for number in range(arguments.seeds)]
    print_row("in flight", "searches", "more than 2 % off", "worst", "seconds", "configs")
    print(f"|{'---:|' * 6}")
    with ProcessPoolExecutor(arguments.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for in_flight in arguments.in_flight:
            found = list(pool.map(partial(_run, compilers=arguments.compilers, in_flight=in_flight), runs))
            regret, seconds, tried = (np.array(column) for column in zip(*found, strict=True))
            off = (f"{np.mean(regret > MISSED):.0%}", f"{np.max(regret):.1%}")
            print_row(in_flight, len(found), *off, f"{np.mean(seconds):.1f}", f"{np.mean(tried):.0f}")


if __name__ == "__main__":
    main()
