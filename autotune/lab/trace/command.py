"""``autotune analyze trace``."""

import os
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console

from autotune import sheets
from autotune.console.command import command, integer, option
from autotune.console.options import PATH, json_option, place_option
from autotune.console.output import make_console, print_json, print_sheets
from autotune.console.shape_options import ShapeOptions, shape_options
from autotune.console.shapes import Wanted
from autotune.lab import commands
from autotune.lab.absent import absence_lines_by_shape
from autotune.lab.commands import CommandSizes
from autotune.operation import Operation
from autotune.shape import Shape
from autotune.sheets import Sheet

if TYPE_CHECKING:
    from autotune.lab.trace.operator_times import TraceDevice
    from autotune.lab.trace.profiling import Traced

SIZES: Final = CommandSizes({"batch": "2", "heads": 8, "seq": "512", "head_dim": 64})  # a step takes a second at most


@command("trace")
@shape_options(SIZES.defaults())
@option("--output", metavar="DIR", type=PATH, default="traces", help="Folder of the traces.")
@place_option("cpu", "cuda", "hpu")
@commands.against_option
@option("--wait", type=integer(0), default=0, help="Steps to skip first.")
@option("--warmup", type=integer(0), default=1, help="Steps that warm the profiler up.")
@option("--active", type=integer(1), default=3, help="Steps to record.")
@option("--repeat", type=integer(1), default=1, help="Repetitions; each has a trace of its own.")
@option("--stacks/--no-stacks", default=True, help="Record Python's stacks.", default_text="stacks")
@json_option
def trace(
    shape: ShapeOptions,
    output: Path,
    device: str | None,
    against: str | None,
    wait: int,
    warmup: int,
    active: int,
    repeat: int,
    stacks: bool,
    as_json: bool,
) -> None:
    """Profile every implementation step by step, and write a gzip Chrome trace of each.

    Of several shapes each has a folder of its own. The exit code is 1 where nothing ran.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler, which reads it once, logs every step
    from autotune.lab.trace.profiling import Schedule, choose_trace_device

    console = make_console(as_json)
    wanted = commands.describe_sized(shape, SIZES, device, console)
    place = choose_trace_device(device)  # before torch is loaded
    schedule = Schedule(wait=wait, warmup=warmup, active=active, repeat=repeat)
    traces = _trace(console, wanted, output, against, device=place, schedule=schedule, stacks=stacks)
    found, is_interrupted = commands.keep(traces)
    absent: dict[Shape, dict[str, str]] = {each: {} for _, each, _ in found}
    for _, each, traced in found:
        absent[each] |= {traced.name: traced.message} if traced.message else {}
    seen = {each for _, each, traced in found if traced.files}
    for line in (*absence_lines_by_shape(absent), *(viewer_lines(output, place) if seen else ())):
        console.print(line)
    if as_json:
        print_json([{"operation": operation.name, **trace_data(traced, each)} for operation, each, traced in found])
    idle = [each for _, each in wanted.problems if each not in seen]
    commands.end(console, is_interrupted=is_interrupted, idle=idle)


def _trace(
    console: Console, wanted: Wanted, output: Path, against: str | None, **how: Any
) -> Iterator[tuple[Operation[Any], Shape, "Traced"]]:
    from autotune.lab.trace.profiling import trace_all

    for operation, shape in wanted.problems:
        folder = output if len(wanted.problems) == 1 else output / re.sub(r"[^\w]+", "_", str(shape))
        names = commands.names_to_compare(operation.name, against)
        for traced in trace_all(operation, shape, names, folder, **how):
            if not traced.message:
                print_sheets(console, trace_sheets(traced, shape))
            yield operation, shape, traced


PERFETTO: Final = "https://ui.perfetto.dev"
HABANA: Final = "https://perfetto.habana.ai"  # Intel's build of it, which knows a Gaudi's engines
MILLISECONDS: Final = sheets.number("ms", ".3f")
STEP_COLUMNS: Final = (*map(sheets.text, ("step", "name", "parameters")), MILLISECONDS, sheets.text("phase"))
OPERATOR_COLUMNS: Final = (
    *(sheets.text("name"), sheets.number("calls", "")),
    *(MILLISECONDS, sheets.number("share", ".1%")),
)


def trace_sheets(traced: "Traced", shape: Shape) -> list[Sheet]:
    steps = tuple((step.number, traced.name, str(shape), step.milliseconds, step.phase) for step in traced.steps)
    operators = tuple((each.name, each.calls, each.milliseconds, each.share) for each in traced.operators)
    files = tuple(f"wrote {file}" for file in traced.files)
    what = "operators on the CPU" if traced.timed_on == "cpu" else f"kernels on {traced.timed_on}"
    return [
        Sheet(traced.name, STEP_COLUMNS, steps),
        Sheet(f"{traced.name}: {what}, by their own time", OPERATOR_COLUMNS, operators, files),
    ]


def viewer_lines(folder: Path, device: "TraceDevice") -> list[str]:
    lines = [
        f"open {PERFETTO}, choose Open trace file, and pick a file of {folder} as it is, compressed; it stays in the "
        "browser. W, S, A and D zoom and move; a click on a slice shows its stack"
    ]
    also = f"a Gaudi's traces also open at {HABANA}, which names its engines: look for TPC and MME side by side"
    return [*lines, also] if device == "hpu" else [*lines, f"traces of a Gaudi also open at {HABANA}"]


def trace_data(traced: "Traced", shape: Shape) -> dict[str, Any]:
    data = asdict(traced) | {"files": [str(file) for file in traced.files]}
    return {"shape": shape.as_dict(), **data}
