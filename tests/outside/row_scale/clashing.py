"""An operation that no table can keep: a field of its shapes has the name of a column that every trial has."""

from dataclasses import dataclass, replace
from typing import Final

from tests.outside.row_scale import space


@dataclass(frozen=True, slots=True, kw_only=True)
class SeededShape(space.RowShape):
    """A shape with a seed."""

    seed: int = 0


OPERATION: Final = replace(space.OPERATION, name="seeded", shape_class=SeededShape)
IMPLEMENTATION: Final = replace(space.IMPLEMENTATION, operation="seeded")
