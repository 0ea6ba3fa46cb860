"""The problems that ship are those that are promised, and their parts are all of them."""

import pytest

from autotune.device import NVIDIA_H200
from autotune.registry import get_implementation, get_operation
from autotune.search_spaces.flash_attention.flex import IMPLEMENTATION as FLEX
from autotune.shape import AttentionShape, PagedShape
from benchmarks.problem_parts import cut
from benchmarks.shipped_problems import SWEEPS, WINNERS
from tests import flex_sample


@pytest.mark.parametrize("title", WINNERS)
def test_each_problem_is_named_once_and_its_implementation_supports_it(title: str) -> None:
    operation, name = title.split("/")
    found = get_implementation(operation, name)
    for cells in (WINNERS[title], SWEEPS[title]):
        assert len({cell.shape for cell in cells}) == len(cells)
        for cell in cells:
            assert type(cell.shape) is get_operation(operation).shape_class
            default = found.space.default(cell.shape, NVIDIA_H200)
            assert found.space.why_invalid(default, cell.shape, NVIDIA_H200) is None


def test_the_problems_of_flash_attention_are_its_authors_benchmark() -> None:
    cells = [cell for cell in WINNERS["flash_attention/triton"] if cell.group in ("full", "causal")]
    assert len(cells) == 36
    for cell in cells:
        shape = cell.shape
        assert isinstance(shape, AttentionShape)
        assert (shape.batch * shape.seq_q, shape.heads * shape.head_dim) == (16384, 2048)
    shapes = {cell.shape for cell in cells}
    assert len(SWEEPS["flash_attention/triton"]) == 12
    assert {cell.shape for cell in SWEEPS["flash_attention/triton"]} <= shapes


def test_the_problems_of_paged_decode_include_what_is_served() -> None:
    shapes = [cell.shape for cell in WINNERS["paged_decode/triton"] if isinstance(cell.shape, PagedShape)]
    assert {(s.heads, s.kv_heads, s.head_dim) for s in shapes} == {
        *((32, 8, 128), (8, 1, 128), (28, 4, 128), (32, 32, 128), (64, 8, 64), (32, 8, 256)),
    }
    assert {1, 16, 64, 256} <= {s.batch for s in shapes}
    assert {512, 8192, 131072} <= {s.max_context for s in shapes}
    assert {s.page_size for s in shapes} == {1, 16, 64, 128}
    assert {s.kv_dtype for s in shapes} == {"bfloat16", "float8_e4m3fn", "float8_e5m2", "int8"}
    assert {s.sinks for s in shapes if s.head_dim == 64} == {True}


def test_the_problems_of_flex_attention_are_what_its_users_run() -> None:
    assert SWEEPS["flash_attention/flex"] == ()
    assert tuple(cell.shape for cell in WINNERS["flash_attention/flex"]) == flex_sample.SHAPES
    for shape in flex_sample.SHAPES:
        assert len(list(FLEX.space.configs(shape, NVIDIA_H200))) > 60


@pytest.mark.parametrize("title", WINNERS)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 100])
def test_parts_are_all_problems_once_in_order_and_about_equal(title: str, count: int) -> None:
    cells = WINNERS[title]
    parts = [cut(cells, (number, count)) for number in range(1, count + 1)]
    assert [cell for part in parts for cell in part] == list(cells)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
