"""The order of implementations: by times where they are known, and estimates have the last word."""

from dataclasses import replace

import pytest

from autotune.device import NVIDIA_H200
from autotune.dispatch import alternatives_for
from autotune.dispatch.implementation_order import estimated_times, fastest_first
from autotune.implementation import Implementation
from autotune.search_spaces.flash_attention.triton import IMPLEMENTATION as TRITON
from autotune.shape import AttentionShape
from tests import sample
from tests.outside.row_scale.space import IMPLEMENTATION as PLAIN
from tests.outside.row_scale.space import RowShape

SHAPE = RowShape(rows=64, width=8)


def estimated(name: str, time: float | None) -> Implementation[RowShape]:
    space = replace(PLAIN.space, estimate=lambda config, shape, device: time)
    return replace(PLAIN, name=name, space=space)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([{}], "abc"),
        ([{"a": 3.0, "b": 2.0, "c": 1.0}], "cba"),
        ([{"a": 2.0, "c": 1.0}], "cba"),  # b stays in the middle
        ([{"a": 1.0, "b": 2.0}, {"a": 9.0, "b": 8.0}], "bac"),
        ([{"a": 3.0, "b": 2.0, "c": 1.0}, {"b": 5.0}], "cba"),  # one alone is compared with nothing
        ([{"a": 1.0, "b": 1.0}], "abc"),
    ],
    ids=str,
)
def test_those_without_a_time_keep_their_places(times: list[dict[str, float]], expected: str) -> None:
    assert fastest_first("abc", *times) == list(expected)


def test_times_are_of_those_that_estimate_their_config() -> None:
    known, unknown = estimated("known", 7.5), estimated("unknown", None)
    candidates = [(each, each.space.default(SHAPE, NVIDIA_H200)) for each in (known, unknown, PLAIN)]
    assert estimated_times(candidates, SHAPE, NVIDIA_H200) == {"known": 7.5}


def of_triton(name: str, time: float | None) -> Implementation[AttentionShape]:
    return replace(TRITON, name=name, space=replace(TRITON.space, estimate=lambda config, shape, device: time))


@pytest.mark.parametrize(
    ("times", "first"),
    [((2.0, 1.0), "second"), ((1.0, 2.0), "first"), ((2.0, None), "first"), ((None, 1.0), "first")],
    ids=str,
)
def test_the_least_estimate_is_served_whatever_races_at_other_shapes_said(
    times: tuple[float | None, float | None], first: str
) -> None:
    """The races of both at a shape of the class said that the first is faster."""
    both = [of_triton(name, time) for name, time in zip(("first", "second"), times, strict=True)]
    rows = [
        sample.assignment(sample.shape(512), implementation="first", behind=0.0),
        sample.assignment(sample.shape(512), implementation="second", behind=0.5),
    ]
    found = alternatives_for(sample.shape(600), NVIDIA_H200, [], both, portfolio=rows)
    assert found[0].candidate.implementation == first


def test_without_a_race_of_both_estimates_say_nothing() -> None:
    both = [of_triton("first", 2.0), of_triton("second", 1.0)]
    rows = [sample.assignment(sample.shape(512), implementation=name, behind=None) for name in ("first", "second")]
    for portfolio in (rows, rows[:1], []):
        found = alternatives_for(sample.shape(600), NVIDIA_H200, [], both, portfolio=portfolio)
        assert found[0].candidate.implementation == "first"
