"""Spaces and shapes of another day: a registered implementation with other parameters or another shape class."""

import itertools
import sys
from dataclasses import MISSING, dataclass, field, fields, make_dataclass, replace
from types import ModuleType
from typing import Any, ClassVar

import pytest

from autotune import registry
from autotune.errors import InvalidShapeError
from autotune.shape import AttentionShape, PagedShape, Shape
from autotune.space import Parameter, Space
from autotune.varlen_shape import VarlenShape

_numbers = itertools.count()


def change_space(
    monkeypatch: pytest.MonkeyPatch, operation: str, name: str, parameters: tuple[Parameter, ...], **changes: Any
) -> None:
    """Give an implementation other parameters, for the rest of the test."""
    found = registry.get_implementation(operation, name)
    space: Space[Any] = replace(found.space, parameters=parameters, **changes)
    monkeypatch.setitem(
        registry._implementations, (operation, name), _reference(replace(found, space=space), monkeypatch)
    )


def change_shape(monkeypatch: pytest.MonkeyPatch, operation: str, shape_class: type[Shape]) -> None:
    """Give an operation another shape class, for the rest of the test."""
    found = replace(registry.get_operation(operation), shape_class=shape_class)
    monkeypatch.setitem(registry._operations, operation, _reference(found, monkeypatch))


def _reference(value: object, monkeypatch: pytest.MonkeyPatch) -> str:
    module = ModuleType(f"grown_{next(_numbers)}")
    module.VALUE = value  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return f"{module.__name__}:VALUE"


@dataclass(frozen=True, slots=True, kw_only=True)
class SunkAttentionShape(AttentionShape):
    """Attention with a field that joined later."""

    ABSENT: ClassVar = {**AttentionShape.ABSENT, "sink": "none"}
    sink: str = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class SunkPagedShape(PagedShape):
    """Paged attention with a field that joined later."""

    ABSENT: ClassVar = {**PagedShape.ABSENT, "sink": "none"}
    sink: str = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class SunkVarlenShape(VarlenShape):
    """Attention over packed sequences with a field that joined later."""

    ABSENT: ClassVar = {**VarlenShape.ABSENT, "sink": "none"}
    sink: str = "none"


GROWN = {AttentionShape: SunkAttentionShape, PagedShape: SunkPagedShape, VarlenShape: SunkVarlenShape}


def without(shape_class: type[Shape], name: str, value: Any) -> type[Shape]:
    """Make a class of shapes that lost a field, where all have a value now."""
    kept = [
        (each.name, each.type, field() if each.default is MISSING else field(default=each.default))
        for each in fields(shape_class)
        if each.name != name
    ]
    absent = {each: usual for each, usual in shape_class.ABSENT.items() if each != name}
    grown = {"REMOVED": {**shape_class.REMOVED, name: value}, "ABSENT": absent}
    namespace = {**grown, "FAMILY": (), "__annotations__": {}}
    made = make_dataclass("Lesser", kept, bases=(Shape,), namespace=namespace, frozen=True, kw_only=True)
    assert issubclass(made, Shape)
    return made


def refusing(shape_class: type[Shape], name: str, refused: Any) -> type[Shape]:
    """Make a class of shapes that no longer takes a value of a field."""

    def check(self: Any) -> None:
        shape_class.__post_init__(self)
        if getattr(self, name) == refused:
            raise InvalidShapeError(f"{name}={refused!r} is not allowed any more")

    return make_dataclass(
        shape_class.__name__, [], bases=(shape_class,), namespace={"__post_init__": check}, frozen=True
    )
