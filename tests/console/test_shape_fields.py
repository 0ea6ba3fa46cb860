"""Shapes as text: values are read by the types of the fields, and what a miss is told is read back as that shape."""

import random
import shlex
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

import pytest

from autotune.console.shape_fields import fields_text, operation_of, parse_shapes, placeholder, split_fields
from autotune.console.shape_options import ShapeOptions
from autotune.console.shapes import describe
from autotune.errors import InvalidShapeError, UnknownNameError, UsageError
from autotune.operation import Cost, Operation
from autotune.shape import AttentionShape, PagedShape, Shape
from autotune.tuning_command import operation_options, shape_text
from autotune.workload import operation_for
from tests.outside import row_scale
from tests.outside.row_scale.space import OPERATION, RowShape


@dataclass(frozen=True, slots=True, kw_only=True)
class WideShape(Shape):
    """A field of each type."""

    FAMILY: ClassVar[tuple[str, ...]] = ()

    rows: int
    scale: float = 1.0
    dtype: Literal["float16", "bfloat16"] = "float16"
    name: str | None = None
    limit: int | None = None
    turned: bool = False
    depth: int | float = 1


WIDE: Final = Operation(name="wide", shape_class=WideShape, cost=lambda shape: Cost(1, 1), definition="nowhere:X")


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    row_scale.register(monkeypatch)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rows=4", {"rows": 4}),
        (" rows = 4 , turned = True ", {"rows": 4, "turned": True}),
        ("rows=-4,scale=1e-5", {"rows": -4, "scale": 1e-5}),
        ("rows=4,scale=2", {"rows": 4, "scale": 2.0}),
        ("rows=4,dtype=bfloat16,name=none,limit=none", {"rows": 4, "dtype": "bfloat16"}),
        ("rows=4,name=12,limit=12", {"rows": 4, "name": "12", "limit": 12}),
        ("rows=4,depth=1.5", {"rows": 4, "depth": 1.5}),
        ("rows=4,turned=false", {"rows": 4}),
    ],
)
def test_a_value_is_read_by_the_type_of_its_field(text: str, expected: dict[str, Any]) -> None:
    assert parse_shapes(text, WIDE) == [WideShape(**expected)]


def test_several_values_are_combined_with_each() -> None:
    shapes = parse_shapes("rows=4,...,20,name=a,b,rows_", WIDE)
    assert shapes == [WideShape(rows=rows, name=name) for rows in (4, 8, 16, 20) for name in ("a", "b", "rows_")]
    assert parse_shapes("rows=4,4,limit=none,7", WIDE) == [WideShape(rows=4), WideShape(rows=4, limit=7)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rows=4.0", "rows='4.0' is not allowed; expected an integer"),
        ("rows=four", "rows='four' is not allowed; expected an integer"),
        ("rows=4,scale=nan", "scale='nan' is not allowed; expected a number"),
        ("rows=4,dtype=int8", "dtype='int8' is not allowed; expected float16 or bfloat16"),
        ("rows=4,limit=many", "limit='many' is not allowed; expected an integer or none"),
        ("rows=4,turned=1", "turned='1' is not allowed; expected true or false"),
        ("rows=8,...,4", "rows=8,...,4 ends below its start"),
        ("rows=4,...", "rows='4,...' has '...'"),
        ("rows=4,scale=1,...,8", "scale='...' is not allowed; expected a number"),
        ("row=4", "row is not a field, did you mean rows?; wide takes rows=INTEGER, scale=NUMBER (1.0 by default), "),
        ("rows=4,zzz=1", "zzz is not a field; wide takes rows=INTEGER"),
        ("scale=1", "rows is missing; wide takes rows=INTEGER"),
    ],
)
def test_an_error_names_the_field_its_value_and_what_is_allowed(text: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_shapes(text, WIDE)
    assert f"shape={text!r}: {message}" in str(error.value)


@pytest.mark.parametrize(
    "text", ["", "4096", "rows", "rows=", "=4", "rows=4,,width=4", "rows=4,", "2rows=4", ",rows=4"]
)
def test_text_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"expected fields and values such as rows=4096,width=4096"):
        split_fields(text)


def test_a_field_is_given_once() -> None:
    with pytest.raises(UsageError, match="has rows twice; expected its values together: rows=64,128"):
        split_fields("rows=4,width=2,rows=8")


def test_a_class_that_refuses_a_value_is_heard() -> None:
    with pytest.raises(InvalidShapeError, match=r"^shape='rows=0,width=4': rows=0 is not allowed; expected an integer"):
        parse_shapes("rows=0,width=4", OPERATION)

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Strict(WideShape):
        def __post_init__(self) -> None:
            raise ValueError("an odd number of rows")

    strict = Operation(name="strict", shape_class=Strict, cost=lambda shape: Cost(1, 1), definition="nowhere:X")
    with pytest.raises(UsageError, match=r"^shape='rows=1' is refused by Strict: an odd number of rows"):
        parse_shapes("rows=1", strict)


@pytest.mark.usefixtures("registered")
def test_the_names_of_the_fields_pick_the_operation() -> None:
    assert operation_of("rows=1,width=2") is OPERATION
    assert operation_of("width=2,rows=1,keep=true").name == "row_scale"
    assert operation_of("batch=1,heads=2,seq_q=8,head_dim=64,causal=true").name == "flash_attention"
    with pytest.raises(UsageError, match="fits paged_decode and paged_prefill; name one with --operation"):
        operation_of("batch=1,heads=2,max_context=8,head_dim=64")
    with pytest.raises(UsageError, match="width is missing; row_scale takes rows=INTEGER, width=INTEGER"):
        operation_of("rows=1")
    with pytest.raises(
        UsageError, match=r"no operation has these fields; known: flash_attention, .*row_scale; --import"
    ):
        operation_of("lines=1")


@pytest.mark.usefixtures("registered")
def test_shapes_are_of_the_named_operation_or_of_the_one_that_each_fits() -> None:
    texts = ("rows=1,width=2", "batch=1,heads=2,seq_q=8,head_dim=64")
    found = describe(ShapeOptions(shape=texts)).problems
    dense = AttentionShape(batch=1, heads=2, seq_q=8, head_dim=64)
    assert [(each.name, shape) for each, shape in found] == [
        ("row_scale", RowShape(rows=1, width=2)),
        ("flash_attention", dense),
    ]
    paged = describe(ShapeOptions(operation="paged_prefill", shape=("batch=1,heads=2,max_context=8,head_dim=64",)))
    assert paged.problems[0][0].name == "paged_prefill"
    with pytest.raises(UsageError, match="rows is not a field"):
        describe(ShapeOptions(operation="flash_attention", shape=texts[:1]))
    with pytest.raises(UsageError, match="--seq='8' and --shape, which names the shapes, exclude each other"):
        describe(ShapeOptions(shape=texts, seq="8"))
    with pytest.raises(UsageError, match="--model='phi-4' and --shape"):
        describe(ShapeOptions(shape=texts, model="phi-4"))
    with pytest.raises(
        UsageError, match=r"operation='row_scale' needs --shape .* rows=INTEGER, width=INTEGER, kind=TEXT"
    ):
        describe(ShapeOptions(operation="row_scale"))


def test_an_operation_refuses_a_shape_by_its_own_reason() -> None:
    text = "batch=1,heads=2,max_context=512,head_dim=64,seq_q=512"
    with pytest.raises(InvalidShapeError, match=f"^shape='{text}': "):
        describe(ShapeOptions(operation="paged_decode", shape=(text,)))


def test_a_broken_package_of_somebody_elses_stops_no_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    from autotune import registry

    row_scale.register(monkeypatch)
    registry.register("broken", "no_such_package.space:OPERATION")
    with pytest.warns(RuntimeWarning, match="no_such_package"):
        assert operation_of("rows=1,width=2") is OPERATION
    with pytest.warns(RuntimeWarning, match="no_such_package"):
        assert operation_for(RowShape(rows=1, width=2)) is OPERATION
    with pytest.raises(UnknownNameError, match="no_such_package"):
        describe(ShapeOptions(operation="broken", shape=("rows=1",)))


def test_fields_are_described_with_their_defaults() -> None:
    assert fields_text(RowShape) == (
        "rows=INTEGER, width=INTEGER, kind=TEXT (float16 by default), keep=true|false (false by default), "
        "limit=INTEGER|none (may be left out), eps=NUMBER (1e-06 by default)"
    )
    assert placeholder(RowShape) == "rows=INTEGER,width=INTEGER"
    assert "kv_heads=INTEGER (may be left out)" in fields_text(AttentionShape)


@pytest.mark.parametrize("seed", range(20))
def test_the_text_of_a_shape_is_read_back_as_that_shape(seed: int) -> None:
    source = random.Random(seed)
    shape = WideShape(
        rows=source.randint(-9, 2**40),
        scale=source.choice([1.0, 1e-05, source.gauss(0.0, 1e6)]),
        dtype=source.choice(["float16", "bfloat16"]),
        name=source.choice([None, "a-b", "1.5", "..x"]),
        limit=source.choice([None, 0, -7]),
        turned=source.random() < 0.5,
    )
    text = shape_text(shape)
    assert text is not None
    assert parse_shapes(text, WIDE) == [shape]
    assert shlex.split(operation_options("wide", shape)) == ["--operation", "wide", "--shape", text]


@pytest.mark.parametrize("name", ["none", "a,b", "a=b", "", "two words", "..."])
def test_a_value_that_the_option_would_read_otherwise_is_not_written(name: str) -> None:
    assert shape_text(WideShape(rows=1, name=name)) is None


def test_the_attention_shapes_are_written_and_read_too() -> None:
    shape = PagedShape(batch=3, heads=8, kv_heads=2, max_context=99, head_dim=64, window=7, kv_dtype="int8", sinks=True)
    text = shape_text(shape)
    assert text is not None
    found = describe(ShapeOptions(operation="paged_decode", shape=(text,))).problems
    assert [each for _, each in found] == [shape]
