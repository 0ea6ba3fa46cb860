"""From the decorator to a stored winner to the config of a launch: the path of every operation."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autotune import dispatch, tuning
from autotune.decorated import kernel
from autotune.errors import MissingDependencyError
from autotune.implementation import Implementation
from autotune.table import Store, home
from autotune.trial import Stage
from autotune.tuning import tune, tuner
from autotune.workload import operation_for
from tests.benchmarks.model_grid.fake_gpu import H100
from tests.decorated.by_block import NOTE, ByBlock, launch, use_gpu, watch_launches
from tests.outside.decorated_kernels import scale, total


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> ByBlock:
    """The GPU that searches find, and that launches happen on."""
    return use_gpu(monkeypatch)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options that launches pass to Triton."""
    return watch_launches(monkeypatch)


def test_a_winner_is_stored_and_launched(gpu: ByBlock, launched: list[dict[str, Any]]) -> None:
    launch()
    assert (launched[0]["BLOCK"], launched[0]["num_warps"]) == (128, 2)  # the first of the list, without a row
    shape = scale.shape_class(size=4096)
    (result,) = tune(shape, budget=None).results
    assert result.winner is not None
    assert dict(result.winner.config) == {"BLOCK": 512, "num_warps": 4, "num_stages": 3}
    rows = Store(home()).trials("scale", H100)
    assert len({row.config for row in rows if row.stage is Stage.SCREEN}) == 6
    assert {row.outcome.message for row in rows} == {NOTE}
    launch()  # the tables were read again
    assert (launched[1]["BLOCK"], launched[1]["num_warps"]) == (512, 4)
    assert scale.best_config.kwargs == {"BLOCK": 512}
    assert dispatch.get_kernel(shape, device=H100.name).provenance.rung == "exact"


def test_neighbours_and_other_dtypes(gpu: ByBlock, launched: list[dict[str, Any]]) -> None:
    tune(scale.shape_class(size=4096), budget=None)
    launch(size=8192)  # a factor of two away
    launch(size=16384)
    launch(dtype=torch.float32)  # another row, as for Triton's key
    assert [each["BLOCK"] for each in launched] == [512, 128, 128]


def test_the_first_call_tunes_where_that_is_asked_for(
    gpu: ByBlock, launched: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scale, "mode", "first_call")
    launch()
    launch()
    assert [each["BLOCK"] for each in launched] == [512, 512]
    assert len(gpu.asked) == 6  # once


def test_a_first_call_that_cannot_tune_says_so_and_launches(
    gpu: ByBlock, launched: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MissingDependencyError("no compiler")

    monkeypatch.setattr(scale, "mode", "first_call")
    monkeypatch.setattr(tuner, "open_gpu", fail)
    with pytest.warns(RuntimeWarning, match=r"scale: mode='first_call' could not tune size=4096, float16: no compiler"):
        launch()
    assert launched[0]["BLOCK"] == 128


def test_a_search_that_failed_is_not_tried_again_after_a_reload_but_for_another_source(
    gpu: ByBlock, launched: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def fail(*_: object) -> None:
        tried.append(1)
        raise MissingDependencyError("no compiler")

    monkeypatch.setattr(scale, "mode", "first_call")
    monkeypatch.setattr(tuner, "open_gpu", fail)
    with pytest.warns(RuntimeWarning, match="could not tune"):
        launch()
    dispatch.reload()
    launch()
    assert len(tried) == 1
    monkeypatch.setattr(Implementation, "source_hash", "other")
    dispatch.reload()
    with pytest.warns(RuntimeWarning, match="could not tune"):
        launch()
    assert len(tried) == 2


def test_a_launch_that_waited_for_a_search_searches_no_more(
    gpu: ByBlock, launched: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, pick, searched = scale.shape_class(size=4096), partial(dispatch.pick_for_device, place=H100), []
    picks = [pick(shape, operation="scale")]
    tune(shape, budget=None)  # in another thread, as it seems, between the pick and the lock
    monkeypatch.setattr(tuning, "tune", lambda *given, **options: searched.append(given))
    monkeypatch.setattr(scale, "mode", "first_call")
    monkeypatch.setattr(
        kernel, "pick_for_device", lambda *given: picks.pop() if picks else dispatch.pick_for_device(*given)
    )
    launch()
    assert not searched
    assert launched[0]["BLOCK"] == 512


def test_pruned_configs_are_no_members_and_the_default_is_the_first_that_is_left(gpu: ByBlock) -> None:
    shape = total.shape_class(size=130)
    assert [config["BLOCK"] for config in total.implementation.space.configs(shape, H100)] == [128, 128]
    (result,) = tune(shape, budget=None).results
    assert result.winner is not None
    assert dict(result.winner.config) == {"BLOCK": 128, "num_warps": 4, "num_stages": 3}


def test_what_this_toolchain_refuses_gives_way(gpu: ByBlock, monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime.errors import OutOfResources

    tune(scale.shape_class(size=4096), budget=None)
    seen = []

    def run(*args: Any, **named: Any) -> None:
        seen.append(named["BLOCK"])
        if named["BLOCK"] == 512:
            raise OutOfResources(300_000, 232_448, "shared memory")

    monkeypatch.setattr(scale, "fn", SimpleNamespace(run=run))
    with pytest.warns(RuntimeWarning, match="this toolchain refuses triton BLOCK=512"):
        launch()
    launch()
    assert seen == [512, 128, 128]


def test_a_refusal_that_another_thread_met_first_costs_nobody_else_a_place(gpu: ByBlock) -> None:
    from triton.runtime.errors import OutOfResources

    shape = scale.shape_class(size=4096)
    tune(shape, budget=None)
    tuned, error = dispatch.pick_for_device(shape, H100, "scale"), OutOfResources(300_000, 232_448, "shared memory")
    refused = tuned.candidate
    with pytest.warns(RuntimeWarning, match="this toolchain refuses triton BLOCK=512"):
        assert tuned.give_way(error, refused)
    following = tuned.candidate
    assert following != refused
    assert tuned.give_way(error, refused)
    assert tuned.candidate == following
    assert not tuned.give_way(ValueError("of the caller"), following)


def test_a_pick_that_a_reload_overtakes_is_not_kept(
    gpu: ByBlock, launched: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pick = scale.pick

    def overtaken(*given: Any) -> Any:
        found = pick(*given)
        tune(scale.shape_class(size=4096), budget=None)  # which reloads
        return found

    monkeypatch.setattr(scale, "pick", overtaken)
    launch()
    monkeypatch.setattr(scale, "pick", pick)
    launch()
    assert [options["BLOCK"] for options in launched] == [128, 512]


def test_shapes_find_their_operation() -> None:
    assert operation_for(scale.shape_class(size=1)) is scale.operation
    assert operation_for(total.shape_class(size=1)) is total.operation


def test_without_a_gpu_a_search_says_that_nothing_is_recorded() -> None:
    with pytest.raises(MissingDependencyError, match="no sweep of an NVIDIA H200 is recorded to replay"):
        tune(scale.shape_class(size=4096))
