"""A plan as text, in one golden file, and as plain data."""

import json
from pathlib import Path
from typing import Any, Final

from autotune.cli.studies import plan_data, plan_lines
from autotune.device import NVIDIA_H200
from autotune.search.pace import Pace
from autotune.search.plan import Pruned, SearchPlan
from tests import sample
from tests.golden import assert_golden


def plan(**changes: Any) -> SearchPlan:
    fields: dict[str, Any] = {
        "operation": "flash_attention",
        "implementation": "triton",
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
    return SearchPlan(**{**fields, **changes})


RULES = tuple(Pruned(f"too N of {letter}", 9 - i, sample.FAST, "too 7") for i, letter in enumerate("abcde"))
PLANS: Final[dict[str, SearchPlan]] = {
    "usual": plan(),
    "five rules": plan(pruned=RULES),
    "four rules": plan(pruned=RULES[:4]),
    "nothing left": plan(trials=0, seconds=0.0),
    "a short budget": plan(budget=10.0),
    "no budget": plan(budget=None),
    "one compiler": plan(jobs=1),
    "no sweep": plan(pace=Pace(1.5, 0.0, "")),
    "replay": plan(executor="replay"),
}


def test_golden() -> None:
    parts = ["\n".join([f"# {name}", *plan_lines(each)]) for name, each in PLANS.items()]
    assert_golden(Path(__file__).parent / "golden" / "planned.txt", "\n\n".join(parts))


def test_a_plan_lists_the_rules_that_prune_most_and_counts_the_others() -> None:
    listed = [line.split() for line in plan_lines(plan(pruned=RULES)) if line.startswith("pruned")]
    assert [words[1].rstrip(":") for words in listed] == ["9", "8", "7", "11"]
    assert [group["rule"] for group in plan_data(plan(pruned=RULES))["pruned"]] == [group.rule for group in RULES]


def test_a_plan_as_data_is_json() -> None:
    data = json.loads(json.dumps(plan_data(plan())))
    config = {name: value for name, value in sample.FAST.items() if value is not None}
    assert data["pruned"] == [{"rule": "too N", "count": 3, "example": config, "reason": "too 7"}]
    assert (data["operation"], data["implementation"]) == ("flash_attention", "triton")
    assert (data["size"], data["valid"], data["known"], data["trials"]) == (10, 7, 1, 6)
    assert (data["seconds_on_device"], data["budget"], data["seconds_from"]) == (15.75, 60.0, "a_sweep")
    assert (data["default"], data["device"]["name"]) == (config, "NVIDIA H200")


def test_a_replay_does_not_give_the_devices_seconds_as_its_own() -> None:
    data = plan_data(plan(executor="replay"))
    assert "seconds" not in data
    assert data["seconds_on_device"] == 15.75
