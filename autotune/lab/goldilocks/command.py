"""``autotune analyze goldilocks``."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console

from autotune.console.command import command, integer, number, option
from autotune.console.options import json_option
from autotune.console.output import make_console, print_json, print_sheets
from autotune.console.shape_options import ShapeOptions, shape_options
from autotune.console.shapes import Wanted
from autotune.errors import UsageError
from autotune.lab import commands
from autotune.lab.absent import absence_lines_by_shape
from autotune.lab.commands import CommandSizes
from autotune.lab.drawing.figure_file import check_figure

if TYPE_CHECKING:
    from autotune.lab.goldilocks.exploration import Exploration

SIZES: Final = CommandSizes({"batch": "2", "heads": 8, "seq": "256", "head_dim": 64})  # a point takes seconds at most


@command("goldilocks")
@shape_options(SIZES.defaults())
@option("--trials", type=integer(1), default=60, help="Most combinations to measure, a shape.")
@option("--seconds", type=number(1), default=40.0, help="Begin no combination after them, a shape.")
@commands.where_option
@commands.against_option
@option("--seed", type=integer(), default=0, help="Seed of inputs and sampler.")
@commands.figure_option
@json_option
def goldilocks(
    shape: ShapeOptions,
    trials: int,
    seconds: float,
    device: str | None,
    against: str | None,
    seed: int,
    figure: Path | None,
    as_json: bool,
) -> None:
    """Search implementation, KV precision and launch parameters together, and show what none beats.

    Time, memory (keys and values as stored, and the most that a call holds beside them) and error (against fp64 over
    inputs that were not rounded) are minimised at once. The precision of --dtype is one of those searched.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler, which reads it once, logs every step
    from autotune.lab.goldilocks.words import exploration_data
    from autotune.lab.machine.processor import choose_kind

    console = make_console(as_json)
    wanted = commands.describe_sized(shape, SIZES, device, console)
    if figure is not None:
        check_figure(figure)
        if len(wanted.problems) > 1:
            raise UsageError(f"figure={str(figure)!r} shows one shape; {len(wanted.problems)} were asked for")
    kind = choose_kind(device)
    explored = _explore(console, wanted, kind, trials=trials, seconds=seconds, against=against, seed=seed)
    found, is_interrupted = commands.keep(_show(console, each, figure) for each in explored)
    for line in absence_lines_by_shape({each.shape: dict(each.absent) for each in found}):
        console.print(line)
    if as_json:
        print_json([exploration_data(each) for each in found])
    commands.end(console, is_interrupted=is_interrupted)


def _show(console: Console, found: "Exploration", figure: Path | None) -> "Exploration":
    from autotune.lab.goldilocks.words import draw_front, exploration_sheets

    print_sheets(console, exploration_sheets(found))
    if figure is not None:
        draw_front(found, figure)
        console.print(f"wrote {figure}")
    return found


def _explore(
    console: Console, wanted: Wanted, kind: str, *, trials: int, seconds: float, against: str | None, seed: int
) -> Iterator["Exploration"]:
    from autotune.executor.select import Settings, open_gpu
    from autotune.lab.goldilocks.cpu_bench import CpuBench
    from autotune.lab.goldilocks.exploration import PointBench, PointResult, explore
    from autotune.lab.goldilocks.gpu_bench import GpuBench

    def show_point(measured: PointResult) -> None:
        if console.is_terminal:
            console.print(f"measured {measured.point}" + (f": {measured.message}" if measured.message else ""))

    executor = open_gpu(Settings(early_stop=False)) if kind == "cuda" else None
    try:
        for operation, shape in wanted.problems:
            names = commands.names_to_compare(operation.name, against)
            bench: PointBench = (
                CpuBench(operation, shape, names, seed=seed)
                if executor is None
                else GpuBench(executor, operation, shape, names, seed=seed)
            )
            found = explore(operation, shape, bench, trials=trials, seconds=seconds, seed=seed, on_measured=show_point)
            yield found
            if found.is_interrupted:
                raise KeyboardInterrupt
    finally:
        if executor is not None:
            executor.close()
