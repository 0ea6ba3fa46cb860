"""Input that is no question is refused, with the argument, its value and what is allowed."""

from dataclasses import replace
from typing import Any

import pytest

from autotune import platforms
from autotune.dispatch import get_kernel
from autotune.errors import InvalidShapeError, UnknownNameError, UsageError
from autotune.shape import Shape
from tests import sample
from tests.dispatch.tables import H200, PAGED, Tables
from tests.outside import row_scale


@pytest.mark.parametrize("device", ["", "  ", 3.5, 0, True, ["NVIDIA H200"]])
def test_a_device_that_is_no_name_is_refused(tables: Tables, device: Any) -> None:
    with pytest.raises(UsageError) as refused:
        get_kernel(sample.shape(), device=device)
    assert str(refused.value) == (
        f"device={device!r} is not the name of a GPU; expected one such as 'NVIDIA H200', or None for the GPU here"
    )


@pytest.mark.parametrize("device", ["cpu", "CPU", "cuda", "cuda:0", "hpu"])
def test_what_torch_calls_a_device_is_no_name_of_a_gpu(tables: Tables, device: str) -> None:
    with pytest.raises(UsageError) as refused:
        get_kernel(sample.shape(), device=device)
    assert str(refused.value) == (
        f"device={device!r} is not the name of a GPU; expected one such as 'NVIDIA H200', or None for the GPU here"
    )


@pytest.mark.parametrize(
    ("shape", "operation", "words"),
    [
        ({"batch": 1}, None, "is of type dict; expected AttentionShape or PagedShape or VarlenShape"),
        (None, "paged_decode", "is of type NoneType; expected AttentionShape or PagedShape or VarlenShape"),
        (PAGED, "flash_attention", "is of type PagedShape; operation='flash_attention' takes AttentionShape"),
        (sample.shape(), "paged_decode", "is of type AttentionShape; operation='paged_decode' takes PagedShape"),
    ],
    ids=["dict", "none", "paged", "dense"],
)
def test_what_is_no_shape_of_the_operation_is_refused(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, shape: Any, operation: str | None, words: str
) -> None:
    row_scale.isolate(monkeypatch)
    with pytest.raises(UsageError) as refused:
        get_kernel(shape, device=H200, operation=operation)
    assert str(refused.value) == f"shape={shape!r} {words}"


def test_a_shape_that_no_operation_supports_is_refused(tables: Tables) -> None:
    with pytest.raises(InvalidShapeError, match="seq_q=9 is not supported by paged_decode"):
        get_kernel(replace(PAGED, seq_q=9), device=H200, operation="paged_decode")
    with pytest.raises(UnknownNameError, match="no operation takes a Shape"):
        get_kernel(Shape(), device=H200)


def test_a_list_of_names_is_refused_as_what_it_is(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    names: Any = ["triton"]
    monkeypatch.setattr(platforms, "current_index", lambda: 0)
    for device in (H200, None):
        with pytest.raises(UsageError, match=r"among=\['triton'\] is not allowed"):
            get_kernel(sample.shape(), device=device, among=names)


@pytest.mark.parametrize("batch", [16, 1], ids=["hit", "miss"])
def test_another_on_miss_is_refused(tables: Tables, batch: int) -> None:
    tables.ship(sample.trial())
    with pytest.raises(UsageError, match="on_miss='ignore' is not allowed; expected 'default', 'error', 'record'"):
        get_kernel(sample.shape(batch=batch), device=H200, on_miss="ignore")  # type: ignore[arg-type]


def test_a_name_where_a_tuple_belongs_is_told_the_tuple() -> None:
    with pytest.raises(UsageError, match=r"a tuple of names such as \('flex',\)$"):
        get_kernel(sample.shape(), among="flex")  # type: ignore[arg-type]
