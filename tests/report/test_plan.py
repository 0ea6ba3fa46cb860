"""A plan in words says what its numbers say."""

import json
from typing import Any

import pytest

from autotune.device import NVIDIA_H200
from autotune.report.plan import plan_data, plan_lines
from autotune.search.pace import Pace
from autotune.search.plan import Plan, Pruned
from tests.report import sample


def plan(**changes: Any) -> Plan:
    fields: dict[str, Any] = {
        "operation": "flash_attention",
        "shape": sample.shape(64),
        "device": NVIDIA_H200,
        "executor": "gpu",
        "size": 10,
        "pruned": (Pruned("too N", 3, sample.FAST, "too 7"),),
        "valid": 7,
        "default": sample.FAST,
        "known": 1,
        "sampler": "tpe",
        "trials": 6,
        "jobs": 2,
        "pace": Pace(1.25, 0.5, "a_sweep"),
        "seconds": 15.75,
        "budget": 60.0,
    }
    return Plan(**{**fields, **changes})


def test_a_plan_in_words() -> None:
    assert plan_lines(plan()) == [
        f"flash_attention: {sample.shape(64)}",
        "space     10 configs on NVIDIA H200: 3 pruned before compiling, 7 valid",
        "pruned    3: too N",
        "          for example too 7",
        f"default   {sample.FAST}",
        "known     1 config from earlier runs",
        "sampler   tpe, 6 trials at most that reach the device",
        "expected  about 16 s with 2 compilers, race included: "
        "1.25 s to compile a config and 0.50 s to judge it, as recorded in a_sweep",
    ]


def test_a_plan_tells_the_rules_that_prune_most_and_counts_the_others() -> None:
    rules = tuple(Pruned(f"too N of {letter}", 9 - i, sample.FAST, "too 7") for i, letter in enumerate("abcde"))
    told = [line for line in plan_lines(plan(pruned=rules)) if line.startswith("pruned")]
    assert told == [
        *(f"pruned    {count}: too N of {letter}" for count, letter in zip((9, 8, 7), "abc", strict=True)),
        "pruned    11 by 2 more rules; --json has all, with examples",
    ]
    assert "pruned    6 by 1 more rule; --json has all, with examples" in plan_lines(plan(pruned=rules[:4]))
    assert [group["rule"] for group in plan_data(plan(pruned=rules))["pruned"]] == [group.rule for group in rules]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"trials": 0, "seconds": 0.0}, "expected  nothing left to try"),
        ({"budget": 10.0}, "about 16 s with 2 compilers, race included, cut short by the budget of 10 s: "),
        ({"budget": None}, "race included: 1.25 s"),
        ({"jobs": 1}, "with 1 compiler,"),
        ({"pace": Pace(1.5, 0.0, "")}, ": assuming 1.5 s to compile a config, as no sweep of the device says more"),
        ({"executor": "replay"}, "seconds, as a replay measures nothing; on an NVIDIA H200 itself about 16 s"),
    ],
)
def test_the_expected_time_says_what_it_rests_on(changes: dict[str, Any], words: str) -> None:
    assert words in plan_lines(plan(**changes))[-1]


def test_a_plan_as_data_is_json() -> None:
    data = json.loads(json.dumps(plan_data(plan())))
    config = {name: value for name, value in sample.FAST.items() if value is not None}
    assert data["pruned"] == [{"rule": "too N", "count": 3, "example": config, "reason": "too 7"}]
    assert (data["size"], data["valid"], data["known"], data["trials"]) == (10, 7, 1, 6)
    assert (data["seconds_on_device"], data["budget"], data["seconds_from"]) == (15.75, 60.0, "a_sweep")
    assert (data["default"], data["device"]["name"]) == (config, "NVIDIA H200")


def test_a_replay_does_not_give_the_devices_seconds_as_its_own() -> None:
    data = plan_data(plan(executor="replay"))
    assert "seconds" not in data
    assert data["seconds_on_device"] == 15.75
