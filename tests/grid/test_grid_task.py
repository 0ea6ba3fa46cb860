"""Tasks survive JSON, and their keys tell apart what is searched."""

import json
from dataclasses import replace

import pytest

from autotune.errors import UsageError
from autotune.grid import GridTask
from autotune.shape import AttentionShape

TASK = GridTask(
    operation="flash_attention",
    shape=AttentionShape(batch=1, heads=8, seq_q=128, head_dim=64),
    device="NVIDIA H200",
    implementations=("triton",),
    priority=2,
)


def test_a_task_survives_json() -> None:
    assert GridTask.from_dict(json.loads(json.dumps(TASK.as_dict()))) == TASK


def test_a_key_names_what_is_searched_and_not_when() -> None:
    assert replace(TASK, priority=0).key == TASK.key == GridTask.from_dict(TASK.as_dict()).key
    others = {replace(TASK, device="").key, replace(TASK, budget=5.0).key, replace(TASK, seed=1).key}
    assert len(others | {TASK.key}) == 4


def test_equal_tasks_have_equal_keys() -> None:
    whole, fraction = replace(TASK, budget=60), replace(TASK, budget=60.0)
    assert (whole, whole.key) == (fraction, fraction.key)
    assert replace(TASK, budget=None).as_dict()["budget"] is None


@pytest.mark.parametrize(
    "changes", [{"operation": "none"}, {"shape": {"heads": 1}}, {"depth": 1}, {"implementations": 3}]
)
def test_what_is_no_task_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        GridTask.from_dict({**TASK.as_dict(), **changes})
