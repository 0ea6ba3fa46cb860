"""How compiling scales with processes, and what they weigh: ``python -m benchmarks.compile_scaling --jobs 16``.

Compiles the valid space of flash attention (head_dim 128, causal, seq 4096) for the NVIDIA H200; needs no GPU. Every
run has an empty Triton cache of its own, and its clock starts when the compile server has imported torch and compiled
one config, so that starting is not counted.

A random sample of the space is compiled with one process and with ``--jobs``: that ratio is measured, but the last
compiles of a small sample leave most processes idle. The whole space is compiled with ``--jobs`` alone; what one
process would take for it is the sample's time with one, divided by the sample's share of all compile seconds of that
run.
"""

import argparse
import os
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from autotune.device import NVIDIA_H200
from autotune.executor.compile_pool import COMPILE_SECONDS, CompilePool
from autotune.registry import get_implementation, get_operation
from autotune.shape import AttentionShape
from autotune.space import Config
from autotune.trial import Candidate, Outcome

OPERATION: Final = get_operation("flash_attention")
IMPLEMENTATION: Final = get_implementation("flash_attention", "triton")
SHAPE: Final = AttentionShape(batch=4, heads=16, seq_q=4096, head_dim=128, dtype="bfloat16", causal=True)
SEED: Final = 0
WATCH_SECONDS: Final = 1.0


class Scale:
    """Weighs every descendant of this process while it is entered, by proportional set size in MB.

    ``heaviest_mb`` is that of the samples with all the compilers at work; ``alone_mb`` is the heaviest of all samples:
    the server before its first compiler, which has nobody to share its libraries with.
    """

    def __init__(self, jobs: int) -> None:
        self.heaviest_mb = 0.0
        self.alone_mb = 0.0
        self.total_mb = 0.0
        self._jobs = jobs
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "Scale":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(WATCH_SECONDS):
            weights = [proportional_mb(pid) for pid in descendants(os.getpid())]
            self.alone_mb = max([self.alone_mb, *weights])
            if len(weights) > self._jobs:  # the server and its compilers
                self.heaviest_mb = max([self.heaviest_mb, *weights])
            self.total_mb = max(self.total_mb, sum(weights))


def descendants(pid: int) -> Iterator[int]:
    """Children, their children, and so on, that live at this moment."""
    try:
        tasks = [task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:  # gone meanwhile
        return
    for child in map(int, " ".join(tasks).split()):
        yield child
        yield from descendants(child)


def proportional_mb(pid: int) -> float:
    """A process's own memory, and its share of what it shares; 0 for one that is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("Pss:")), 0.0)


@contextmanager
def cold_pool(jobs: int) -> Iterator[CompilePool]:
    """A pool that has compiled the default and nothing else, over an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        pool = CompilePool(NVIDIA_H200, jobs=jobs, timeout=COMPILE_SECONDS)
        try:
            pool.open(OPERATION, SHAPE)
            compile_all(pool, [IMPLEMENTATION.space.default(SHAPE, NVIDIA_H200)])
            yield pool
        finally:
            pool.close()


def compile_all(pool: CompilePool, configs: Sequence[Config]) -> list[Outcome]:
    """Submit all and wait for all."""
    for config in configs:
        pool.submit(Candidate(IMPLEMENTATION.name, config))
    outcomes = [pool.receive(2 * COMPILE_SECONDS) for _ in configs]
    assert None not in outcomes, "the compile server is silent"
    return [outcome for outcome in outcomes if outcome is not None]


def timed(jobs: int, configs: Sequence[Config]) -> tuple[float, list[Outcome]]:
    """Seconds that so many processes take, and what came of it."""
    with cold_pool(jobs) as pool:
        started = time.monotonic()
        outcomes = compile_all(pool, configs)
        return time.monotonic() - started, outcomes


def main() -> None:
    """Entry of the command."""
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
    with Scale(jobs) as scale:
        whole, outcomes = timed(jobs, space)
    seconds = {outcome.config: outcome.compile_seconds or COMPILE_SECONDS for outcome in outcomes}
    share = sum(seconds[config] for config in sample) / sum(seconds.values())
    statuses = ", ".join(f"{count} {status}" for status, count in Counter(o.status for o in outcomes).items())
    say(f"the space with {jobs} processes: {whole:.1f} s ({statuses})")
    say(f"the space with 1 process, from the sample's share of {share:.1%}: {alone / share:.1f} s")
    say(f"speed-up: {alone / share / whole:.1f}")
    say(f"heaviest of {jobs} compilers and their server: {scale.heaviest_mb:.0f} MB of proportional set size")
    say(f"the server alone, before its first compiler: {scale.alone_mb:.0f} MB; all together {scale.total_mb:.0f} MB")


if __name__ == "__main__":
    main()
