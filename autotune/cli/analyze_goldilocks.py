"""``autotune analyze goldilocks``: the combination that is just right, by time, memory and error."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console

from autotune.cli import analyzed
from autotune.cli.output import make_console
from autotune.cli.shapes import Wanted

if TYPE_CHECKING:
    from autotune.analysis.goldilocks import Exploration

USUAL: Final = {"batch": "2", "heads": 8, "seq": "256", "head_dim": 64}  # a CPU's: a point takes seconds at most

Trials = Annotated[int, typer.Option("--trials", min=1, help="Combinations to measure at most, for each shape.")]
Seconds = Annotated[float, typer.Option("--seconds", min=1.0, help="After which none is begun, for each shape.")]
Seed = Annotated[int, typer.Option("--seed", help="Of inputs and sampler.")]


@analyzed.takes_shapes(USUAL, also_on_gpu=False)
def goldilocks(
    *,
    wanted: Wanted,
    trials: Trials = 60,
    seconds: Seconds = 40.0,
    device: analyzed.Where = None,
    against: analyzed.Against = "",
    seed: Seed = 0,
    figure: analyzed.Figure = None,
    as_json: analyzed.Json = False,
) -> None:
    """Search implementation, KV precision and launch parameters together, and show what none beats.

    Time, memory (keys and values as stored, and the most that a call holds beside them) and error (against fp64 over
    inputs that were not rounded) are minimised at once. The precision of --dtype is one of those searched.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler, which reads it once, tells every step
    from autotune.analysis.processor import choose_kind
    from autotune.errors import UsageError
    from autotune.report.goldilocks import exploration_data
    from autotune.report.roofline_figure import check_figure

    if figure is not None:
        check_figure(figure)
        if len(wanted.problems) > 1:
            raise UsageError(f"figure={str(figure)!r} shows one shape; {len(wanted.problems)} were asked for")
    kind = choose_kind(device)
    console = make_console(as_json)
    explored = _explore(console, wanted, kind, trials=trials, seconds=seconds, against=against, seed=seed)
    found, is_interrupted = analyzed.keep(_show(console, each, figure) for each in explored)
    analyzed.print_absent(console, {each.shape: dict(each.absent) for each in found})
    if as_json:
        print(json.dumps([exploration_data(each) for each in found], indent=2))
    analyzed.end(console, is_interrupted=is_interrupted)


def _show(console: Console, found: "Exploration", figure: Path | None) -> "Exploration":
    from autotune.report.goldilocks import exploration_sheets
    from autotune.report.pareto_figure import draw_front

    analyzed.print_sheets(console, exploration_sheets(found), text_columns=2)
    if figure is not None:
        draw_front(found, figure)
        console.print(f"wrote {figure}")
    return found


def _explore(
    console: Console, wanted: Wanted, kind: str, *, trials: int, seconds: float, against: str, seed: int
) -> Iterator["Exploration"]:
    """Each shape's, as it ends."""
    from autotune.analysis.goldilocks import Bench, PointResult, explore
    from autotune.analysis.goldilocks_cpu import CpuBench
    from autotune.analysis.goldilocks_gpu import GpuBench
    from autotune.comparison import choose_names
    from autotune.executor.select import Settings, open_gpu
    from autotune.registry import load_kernel

    def tell(measured: PointResult) -> None:
        if console.is_terminal:
            console.print(f"measured {measured.point}" + (f": {measured.message}" if measured.message else ""))

    executor = open_gpu(Settings(early_stop=False)) if kind == "cuda" else None
    try:
        for operation, shape in wanted.problems:
            names = choose_names(load_kernel(operation.name).baselines(), analyzed.split_names(against))
            bench: Bench = (
                CpuBench(operation, shape, names, seed=seed)
                if executor is None
                else GpuBench(executor, operation, shape, names, seed=seed)
            )
            found = explore(operation, shape, bench, trials=trials, seconds=seconds, seed=seed, on_measured=tell)
            yield found
            if found.is_interrupted:
                raise KeyboardInterrupt
    finally:
        if executor is not None:
            executor.close()
