"""The work of a comparison in pieces, run by worker processes."""

import functools
import json
import multiprocessing
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.search_efficiency import kernel_tuner
from benchmarks.search_efficiency.machine import Judged
from benchmarks.search_efficiency.recordings import Recording, load
from benchmarks.search_efficiency.samplers import Run, run_sampler

SEEDS_A_TASK: Final = 5


@dataclass(frozen=True)
class Task:
    """Some runs of one sampler on one recording, by number."""

    sampler: str
    recording: str
    numbers: tuple[int, ...]
    kernel_tuner_python: Path

    def run_once(self, kept: Path | None) -> list[Run]:
        """Return the runs of ``run``, from ``kept`` if they stand there; else they are written there as they end."""
        if kept is None:
            return self.run()
        file = kept / f"{self.sampler}-{self.recording}-{self.numbers[0]}-{self.numbers[-1]}.json"
        if file.exists():
            return [_decode(document) for document in json.loads(file.read_text())]
        runs = self.run()
        partial = file.with_suffix(".partial")
        partial.write_text(json.dumps([asdict(run) for run in runs]))
        partial.replace(file)
        return runs

    def run(self) -> list[Run]:
        """Run all in turn; raise ImportError without a needed package, KernelTunerError if its subprocess failed."""
        recording = recordings()[self.recording]
        seeds = [recording.seed(number) for number in self.numbers]
        if self.sampler.startswith(kernel_tuner.PREFIX):
            strategy = self.sampler.removeprefix(kernel_tuner.PREFIX)
            return kernel_tuner.run_strategy(self.kernel_tuner_python, strategy, recording, seeds)
        return [run_sampler(self.sampler, recording, seed) for seed in seeds]


@functools.cache
def recordings() -> dict[str, Recording]:
    """Return the recordings by name, decoded once in each process: a pickled config would carry another's hash."""
    return {recording.name: recording for recording in load()}


def make_tasks(seeds: dict[str, int], sweeps: Sequence[str], kernel_tuner_python: Path) -> list[Task]:
    return [
        Task(sampler, sweep, tuple(range(start, min(start + SEEDS_A_TASK, count))), kernel_tuner_python)
        for sampler, count in seeds.items()
        for sweep in sweeps
        for start in range(0, count, SEEDS_A_TASK)
    ]


def run_all(tasks: Sequence[Task], jobs: int, kept: Path | None = None) -> tuple[list[Run], dict[str, str]]:
    """Return the runs in the order of the tasks, and the reason for each sampler that could not run.

    Runs that stand in the folder ``kept`` are read instead, so that a comparison of hours can be stopped and resumed.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before a worker loads numpy or torch: the processes fill the cores
    runs: list[Run] = []
    failed: dict[str, str] = {}
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(task.run_once, kept) for task in tasks]
        for done, _ in enumerate(as_completed(futures), 1):
            print(f"\r{done}/{len(futures)} tasks", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        for task, future in zip(tasks, futures, strict=True):
            try:
                runs += future.result()
            except (ImportError, kernel_tuner.KernelTunerError) as error:
                failed.setdefault(task.sampler, f"{type(error).__name__}: {error}")
    return runs, failed


def _decode(document: dict[str, Any]) -> Run:
    pipelined = document.pop("pipelined")
    return Run(**document, pipelined=pipelined and [Judged(*judged) for judged in pipelined])
