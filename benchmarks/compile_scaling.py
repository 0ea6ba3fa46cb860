"""Scaling of compiling with processes, and their memory: ``python -m benchmarks.compile_scaling --jobs 16``.

Compiles the valid space of flash attention (head_dim 128, causal, seq 4096) for the NVIDIA H200; needs no GPU. Every
run has an empty Triton cache of its own, and its clock starts when the compile server has imported torch and compiled
one config, so that starting is not counted.

A random sample of the space is compiled with one process and with ``--jobs``: that ratio is measured, but the last
compiles of a small sample leave most processes idle. The whole space is compiled with ``--jobs`` alone; the time of one
process for it is the sample's time with one, divided by the sample's share of all compile seconds of that run.
"""

import argparse
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import Final

from autotune.device import NVIDIA_H200
from autotune.executor.compile_pool import COMPILE_SECONDS, CompilePool
from autotune.registry import get_implementation, get_operation
from autotune.space import Config
from autotune.trial import Candidate, Outcome
from benchmarks.process_memory import watched
from benchmarks.shipped_problems import benchmark_shape

OPERATION: Final = get_operation("flash_attention")
IMPLEMENTATION: Final = get_implementation("flash_attention", "triton")
SHAPE: Final = benchmark_shape(128, True, 4096)
SEED: Final = 0


def compile_all(pool: CompilePool, configs: Sequence[Config]) -> list[Outcome]:
    for config in configs:
        pool.submit(Candidate(IMPLEMENTATION.name, config))
    outcomes = [outcome for _ in configs if (outcome := pool.receive(2 * COMPILE_SECONDS)) is not None]
    assert len(outcomes) == len(configs), "the compile server is silent"
    return outcomes


def timed(jobs: int, configs: Sequence[Config]) -> tuple[float, list[Outcome]]:
    """Compile with so many processes over an empty cache; return the seconds, without those of the start."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        with closing(CompilePool(NVIDIA_H200, jobs=jobs, timeout=COMPILE_SECONDS)) as pool:
            pool.open(OPERATION, SHAPE)
            compile_all(pool, [IMPLEMENTATION.space.default(SHAPE, NVIDIA_H200)])
            started = time.monotonic()
            outcomes = compile_all(pool, configs)
            return time.monotonic() - started, outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes; all cores by default")
    parser.add_argument("--sample", type=int, default=40, help="configs that one process compiles")
    arguments = parser.parse_args()
    default = IMPLEMENTATION.space.default(SHAPE, NVIDIA_H200)
    space = [config for config in IMPLEMENTATION.space.configs(SHAPE, NVIDIA_H200) if config != default]
    sample = random.Random(SEED).sample(space, min(arguments.sample, len(space)))
    jobs, say = arguments.jobs, partial(print, flush=True)
    say(f"{SHAPE} for the {NVIDIA_H200.name}: {len(space)} configs, a sample of {len(sample)} (seed {SEED})")
    alone, _ = timed(1, sample)
    say(f"the sample with 1 process: {alone:.1f} s")
    together, _ = timed(jobs, sample)
    say(f"the sample with {jobs} processes: {together:.1f} s, {alone / together:.1f} times as fast")
    with watched(jobs) as weights:
        whole, outcomes = timed(jobs, space)
    seconds = {outcome.config: outcome.compile_seconds or COMPILE_SECONDS for outcome in outcomes}
    share = sum(seconds[config] for config in sample) / sum(seconds.values())
    statuses = ", ".join(f"{count} {status}" for status, count in Counter(o.status for o in outcomes).items())
    say(f"the space with {jobs} processes: {whole:.1f} s ({statuses})")
    say(f"the space with 1 process, from the sample's share of {share:.1%}: {alone / share:.1f} s")
    say(f"speed-up: {alone / share / whole:.1f}")
    say(f"heaviest of {jobs} compilers and their server: {weights.heaviest:.0f} MB of proportional set size")
    say(f"the server alone, before its first compiler: {weights.alone:.0f} MB; all together {weights.total:.0f} MB")


if __name__ == "__main__":
    main()
