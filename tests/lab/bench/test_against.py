"""Which baselines a user asks for."""

from types import SimpleNamespace
from typing import Any

import pytest

from autotune.errors import UnknownNameError
from autotune.lab.bench.each_shape import choose_names

KNOWN: Any = [
    SimpleNamespace(name="sdpa flash", is_usual=True),
    SimpleNamespace(name="naive", is_usual=False),
    SimpleNamespace(name="cudnn", is_usual=True),
]


@pytest.mark.parametrize(
    ("against", "names"),
    [
        ([], ["sdpa flash", "cudnn"]),
        (["all"], ["sdpa flash", "naive", "cudnn"]),
        (["cudnn", "sdpa-flash"], ["sdpa flash", "cudnn"]),
        ([" naive "], ["naive"]),
        (["naive", "all"], ["sdpa flash", "naive", "cudnn"]),
    ],
)
def test_names_are_those_of_the_operation_in_its_order(against: list[str], names: list[str]) -> None:
    assert choose_names(KNOWN, against) == names


def test_an_unknown_name_is_refused_with_what_is_allowed() -> None:
    with pytest.raises(UnknownNameError, match="against='cuda' is unknown; allowed: all, sdpa flash, naive, cudnn"):
        choose_names(KNOWN, ["naive", "cuda"])


def test_an_operation_without_baselines_allows_all() -> None:
    assert choose_names([], ["all"]) == []
