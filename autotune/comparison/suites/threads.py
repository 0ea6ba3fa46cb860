"""Torch's threads, set for a while."""

import contextlib
from collections.abc import Iterator
from typing import Final

import torch

from autotune.comparison.suites.machine import Machine

THREADS: Final = (1, 2)


def thread_counts(machine: Machine) -> tuple[int | None, ...]:
    """The numbers of threads to measure with; on a GPU they change nothing."""
    return THREADS if machine.kind == "cpu" else (None,)


@contextlib.contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """So many threads within torch's operators on the CPU, and as many as before afterwards; None: as they are."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before if count is None else count)
        yield
    finally:
        torch.set_num_threads(before)
