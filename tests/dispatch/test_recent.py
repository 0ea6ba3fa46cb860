"""Picks that are found again by the identity of their shape: what else was asked for still counts."""

import inspect
from typing import Any

import pytest

from autotune.dispatch import get_kernel, pick_for_device, picks
from autotune.errors import NoTunedKernelError, UsageError
from autotune.table import read_misses
from tests import sample
from tests.dispatch.tables import H200, PAGED, SLOWER, THIRD, Tables, default_of


def test_the_same_object_is_served_the_same_kernel_until_tables_are_read_again(tables: Tables) -> None:
    tables.ship(sample.trial())
    shape = sample.shape()
    kernel, picked = get_kernel(shape), pick_for_device(shape, 0, "flash_attention")
    assert get_kernel(shape) is get_kernel(sample.shape()) is kernel
    assert pick_for_device(shape, 0, "flash_attention") is picked
    tables.ship(sample.trial(chosen=SLOWER))
    assert get_kernel(shape).config == pick_for_device(shape, 0, "flash_attention").config == SLOWER


def test_a_shape_that_is_gone_leaves_its_pick_to_no_other(tables: Tables) -> None:
    """A new object often gets the address of one that is gone, and with it the identity."""
    for batch in range(1, 200):
        for _ in range(2):  # the second equals the first, which the pick itself keeps
            assert get_kernel(sample.shape(batch=batch)).shape == sample.shape(batch=batch)
            assert pick_for_device(sample.shape(batch=batch), 0, "flash_attention").shape == sample.shape(batch=batch)


def test_few_shapes_are_kept(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picks, "CACHED_PICKS", 3)
    shapes = [sample.shape(batch=batch) for batch in range(1, 9)]
    for shape in shapes:
        get_kernel(shape)
        assert len(picks._recent[0]) <= 3
    assert [get_kernel(shape).shape for shape in shapes] == shapes
    get_kernel(shapes[0], device=H200)
    assert list(picks._recent) == [0]  # any text may be the name of a device


def test_other_arguments_are_not_answered_by_an_earlier_pick(tables: Tables) -> None:
    tables.ship(sample.trial())
    shape = sample.shape()
    for _ in range(2):
        assert get_kernel(shape).provenance.rung == "exact"
        assert get_kernel(shape, config=THIRD).config == THIRD
        assert get_kernel(shape, implementation="triton").provenance.reason.startswith("named by implementation=")
        assert get_kernel(shape, among=("flex",)).implementation == "flex"
        assert get_kernel(shape, device="sm_80").provenance.rung == "default"
        assert get_kernel(shape, device=H200).provenance.rung == "exact"
        assert get_kernel(PAGED).operation == "paged_decode"
        assert get_kernel(PAGED, operation="paged_prefill").operation == "paged_prefill"
        assert pick_for_device(PAGED, 0, "paged_prefill").operation == "paged_prefill"
        assert pick_for_device(PAGED, 0, "paged_decode").operation == "paged_decode"
        assert pick_for_device(shape, None, "flash_attention").provenance.rung == "exact"


def test_more_or_less_than_a_shape_is_refused_though_it_was_picked(tables: Tables) -> None:
    shape, asked = sample.shape(), [sample.shape(), sample.shape()]
    kernel = get_kernel(shape)
    wrong: Any = get_kernel
    for given in ([], [shape, shape], asked):
        with pytest.raises(TypeError, match=r"get_kernel\(\)"):
            wrong(*given)
    assert wrong(shape=shape) is kernel
    assert list(inspect.signature(get_kernel).parameters)[:3] == ["shape", "device", "on_miss"]


def test_a_miss_that_was_served_is_a_miss_for_who_minds(tables: Tables) -> None:
    shape, other = sample.shape(batch=1), sample.shape(batch=2)
    unknown: Any = "ignore"
    for asked in (shape, other):
        assert get_kernel(asked).config == default_of(asked)
    for _ in range(2):
        with pytest.raises(NoTunedKernelError, match="flash_attention"):
            get_kernel(shape, on_miss="error")
        get_kernel(other, on_miss="record")
        with pytest.raises(UsageError, match="on_miss='ignore' is not allowed"):
            get_kernel(shape, on_miss=unknown)
        assert get_kernel(shape).config == default_of(shape)
    assert [missed for _, missed in read_misses()] == [other]


@pytest.mark.parametrize("wrong", [{"among": ["triton"]}, {"device": 3}, {"operation": "attention"}], ids=str)
def test_a_wrong_argument_is_refused_for_a_shape_that_was_picked(tables: Tables, wrong: dict[str, Any]) -> None:
    shape = sample.shape()
    get_kernel(shape)
    (name,) = wrong
    with pytest.raises(UsageError, match=name):
        get_kernel(shape, **wrong)
