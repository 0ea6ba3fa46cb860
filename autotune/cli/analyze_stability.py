"""``autotune analyze stability``: NaN, infinities and errors over inputs that strain a softmax."""

import json
from typing import TYPE_CHECKING, Any, Final

import typer
from rich.console import Console

from autotune.cli import analyzed
from autotune.cli.output import make_console, say
from autotune.cli.shapes import Wanted
from autotune.comparison import choose_names
from autotune.operation import Operation
from autotune.registry import load_kernel
from autotune.shape import Shape

if TYPE_CHECKING:
    from autotune.analysis.processor import Kind
    from autotune.analysis.stability import Stability

USUAL: Final = {"batch": "2", "heads": 8, "seq": "256", "head_dim": 64}  # of AMD's exercise: origins, section 5


@analyzed.takes_shapes(USUAL, also_on_gpu=True)
def stability(
    *,
    wanted: Wanted,
    device: analyzed.Where = None,
    against: analyzed.Against = "",
    as_json: analyzed.Json = False,
) -> None:
    """Count NaN and infinities and compare errors with fp64, for every implementation over seven kinds of inputs.

    The inputs are normal, times 0.1, 10 and 100, noisy, with one token 100 times larger, and all equal. The exit code
    is 1 where a kernel of ours returns NaN or infinities, or exceeds the error that eager torch's own allows, and
    where nothing ran.
    """
    from autotune.analysis.processor import choose_kind
    from autotune.report.stability import failure_lines, stability_data

    kind = choose_kind(device)
    console = make_console(as_json)
    found, is_interrupted = analyzed.keep(
        _examine(console, operation, shape, against, kind) for operation, shape in wanted.problems
    )
    analyzed.print_absent(console, {each.shape: dict(each.absent) for each in found})
    for line in (line for each in found for line in failure_lines(each)):
        console.print(line)
    if as_json:
        print(json.dumps([stability_data(each) for each in found], indent=2))
    analyzed.end(console, is_interrupted=is_interrupted, idle=[each.shape for each in found if not each.findings])
    if any(each.failures for each in found):
        raise typer.Exit(1)


def _examine(console: Console, operation: Operation[Any], shape: Shape, against: str, kind: "Kind") -> "Stability":
    from autotune.analysis.stability import examine
    from autotune.report.stability import stability_sheet

    names = choose_names(load_kernel(operation.name).baselines(), analyzed.split_names(against))
    found = examine(operation, shape, names, kind=kind, on_case=lambda case: say(f"examining {case!r} inputs"))
    analyzed.print_sheets(console, [stability_sheet(found)], text_columns=2)
    return found
