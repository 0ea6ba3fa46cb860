"""What the commands of ``autotune analyze`` share: options, usual problems, printing, and how they end."""

import functools
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

import typer
from rich.console import Console
from rich.table import Table

from autotune import hardware
from autotune.cli import interrupts, options
from autotune.cli.cpu_sizes import PAGED, sized_for_cpu
from autotune.cli.options import Command, with_options
from autotune.cli.output import make_console
from autotune.cli.shape_options import OPERATION, ShapeOptions
from autotune.cli.shapes import describe
from autotune.comparison.names import ALL
from autotune.errors import AutotuneError
from autotune.registry import get_operation
from autotune.shape import AttentionShape, Shape

if TYPE_CHECKING:
    from autotune.analysis.sheets import Sheet

Where = Annotated[
    str | None, typer.Option("--device", metavar="cpu|cuda", help="Where to measure [default: what is here].")
]
Against = Annotated[
    str,
    typer.Option("--against", metavar="NAMES", help="Baselines by name, comma-separated [default: all that run here]."),
]
Figure = Annotated[Path | None, typer.Option("--figure", metavar="FILE", help="Draw it: FILE.png or FILE.svg.")]
Json = options.Json

ItemT = TypeVar("ItemT")


def takes_shapes(usual: Mapping[str, Any], *, also_on_gpu: bool) -> Callable[[Command], Command]:
    """Give a command the shape options in place of its parameter ``wanted``, with other sizes where none are given.

    ``usual`` are those of dense attention; unless ``also_on_gpu``, a machine with a GPU keeps the options' own. Of
    models and paged caches a CPU has small batches and lengths (``cpu_sizes``), a GPU the options' own.
    """

    def make(**given: Any) -> ShapeOptions:
        return ShapeOptions(**given)

    parameters = [
        _with_default(parameter, usual.get(parameter.name), also_on_gpu=also_on_gpu)
        for parameter in inspect.signature(ShapeOptions).parameters.values()
    ]
    make.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def run(*, wanted: ShapeOptions, **others: Any) -> None:
            is_on_gpu = hardware.has_gpu() and others["device"] != "cpu"
            found = describe(_sized(wanted, usual, is_on_gpu=is_on_gpu, also_on_gpu=also_on_gpu))
            for note in found.notes:
                make_console(others["as_json"]).print(note)
            command(wanted=found, **others)

        return with_options(run, "wanted", make)

    return decorate


def split_names(against: str) -> list[str]:
    """The names of a list with commas; none: all."""
    return [name for name in against.split(",") if name.strip()] or [ALL]


def _sized(options: ShapeOptions, usual: Mapping[str, Any], *, is_on_gpu: bool, also_on_gpu: bool) -> ShapeOptions:
    """The options with this command's sizes where none were given."""
    is_dense = get_operation(options.operation or OPERATION).shape_class is AttentionShape
    if options.model is not None or not is_dense:
        return options if is_on_gpu else sized_for_cpu(options)
    if is_on_gpu and not also_on_gpu:
        return options
    return replace(options, **{name: value for name, value in usual.items() if getattr(options, name) is None})


def _with_default(parameter: inspect.Parameter, value: Any, *, also_on_gpu: bool) -> inspect.Parameter:
    """A shape option whose help names the defaults of this command: of dense attention, and of a paged cache."""
    kind, option = get_args(parameter.annotation)
    default = re.search(r" \[default: (.*)\]", option.help)
    if default is None:
        return parameter
    dense, _, paged = default[1].partition("; paged: ")
    small = PAGED.get(parameter.name)
    if value is None and small is None:
        return parameter
    if option.help.startswith("Paged: "):
        text = f"{dense}; on a CPU {small}"
    else:
        text = str(value) if also_on_gpu else f"{value}; on a GPU {dense}"
        if not option.help.startswith("Dense: "):
            text += f"; paged: {paged or dense}" + (f"; paged on a CPU {small}" if small else "")
    changed = typer.Option(*option.param_decls, help=option.help.replace(default[0], f" [default: {text}]"))
    return parameter.replace(annotation=Annotated[kind, changed])


def print_sheets(console: Console, sheets: Sequence["Sheet"], *, text_columns: int = 1) -> None:
    """Title, table and notes of each; the first ``text_columns`` columns are aligned to the left."""
    for sheet in sheets:
        console.print(sheet.title, style="bold")
        if sheet.rows:
            table = Table(box=None, pad_edge=False, header_style="bold")
            for index, column in enumerate(sheet.columns):
                table.add_column(column, justify="right" if index >= text_columns else "left")
            for row in sheet.rows:
                table.add_row(*row)
            console.print(table)
        for note in sheet.notes:
            console.print(note)
        console.print()


def print_absent(console: Console, absent: Mapping[Shape, Mapping[str, str]]) -> None:
    """A line for each implementation that did not run over the shapes, with its reason: once for all of them."""
    from autotune.analysis.sheets import absence_lines

    for line in absence_lines({f"over {shape}": reasons for shape, reasons in absent.items()}):
        console.print(line)


def print_json(as_json: bool, data: dict[str, Any]) -> None:
    """Print it on standard output where that was asked for; dataclasses are their fields."""
    if as_json:
        print(json.dumps(data, indent=2, default=_fields))


def keep(found: Iterable[ItemT]) -> tuple[list[ItemT], bool]:
    """All that comes, or what came before Ctrl-C or SIGTERM, and whether one of these ended it."""
    kept: list[ItemT] = []
    try:
        for item in found:
            kept.append(item)
    except KeyboardInterrupt:
        return kept, True
    return kept, False


def end(console: Console, *, is_interrupted: bool, idle: Iterable[Shape] = ()) -> None:
    """Return where a command did its work.

    Raises:
        typer.Exit: it was interrupted, which is said; the code is the signal's.
        AutotuneError: nothing ran over the shapes ``idle``.
    """
    if is_interrupted:
        console.print("interrupted: what was measured before is shown")
        raise typer.Exit(interrupts.exit_code())
    if shapes := "; ".join(map(str, idle)):
        raise AutotuneError(f"nothing that was asked for runs here: {shapes}")


def _fields(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{type(value).__name__} is no plain data")
