"""Default sizes of commands that measure on a processor: a problem of seconds, not of minutes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from autotune.console.shape_options import DECLARATIONS, OPERATION, Declaration, ShapeOptions
from autotune.registry import get_operation
from autotune.shape import AttentionShape, PagedShape, Shape

DENSE: Final = {"batch": "1", "seq": "512"}
PAGED: Final = {"batch": "2", "context": "512"}
CPU_SIZES: Final[Mapping[type[Shape], Mapping[str, str]]] = {AttentionShape: DENSE, PagedShape: PAGED}
CPU_SIZES_TEXT: Final = "; paged: ".join(
    ", ".join(f"{name} {size}" for name, size in sizes.items()) for sizes in (DENSE, PAGED)
)


def sized_for_cpu(options: ShapeOptions) -> ShapeOptions:
    """Fill in a CPU's batch and length where none were given; heads stay those of the problem or its model.

    Raises:
        UnknownNameError: there is no such operation.

    Example:
        >>> sized_for_cpu(ShapeOptions(operation="paged_decode", batch="4")).context
        '512'
    """
    return _filled(options, CPU_SIZES.get(_shape_class(options), {}))


@dataclass(frozen=True, slots=True)
class CommandSizes:
    """A command's own sizes of dense attention, by option; models and paged caches have a CPU's (``sized_for_cpu``).

    A GPU keeps the usual ones, unless ``also_on_gpu``.
    """

    dense: Mapping[str, Any]
    also_on_gpu: bool = False

    def fill(self, options: ShapeOptions, *, is_on_gpu: bool) -> ShapeOptions:
        """Fill in these sizes where none were given."""
        if options.model is not None or _shape_class(options) is not AttentionShape:
            return options if is_on_gpu else sized_for_cpu(options)
        return options if is_on_gpu and not self.also_on_gpu else _filled(options, self.dense)

    def defaults(self) -> dict[str, str]:
        """Return the texts of these defaults for ``shape_options``."""
        return {name: self._text(name, DECLARATIONS[name]) for name in {**self.dense, **PAGED}}

    def _text(self, name: str, usual: Declaration) -> str:
        small = f"; on a CPU {PAGED[name]}" if name in PAGED else ""
        if name not in self.dense:
            return f"{usual.dense}{small}"
        text = str(self.dense[name]) if self.also_on_gpu else f"{self.dense[name]}; on a GPU {usual.dense}"
        if usual.help.startswith("Dense: "):
            return text
        return f"{text}; paged: {usual.paged or usual.dense}{small.replace('; on', '; paged on')}"


def _shape_class(options: ShapeOptions) -> type[Shape]:
    return get_operation(options.operation or OPERATION).shape_class


def _filled(options: ShapeOptions, sizes: Mapping[str, Any]) -> ShapeOptions:
    return replace(options, **{name: size for name, size in sizes.items() if getattr(options, name) is None})
