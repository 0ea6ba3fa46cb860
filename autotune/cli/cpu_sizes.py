"""Which problem is measured on a CPU where no sizes are given: one of seconds, not of minutes."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from autotune.cli.shape_options import OPERATION, ShapeOptions
from autotune.registry import get_operation
from autotune.shape import AttentionShape, PagedShape, Shape

DENSE: Final = {"batch": "1", "seq": "512"}
PAGED: Final = {"batch": "2", "context": "512"}
CPU_SIZES: Final[Mapping[type[Shape], Mapping[str, str]]] = {AttentionShape: DENSE, PagedShape: PAGED}
CPU_SIZES_TEXT: Final = "; paged: ".join(
    ", ".join(f"{name} {size}" for name, size in sizes.items()) for sizes in (DENSE, PAGED)
)


def sized_for_cpu(options: ShapeOptions) -> ShapeOptions:
    """The options with a CPU's batch and length where none were given; heads stay those of the problem or its model.

    Raises:
        UnknownNameError: there is no such operation.

    Example:
        >>> sized_for_cpu(ShapeOptions(operation="paged_decode", batch="4")).context
        '512'
    """
    sizes: Mapping[str, Any] = CPU_SIZES.get(get_operation(options.operation or OPERATION).shape_class, {})
    return replace(options, **{name: size for name, size in sizes.items() if getattr(options, name) is None})
