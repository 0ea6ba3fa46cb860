"""``tune`` refuses what it cannot do before anything is searched."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from autotune import dispatch, registry
from autotune.errors import (
    AutotuneError,
    InvalidShapeError,
    MissingDependencyError,
    TableError,
    UnknownNameError,
    UsageError,
)
from autotune.registry import get_implementation, get_operation
from autotune.search import Observer
from autotune.shape import PagedShape
from autotune.table import write_shipped
from autotune.tuning import tune
from tests import sample
from tests.outside import row_scale
from tests.outside.row_scale.clashing import SeededShape

LONE = replace(get_operation("flash_attention"), name="lone")
FOREIGN = replace(get_implementation("flash_attention", "flex"), operation="lone")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine without a GPU, with a recorded length."""
    sample.serve_from(monkeypatch, tmp_path / "home", tmp_path / "results")
    sample.hide_gpu(monkeypatch)
    path = Path("nvidia_h200/flash_attention/sweeps/triton_64.parquet")
    write_shipped(path, sample.sweep(sample.shape(64)), results=tmp_path / "results")
    dispatch.reload()
    yield tmp_path / "home"
    dispatch.reload()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"shapes": "llama"}, UsageError, "shapes='llama' is of type str"),
        ({"shapes": 7}, UsageError, "shapes=7"),
        ({"shapes": [("flash_attention",)]}, UsageError, "is of type tuple"),
        ({"shapes": [("flash", sample.shape(64))]}, UnknownNameError, "operation='flash'"),
        ({"sampler": "annealing"}, UnknownNameError, "sampler='annealing' is unknown"),
        ({"implementations": ["cute"]}, UnknownNameError, "implementations='cute' of flash_attention is unknown"),
        ({"operation": "paged_decode"}, UsageError, "operation='paged_decode' takes PagedShape"),
        ({"target": "sm_1"}, UnknownNameError, "sm_1"),
        ({"device": "NVIDIA H9000"}, UnknownNameError, "NVIDIA H9000"),
        (
            {
                "shapes": PagedShape(batch=1, heads=8, max_context=64, head_dim=128, seq_q=9),
                "operation": "paged_decode",
            },
            InvalidShapeError,
            "seq_q=9",
        ),
        ({"must_measure": True}, MissingDependencyError, "no GPU is visible"),
        ({"must_measure": True, "must_replay": True}, UsageError, "must_replay=True is not allowed with must_measure"),
        ({"gpus": "all", "must_replay": True}, UsageError, "must_replay=True is not allowed with gpus='all'"),
        ({"store": "/tmp/x"}, UsageError, "store='/tmp/x' is of type str; expected a Store"),
        ({"settings": "x"}, UsageError, "settings='x' is of type str; expected Settings, such as autotune.executor"),
        (
            {"observer": "x"},
            UsageError,
            "observer='x' is of type str; expected an Observer, .* or None for the default",
        ),
        ({"ship_to": "folder"}, UsageError, "ship_to='folder' is of type str; expected a Path, such as pathlib.Path"),
        ({"begun": 3.5}, UsageError, "begun=3.5 is of type float; expected a HeadStart"),
        ({"must_measure": "no"}, UsageError, "must_measure='no' is not allowed; expected True or False"),
        ({"must_replay": 1}, UsageError, "must_replay=1 is not allowed; expected True or False"),
        ({"race_served": None}, UsageError, "race_served=None is not allowed; expected True or False"),
        ({"budget": True}, UsageError, "budget=True is not allowed; expected seconds, more than 0"),
        ({"trials": True}, UsageError, "trials=True is not allowed; expected an integer from 1"),
        ({"seed": True}, UsageError, "seed=True is not allowed; expected an integer from 0"),
        ({"gpus": 0}, UsageError, "gpus=0 is not allowed"),
        ({"trials": 0, "budget": None}, UsageError, "trials=0 is not allowed; expected an integer from 1"),
        ({"trials": 0, "budget": 10}, UsageError, "trials=0 is not"),
        ({"trials": 1.5}, UsageError, "trials=1.5 is not"),
        ({"budget": -1}, UsageError, "budget=-1 is not allowed; expected seconds, more than 0"),
        ({"budget": 0}, UsageError, "budget=0 is not"),
        ({"budget": float("nan")}, UsageError, "budget=nan is not"),
        ({"budget": float("inf")}, UsageError, "budget=inf is not allowed; .* None for no limit"),
        ({"budget": "60s"}, UsageError, "budget='60s' is not"),
        ({"seed": -1}, UsageError, "seed=-1 is not allowed; expected an integer from 0 to 4294967295"),
        ({"seed": 2**32}, UsageError, "seed=4294967296 is not"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused_before_anything_is_searched(
    home: Path, arguments: dict[str, Any], error: type[AutotuneError], message: str
) -> None:
    notes = Mock(spec=Observer)
    with pytest.raises(error, match=message):
        tune(**{"shapes": sample.shape(64), "observer": notes, **arguments})
    assert (notes.mock_calls, home.exists()) == ([], False)


@pytest.mark.parametrize("foreign", ["none", "flex"])
def test_an_operation_without_an_implementation_of_ours_is_said_to_have_none(
    monkeypatch: pytest.MonkeyPatch, foreign: str
) -> None:
    monkeypatch.setitem(registry._operations, "lone", f"{__name__}:LONE")
    if foreign != "none":
        monkeypatch.setitem(registry._implementations, ("lone", foreign), f"{__name__}:FOREIGN")
    with pytest.raises(
        UnknownNameError, match=f"operation='lone' has no implementation of ours; to be named: {foreign}$"
    ):
        tune(sample.shape(64), operation="lone")


def test_what_no_table_could_keep_is_refused_before_anything_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    row_scale.isolate(monkeypatch)
    registry.register("seeded", "tests.outside.row_scale.clashing:OPERATION")
    registry.register_implementation("seeded", "plain", "tests.outside.row_scale.clashing:IMPLEMENTATION")
    with pytest.raises(
        TableError, match=r"^seeded/plain: more than one column is named seed; expected names of shape "
    ):
        tune(SeededShape(rows=64, width=8))
