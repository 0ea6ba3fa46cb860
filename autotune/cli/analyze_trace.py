"""``autotune analyze trace``: steps under torch's profiler, and a Chrome trace of each implementation."""

import json
import os
import re
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from autotune.cli import analyzed
from autotune.cli.output import make_console
from autotune.cli.shapes import Wanted

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

    Of several shapes each has a folder of its own.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler, which reads it once, tells every step
    from autotune.analysis.trace import Schedule, choose_place, trace_all
    from autotune.report.trace import trace_data, trace_sheets, viewer_lines

    place = choose_place(device)  # before torch is loaded
    from autotune.comparison import choose_names
    from autotune.registry import load_kernel

    schedule = Schedule(wait=wait, warmup=warmup, active=active, repeat=repeat)
    console = make_console(as_json)
    data: list[dict[str, Any]] = []
    for operation, shape in wanted.problems:
        folder = output if len(wanted.problems) == 1 else output / re.sub(r"[^\w]+", "_", str(shape))
        names = choose_names(load_kernel(operation.name).baselines(), analyzed.split_names(against))
        for traced in trace_all(operation, shape, names, folder, place=place, schedule=schedule, stacks=stacks):
            analyzed.print_sheets(console, trace_sheets(traced, shape), text_columns=1)
            data.append({"operation": operation.name, **trace_data(traced, shape)})
    for line in viewer_lines(output, place):
        console.print(line)
    if as_json:
        print(json.dumps(data, indent=2))
