"""The problems of the grid: spread over the models' shapes, and enough to speak for them."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from autotune.dispatch.evidence import left_out_regret
from autotune.implementation import Implementation
from autotune.likeness import likeness
from autotune.models import MODELS, ModelShape
from autotune.registry import get_operation, our_implementations
from autotune.shape import AttentionShape, PagedShape, Shape
from autotune.table import Assignment
from autotune.varlen_shape import VarlenShape
from benchmarks.model_grid import problems
from benchmarks.model_grid.problems import GridCell, device_seconds, grid, in_order, launch_seconds, spread
from tests import sample
from tests.benchmarks.model_grid.fake_gpu import H100


def every() -> list[GridCell]:
    return in_order()


def test_each_problem_is_there_once_and_its_implementation_supports_it() -> None:
    assert len(set(every())) == len(every()) == 632
    for cell in every():
        assert get_operation(cell.operation).unsupported(cell.shape) is None
        implementation = next(
            each for each in our_implementations(cell.operation) if not each.supports(cell.shape, H100)
        )
        default = implementation.space.default(cell.shape, H100)
        assert implementation.space.why_invalid(default, cell.shape, H100) is None


def test_the_dense_problems_are_those_of_models() -> None:
    shapes = [cell.shape for cell in every() if isinstance(cell.shape, AttentionShape)]
    assert len(shapes) == 210
    heads = {(shape.heads, shape.kv_heads) for shape in shapes}
    assert heads >= {(32, 8), (28, 4), (40, 8), (64, 8), (16, 2)}
    widths = {(shape.head_dim, shape.head_dim_v) for shape in shapes}
    assert widths == {(64, 64), (96, 96), (128, 128), (192, 128), (256, 256)}
    for width in widths:
        masks = {(s.causal, s.window is not None) for s in shapes if (s.head_dim, s.head_dim_v) == width}
        assert masks == {(True, False), (False, False), (True, True)}
    assert {shape.head_dim for shape in shapes if shape.softcap} == {128, 256}
    assert {shape.window for shape in shapes} == {None, 128, 512, 1024, 4096}
    assert {shape.seq_q for shape in shapes} >= {512, 1024, 2048, 4096, 8192, 16384, 32768, 3000}
    assert {shape.batch for shape in shapes} >= {1, 2, 4, 8, 32}


def test_the_packed_problems_are_those_of_models_and_spread_over_lengths() -> None:
    shapes = [cell.shape for cell in grid()[problems.VARLEN] if isinstance(cell.shape, VarlenShape)]
    assert len(shapes) == 72
    for width in (64, 96, 128, 192, 256):
        masks = {(s.causal, s.window is not None) for s in shapes if s.head_dim == width}
        assert masks == {(True, False), (False, False), (True, True)}
    assert {shape.batch for shape in shapes} >= {4, 16, 64}
    assert {shape.mean_seq_q for shape in shapes} == {128, 512, 2048}
    assert {shape.evenness for shape in shapes} == {0.25, 1.0}
    assert all(any(getattr(shape, name) for shape in shapes) for name in ("softcap", "sinks"))


def test_the_paged_problems_are_those_of_models() -> None:
    paged = {name: [cell.shape for cell in grid()[name]] for name in (problems.DECODE, problems.PREFILL)}
    decode, prefill = ([each for each in found if isinstance(each, PagedShape)] for found in paged.values())
    assert (len(decode), len(prefill)) == (240, 110)
    assert {shape.kv_dtype for shape in decode} == {"bfloat16", "float8_e4m3fn"}
    assert {shape.kv_dtype for shape in prefill} == {"bfloat16", "float8_e4m3fn"}
    for shapes in (decode, prefill):
        assert {shape.page_size for shape in shapes} == {16, 64, 256}
        assert {shape.max_context for shape in shapes} >= {1024, 4096, 16384, 65536, 131072}
        for name in ("softcap", "sinks", "alibi", "window"):
            assert any(getattr(shape, name) for shape in shapes)
        assert {shape.head_dim for shape in shapes} == {64, 96, 128, 192, 256}
    assert min(shape.evenness for shape in decode) == 0.25


def test_features_are_those_of_named_models() -> None:
    named = {
        (model.heads, model.kv_heads, model.head_dim, window)
        for model in MODELS.values()
        for window in (model.window, None)
    }
    for cell in every():
        shape = cell.shape
        if isinstance(shape, PagedShape) and (shape.window or shape.softcap or shape.sinks or shape.alibi):
            assert (shape.heads, shape.kv_heads, shape.head_dim, shape.window) in named


def test_any_beginning_has_a_part_of_all_classes() -> None:
    def classes(cells: Sequence[GridCell]) -> set[tuple[object, ...]]:
        return {(cell.operation, cell.group, cell.shape.as_dict()["head_dim"]) for cell in cells}

    assert len(classes(every())) == 87
    assert classes(every()[:211]) == classes(every())
    begin = [cell.operation for cell in every()[:316]]
    assert [begin.count(name) for name in grid()] == [105, 36, 120, 55]


def test_no_problem_takes_long_by_the_estimate() -> None:
    assert all(device_seconds(cell.operation, cell.shape) <= problems.MAX_SECONDS for cell in every())
    assert max(launch_seconds(cell.operation, cell.shape) for cell in every()) < 0.04
    assert 700 < sum(device_seconds(cell.operation, cell.shape) for cell in every()) < 1500


def test_every_other_problem_is_the_farthest_from_all_before() -> None:
    shapes: list[Shape] = [sample.shape(seq, batch=1) for seq in (2048, 512, 1024, 4096, 32768)]
    found = spread(shapes, 9)
    assert found[:2] == [shapes[0], shapes[4]]
    assert spread(shapes, 3, draws=False) == [shapes[0], shapes[4], shapes[1]]
    assert len(set(found)) == len(found) == 5
    assert found == spread(shapes, 5)
    assert spread(shapes, 2) == found[:2]


def test_of_small_classes_none_is_drawn() -> None:
    """Of what always is the farthest from all before, no distance is greater than the one before."""
    for group in ("sinks", "window sinks", "alibi"):
        places = [likeness(cell.shape, H100) for cell in grid()[problems.DECODE] if cell.group == group]
        nearest = [min(place.distance(each) for each in places[:count]) for count, place in enumerate(places) if count]
        assert len(nearest) >= 9
        assert nearest == sorted(nearest, reverse=True), group


def points_of(model: ModelShape, operation: str) -> Iterator[Shape]:
    """Attention of a named model: each kind of its layers, 36 batches and lengths."""
    heads: dict[str, Any] = {name: getattr(model, name) for name in ("heads", "kv_heads", "head_dim", "head_dim_v")}
    for window in dict.fromkeys((model.window, None) if model.mixes_windows else (model.window,)):
        features: dict[str, Any] = {**heads, "window": window}
        features |= {"softcap": model.softcap is not None, "sinks": model.sinks}
        for batch, length in itertools.product((1, 2, 4, 8, 16, 32), (512, 1024, 2048, 4096, 8192, 16384)):
            if operation == problems.DENSE:
                yield AttentionShape(batch=batch, seq_q=length, causal=model.causal, **features)
            elif model.causal and not model.latent:
                yield PagedShape(batch=batch, max_context=length, alibi=model.alibi, **features)


def serving(operation: str, shape: Shape) -> Implementation[Any]:
    return next(each for each in our_implementations(operation) if not each.supports(shape, H100))


@pytest.mark.parametrize(("operation", "count"), [(problems.DENSE, 105), (problems.DECODE, 75)])
def test_once_recorded_it_speaks_for_nearly_all_shapes_of_named_models(operation: str, count: int) -> None:
    """Of at least 95 % an expected regret is known, after two thirds of the list already."""
    rows: dict[str, list[Assignment]] = {}
    for cell in in_order(operation)[:count]:
        implementation = serving(operation, cell.shape)
        row = sample.assignment(
            cell.shape,  # type: ignore[arg-type] # of paged decode, too
            implementation.space.default(cell.shape, H100),
            operation=implementation.operation,
            device=H100,
        )
        rows.setdefault(implementation.name, []).append(row)
    points = [shape for model in MODELS.values() for shape in points_of(model, operation)]
    assert len(points) > 1500
    known = 0
    for shape in points:
        own = rows[serving(operation, shape).name]
        known += left_out_regret(own, own[0], shape, H100)[1] > 0
    assert known >= 0.95 * len(points)
