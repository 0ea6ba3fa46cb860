"""Building blocks of the commands: numbers, a GPU to measure on, and Markdown tables that are printed row by row."""

import argparse
import math
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

from autotune import platforms
from autotune.executor.gpu import GpuExecutor
from autotune.executor.select import NO_GPU


def parse_count(text: str) -> int:
    """Parse a number from 1 on; raise ArgumentTypeError for another."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; expected a number from 1 on")
    return int(text)


def parse_duration(text: str) -> float:
    """Parse a number of seconds or minutes above 0; raise ArgumentTypeError for another."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; expected a number above 0")
    return value


def end_with_reader() -> None:
    """Let this process end without a word when what reads its output does, as ``head`` ends."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


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
