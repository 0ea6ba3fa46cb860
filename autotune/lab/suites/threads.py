"""Torch's threads, set for a while."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Final

import torch

from autotune.lab.bench.machines import Call, Machine
from autotune.trial import Timing

THREADS: Final = (1, 2)


def time_by_threads(
    machine: Machine, calls: Mapping[str, Call], rounds: int
) -> Iterator[tuple[int | None, dict[str, Timing]]]:
    """Time calls with each number of threads; on a GPU, where they change nothing, with None."""
    for threads in THREADS if machine.kind == "cpu" else (None,):
        with torch_threads(threads):
            times = machine.time(calls, rounds=rounds)
        yield threads, times


@contextlib.contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Compute torch's operators on the CPU with so many threads, and reset the number afterwards; None leaves it."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before if count is None else count)
        yield
    finally:
        torch.set_num_threads(before)
