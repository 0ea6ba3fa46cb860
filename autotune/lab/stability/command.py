"""``autotune analyze stability``."""

from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console

from autotune.console.command import command
from autotune.console.options import json_option
from autotune.console.output import make_console, print_json, print_sheets, say
from autotune.console.shape_options import ShapeOptions, shape_options
from autotune.lab import commands
from autotune.lab.absent import absence_lines_by_shape
from autotune.lab.commands import CommandSizes
from autotune.lab.machine.processor import ProcessorKind, choose_kind
from autotune.operation import Operation
from autotune.shape import Shape

if TYPE_CHECKING:
    from autotune.lab.stability.examination import Stability

# Those of AMD's exercise, see docs/analyses.md.
SIZES: Final = CommandSizes({"batch": "2", "heads": 8, "seq": "256", "head_dim": 64}, also_on_gpu=True)


@command("stability")
@shape_options(SIZES.defaults())
@commands.where_option
@commands.against_option
@json_option
def stability(shape: ShapeOptions, device: str | None, against: str | None, as_json: bool) -> None:
    """Count NaN and infinities and compare errors with fp64, for every implementation over seven kinds of inputs.

    The inputs are normal, times 0.1, 10 and 100, noisy, with one token 100 times larger, and all equal. The exit code
    is 1 where a kernel of ours returns NaN or infinities, or exceeds the error that eager torch's own allows, and
    where nothing ran.
    """
    from autotune.lab.stability.examination import failure_lines, stability_data

    console = make_console(as_json)
    wanted = commands.describe_sized(shape, SIZES, device, console)
    kind = choose_kind(device)
    found, is_interrupted = commands.keep(
        _examine(console, operation, each, against, kind) for operation, each in wanted.problems
    )
    absent = absence_lines_by_shape({each.shape: dict(each.absent) for each in found})
    for line in (*absent, *(line for each in found for line in failure_lines(each))):
        console.print(line)
    if as_json:
        print_json([stability_data(each) for each in found])
    commands.end(console, is_interrupted=is_interrupted, idle=[each.shape for each in found if not each.findings])
    if any(each.failures for each in found):
        raise click.exceptions.Exit(1)


def _examine(
    console: Console, operation: Operation[Any], shape: Shape, against: str | None, kind: ProcessorKind
) -> "Stability":
    from autotune.lab.stability.examination import examine, stability_sheet

    names = commands.names_to_compare(operation.name, against)
    found = examine(operation, shape, names, kind=kind, on_case=lambda case: say(f"examining {case!r} inputs"))
    print_sheets(console, [stability_sheet(found)])
    return found
