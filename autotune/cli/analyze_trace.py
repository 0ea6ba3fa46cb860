"""``autotune analyze trace``: steps under torch's profiler, and a Chrome trace of each implementation."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console

from autotune.cli import analyzed
from autotune.cli.output import make_console
from autotune.cli.shapes import Wanted
from autotune.operation import Operation
from autotune.shape import Shape

if TYPE_CHECKING:
    from autotune.analysis.trace import Traced

USUAL: Final = {"batch": "2", "heads": 8, "seq": "512", "head_dim": 64}  # a CPU's: steps of a second at most

Output = Annotated[Path, typer.Option("--output", metavar="DIR", help="Where the traces are written.")]
Place = Annotated[
    str | None, typer.Option("--device", metavar="cpu|cuda|hpu", help="Where to run [default: what is here].")
]
Wait = Annotated[int, typer.Option("--wait", min=0, help="Steps that are skipped first.")]
Warmup = Annotated[int, typer.Option("--warmup", min=0, help="Steps that warm the profiler up.")]
Active = Annotated[int, typer.Option("--active", min=1, help="Steps that are recorded.")]
Repeat = Annotated[int, typer.Option("--repeat", min=1, help="How often; each has a trace of its own.")]
Stacks = Annotated[bool, typer.Option("--stacks/--no-stacks", help="Record Python's stacks.")]


@analyzed.takes_shapes(USUAL, also_on_gpu=False)
def trace(
    *,
    wanted: Wanted,
    output: Output = Path("traces"),
    device: Place = None,
    against: analyzed.Against = "",
    wait: Wait = 0,
    warmup: Warmup = 1,
    active: Active = 3,
    repeat: Repeat = 1,
    stacks: Stacks = True,
    as_json: analyzed.Json = False,
) -> None:
    """Profile every implementation step by step, and write a gzip Chrome trace of each.

    Of several shapes each has a folder of its own. The exit code is 1 where nothing ran.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler, which reads it once, tells every step
    from autotune.analysis.trace import Schedule, choose_place
    from autotune.report.trace import trace_data, viewer_lines

    place = choose_place(device)  # before torch is loaded
    schedule = Schedule(wait=wait, warmup=warmup, active=active, repeat=repeat)
    console = make_console(as_json)
    traces = _trace(console, wanted, output, against, place=place, schedule=schedule, stacks=stacks)
    found, is_interrupted = analyzed.keep(traces)
    absent: dict[Shape, dict[str, str]] = {shape: {} for _, shape, _ in found}
    for _, shape, traced in found:
        absent[shape] |= {traced.name: traced.message} if traced.message else {}
    analyzed.print_absent(console, absent)
    seen = {shape for _, shape, traced in found if traced.files}
    if seen:
        for line in viewer_lines(output, place):
            console.print(line)
    if as_json:
        data = [{"operation": operation.name, **trace_data(traced, shape)} for operation, shape, traced in found]
        print(json.dumps(data, indent=2))
    idle = [shape for _, shape in wanted.problems if shape not in seen]
    analyzed.end(console, is_interrupted=is_interrupted, idle=idle)


def _trace(
    console: Console, wanted: Wanted, output: Path, against: str, **how: Any
) -> Iterator[tuple[Operation[Any], Shape, "Traced"]]:
    """Each implementation over each shape, printed as it ends; what was not traced is for the end."""
    from autotune.analysis.trace import trace_all
    from autotune.comparison import choose_names
    from autotune.registry import load_kernel
    from autotune.report.trace import trace_sheets

    for operation, shape in wanted.problems:
        folder = output if len(wanted.problems) == 1 else output / re.sub(r"[^\w]+", "_", str(shape))
        names = choose_names(load_kernel(operation.name).baselines(), analyzed.split_names(against))
        for traced in trace_all(operation, shape, names, folder, **how):
            if not traced.message:
                analyzed.print_sheets(console, trace_sheets(traced, shape), text_columns=1)
            yield operation, shape, traced
