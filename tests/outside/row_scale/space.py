"""The operation, its shapes and its space."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from autotune.device import Device
from autotune.dtypes import ITEM_BYTES
from autotune.implementation import Implementation
from autotune.operation import Cost, Operation
from autotune.shape import Shape
from autotune.space import Config, Parameter, Space


@dataclass(frozen=True, slots=True, kw_only=True)
class RowShape(Shape):
    """``[rows, width]``, each row divided by its root mean square; ``keep`` returns that, too."""

    FAMILY: ClassVar[tuple[str, ...]] = ("kind", "keep")

    rows: int
    width: int
    kind: str = "float16"
    keep: bool = False
    limit: int | None = None

    def __post_init__(self) -> None:
        self._require_int("rows", "width")

    def coordinates(self) -> tuple[float, ...]:
        return (math.log2(self.rows), math.log2(self.width))


def reject(config: Config, shape: RowShape, device: Device) -> str | None:
    rows = config.integer("ROWS")
    return f"ROWS={rows} is more than twice the {shape.rows} rows" if rows > 2 * shape.rows else None


OPERATION: Final = Operation(
    name="row_scale",
    shape_class=RowShape,
    cost=lambda shape: Cost(3 * shape.rows * shape.width, 2 * shape.rows * shape.width * ITEM_BYTES[shape.kind]),
    definition="tests.outside.row_scale.kernel:DEFINITION",
)
IMPLEMENTATION: Final = Implementation(
    name="plain",
    operation="row_scale",
    space=Space((Parameter("ROWS", (1, 2, 4, 8)),), reject, lambda shape, device: Config(ROWS=1)),
    kernel="tests.outside.row_scale.kernel:KERNEL",
    sources=(Path(__file__).parent / "kernel.py",),
    entry=("RowScale",),
    compiles_ahead=False,
    can_interpret=False,
)
