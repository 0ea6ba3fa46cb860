"""Building blocks of the lab's commands: shared options, default sizes, dense shapes, and interrupts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import click
from rich.console import Console

from autotune import platforms
from autotune.console import interrupts
from autotune.console.command import Decorator, option
from autotune.console.options import PATH, place_option, split_names
from autotune.console.shape_options import DECLARATIONS, OPERATION, ShapeOptions, own_options, shape_options
from autotune.console.shapes import Wanted, describe
from autotune.errors import AutotuneError
from autotune.lab.bench.each_shape import ALL, choose_names
from autotune.lab.machine.processor import ProcessorKind
from autotune.registry import get_operation, load_baselines
from autotune.shape import AttentionShape, PagedShape, Shape

ItemT = TypeVar("ItemT")

where_option: Final = place_option("cpu", "cuda")
figure_option: Final = option("--figure", metavar="FILE.svg", type=PATH, help="Draw the result as an SVG file.")
against_option: Final = option(
    "--against", metavar="NAMES", help="Baselines by name, comma-separated.", default_text="all that run here"
)

# The shape options of analyses that know dense attention alone.
DENSE: Final = ("seq", "batch", "heads", "kv_heads", "head_dim", "dtype", "causal")
CPU_DENSE: Final = {"batch": "1", "seq": "512"}
CPU_PAGED: Final = {"batch": "2", "context": "512"}
CPU_SIZES: Final[Mapping[type[Shape], Mapping[str, str]]] = {AttentionShape: CPU_DENSE, PagedShape: CPU_PAGED}
CPU_SIZES_TEXT: Final = "; paged: ".join(
    ", ".join(f"{name} {size}" for name, size in sizes.items()) for sizes in (CPU_DENSE, CPU_PAGED)
)


def dense_options(*, lengths: str, batch: str) -> Decorator:
    """Add the options of dense attention's shapes; ``lengths`` and ``batch`` are the command's defaults in the help."""
    usual = {"heads": "8; on a GPU 16", "head_dim": "64; on a GPU 128", "dtype": "float32; on a GPU bfloat16"}
    others = {"kv_heads": "as many as --heads", "causal": "no"}
    return shape_options({"seq": lengths, "batch": batch, **usual, **others}, only=DENSE)


def dense_shapes(options: ShapeOptions, kind: ProcessorKind, **usual: str | None) -> list[AttentionShape]:
    """Return one shape for each length; what was not given is ``usual``, or small on a CPU and usual sizes on a GPU."""
    heads, width, dtype = (16, 128, "bfloat16") if kind == "cuda" else (8, 64, "float32")
    given = {"heads": heads, "head_dim": width, "dtype": dtype, "causal": False, **usual, **options.given()}
    problems = describe(ShapeOptions(**{"kv_heads": given["heads"], **given})).problems
    return sorted((shape for _, shape in problems if isinstance(shape, AttentionShape)), key=lambda shape: shape.seq_q)


def sized_for_cpu(options: ShapeOptions) -> ShapeOptions:
    """Fill in a CPU's batch and length where none were given; heads stay those of the problem or its model.

    Example:
        >>> sized_for_cpu(ShapeOptions(operation="paged_decode", batch="4")).context
        '512'
    """
    if options.shape:
        return options
    return replace(options, **{**CPU_SIZES.get(_shape_class(options), {}), **options.given()})


@dataclass(frozen=True, slots=True)
class CommandSizes:
    """A command's own sizes of dense attention, by option; models and paged caches have a CPU's (``sized_for_cpu``).

    A GPU keeps the usual ones, unless ``also_on_gpu``.
    """

    dense: Mapping[str, Any]
    also_on_gpu: bool = False

    def fill(self, options: ShapeOptions, *, is_on_gpu: bool) -> ShapeOptions:
        """Fill in these sizes where none were given."""
        if options.shape:
            return options
        if options.model is not None or _shape_class(options) is not AttentionShape:
            return options if is_on_gpu else sized_for_cpu(options)
        if is_on_gpu and not self.also_on_gpu:
            return options
        return replace(options, **{**self.dense, **options.given()})

    def defaults(self) -> dict[str, str]:
        """Return the texts of these defaults for ``shape_options``."""
        return {name: self._text(name) for name in {**self.dense, **CPU_PAGED}}

    def _text(self, name: str) -> str:
        usual = DECLARATIONS[name]
        small = f"; on a CPU {CPU_PAGED[name]}" if name in CPU_PAGED else ""
        if name not in self.dense:
            return f"{usual.dense}{small}"
        text = str(self.dense[name]) if self.also_on_gpu else f"{self.dense[name]}; on a GPU {usual.dense}"
        if name in own_options("Dense"):
            return text
        return f"{text}; paged: {usual.paged or usual.dense}{small.replace('; on', '; paged on')}"


def _shape_class(options: ShapeOptions) -> type[Shape]:
    return get_operation(options.operation or OPERATION).shape_class


def describe_sized(options: ShapeOptions, sizes: CommandSizes, device: str | None, console: Console) -> Wanted:
    """Return the problems of a command with default sizes of its own, and print their notes."""
    wanted = describe(sizes.fill(options, is_on_gpu=platforms.has_gpu() and device != "cpu"))
    for note in wanted.notes:
        console.print(note)
    return wanted


def names_to_compare(operation: str, against: str | None) -> tuple[str, ...]:
    """Return the names of the chosen baselines of an operation; all where none was named."""
    return tuple(choose_names(load_baselines(operation), split_names(against) or (ALL,)))


def keep(found: Iterable[ItemT]) -> tuple[list[ItemT], bool]:
    """Collect items until their end or an interrupt; return them, and True if it was an interrupt."""
    kept: list[ItemT] = []
    try:
        for item in found:
            kept.append(item)
    except KeyboardInterrupt:
        return kept, True
    return kept, False


def end(console: Console, *, is_interrupted: bool, idle: Iterable[Shape] = ()) -> None:
    """Return if a command did its work; else exit with the signal's code, or raise AutotuneError for idle shapes."""
    if is_interrupted:
        console.print("interrupted: what was measured before is shown")
        raise click.exceptions.Exit(interrupts.exit_code())
    if shapes := "; ".join(map(str, idle)):
        raise AutotuneError(f"nothing that was asked for runs here: {shapes}")
