"""Pruning functions written for Triton's autotuner: they are called as it calls them."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.decorated.pruned import Pruning

NAMES = ("x_ptr", "size", "MODE")
NAMED = {"x_ptr": None, "size": 200, "MODE": 2}
CONFIGS = [SimpleNamespace(kwargs={"BLOCK": block}, all_kwargs=dict) for block in (128, 256, 512)]


def by_keywords(configs: list[Any], named_args: dict[str, Any], **kwargs: Any) -> list[Any]:
    """Take what a launch passes by name from the keywords, as Triton's tutorial on attention does."""
    return [each for each in configs if each.kwargs["BLOCK"] <= kwargs["size"] * kwargs["MODE"]]


def by_one_name(configs: list[Any], nargs: dict[str, Any], size: int = 0) -> list[Any]:
    return [each for each in configs if each.kwargs["BLOCK"] <= 2 * size]


def by_arguments(configs: list[Any], named_args: dict[str, Any]) -> list[Any]:
    return [each for each in configs if each.kwargs["BLOCK"] <= 2 * named_args["size"]]


@pytest.mark.parametrize("function", [by_keywords, by_one_name, by_arguments])
def test_a_function_finds_what_a_launch_passes_by_name_or_by_place(function: Callable[..., Any]) -> None:
    pruning = Pruning({"early_config_prune": function, "perf_model": None, "top_k": None}, NAMES)
    assert [each.kwargs["BLOCK"] for each in pruning.kept(CONFIGS, NAMED)] == [128, 256]
