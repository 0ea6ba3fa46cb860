"""The order of implementations: by times where they are known, and the least estimate before the others."""

import math
from dataclasses import replace
from typing import Any

import pytest

from autotune.device import NVIDIA_H200, Device
from autotune.dispatch import alternatives_for
from autotune.dispatch.implementation_order import fastest_first
from autotune.dispatch.provenance import Alternative
from autotune.implementation import Implementation
from autotune.search_spaces.flash_attention.triton import IMPLEMENTATION as TRITON
from autotune.shape import AttentionShape
from autotune.table import Assignment
from tests import sample

NAMES = ("first", "second", "third")
BEHIND = (0.0, 0.1, 0.2)  # of the best, at a shape of 512 tokens
KNOWN, ASKED = sample.shape(512), sample.shape(600)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({}, "abc"),
        ({"a": 3.0, "b": 2.0, "c": 1.0}, "cba"),
        ({"a": 2.0, "c": 1.0}, "cba"),  # b stays in the middle
        ({"b": 5.0}, "abc"),  # one alone is compared with nothing
        ({"a": 1.0, "b": 1.0}, "abc"),
    ],
    ids=str,
)
def test_those_without_a_time_keep_their_places(times: dict[str, float], expected: str) -> None:
    assert fastest_first("abc", times) == list(expected)


def estimated(name: str, time: float | None) -> Implementation[AttentionShape]:
    return replace(TRITON, name=name, space=replace(TRITON.space, estimate=lambda config, shape, device: time))


def races(**changes: Any) -> list[Assignment]:
    return [
        sample.assignment(KNOWN, **{"implementation": name, "behind": behind, **changes})
        for name, behind in zip(NAMES, BEHIND, strict=True)
    ]


def served(times: tuple[float | None, ...], rows: list[Assignment], asked: AttentionShape = ASKED) -> list[Alternative]:
    admitted = [estimated(name, time) for name, time in zip(NAMES, times, strict=False)]
    found = alternatives_for(asked, NVIDIA_H200, [], admitted, portfolio=rows)
    return found[: len(admitted)]


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ((2.0, 1.0), ["second", "first"]),
        ((1.0, 2.0), ["first", "second"]),
        ((1.0, 1.0), ["first", "second"]),
        ((2.0, None), ["first", "second"]),
        ((None, 1.0), ["first", "second"]),
        ((2.0, math.nan), ["first", "second"]),
        ((3.0, None, 1.0), ["third", "first", "second"]),  # what raced keeps its order behind it
        ((3.0, 2.0, 1.0), ["third", "first", "second"]),
        ((None, 2.0, 1.0), ["first", "third", "second"]),  # nothing says that the third is before the first
        ((2.0, math.nan, 1.0), ["third", "first", "second"]),
    ],
    ids=str,
)
def test_the_least_estimate_comes_before_whatever_races_at_other_shapes_put_first(
    times: tuple[float | None, ...], expected: list[str]
) -> None:
    found = served(times, races())
    assert [each.candidate.implementation for each in found] == expected


def test_the_reason_says_which_one_was_estimated_slower() -> None:
    first, second = served((2.0, 1.0), races())
    assert first.provenance.reason.endswith(", estimated faster than first")
    assert "estimated" not in second.provenance.reason
    assert "estimated" not in served((1.0, 2.0), races())[0].provenance.reason


@pytest.mark.parametrize("device", [NVIDIA_H200, replace(NVIDIA_H200, name="NVIDIA H100 80GB HBM3")], ids=str)
def test_a_race_at_this_very_shape_says_more_than_estimates(device: Device) -> None:
    found = served((2.0, 1.0), races(device=device), KNOWN)
    assert found[0].candidate.implementation == "first"
    assert served((2.0, 1.0), races(device=device))[0].candidate.implementation == "second"


def test_without_a_race_of_both_estimates_say_nothing() -> None:
    for rows in (races(behind=None), []):
        assert served((2.0, 1.0), rows)[0].candidate.implementation == "first"
