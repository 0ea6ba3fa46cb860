"""Building blocks of the commands: a GPU to measure on, and Markdown tables that are printed row by row."""

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

from autotune import platforms
from autotune.executor.gpu import GpuExecutor
from autotune.executor.select import NO_GPU


def require_gpu(command: str) -> None:
    """Exit with a line that begins with the name of the command where no GPU is visible."""
    if not platforms.has_gpu():
        sys.exit(f"benchmarks.{command}: {NO_GPU}")


@contextmanager
def open_gpu(command: str) -> Iterator[GpuExecutor]:
    """Open the GPU here, and print its name and toolchain; exit as ``require_gpu`` does."""
    require_gpu(command)
    with closing(GpuExecutor()) as executor:
        print(f"{executor.device.name}, {executor.toolchain}")
        yield executor


def print_head(*names: str) -> None:
    print_row(*names)
    print(f"|{'---|' * len(names)}")


def print_row(*cells: object) -> None:
    print(f"| {' | '.join(map(str, cells))} |", flush=True)
