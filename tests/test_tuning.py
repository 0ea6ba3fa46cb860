"""``tune`` by replay: from shapes to stored winners; in threads and several processes; failures and Ctrl-C."""

import asyncio
import inspect
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from autotune import dispatch
from autotune.correctness import Verdict
from autotune.device import Device
from autotune.errors import (
    MissingDependencyError,
    SearchError,
    UsageError,
)
from autotune.executor.head_start import HeadStart
from autotune.executor.replay import ReplayExecutor
from autotune.executor.select import open_replay
from autotune.registry import get_implementation, get_operation
from autotune.search import Confirmation, Observer, SearchResult
from autotune.shape import AttentionShape
from autotune.table import Store, write_portfolio, write_shipped
from autotune.trial import Candidate, Outcome, Policy, Resources, Status, Trial
from autotune.tuning import Tuning, shape_searches, tune, tuner
from tests import sample
from tests.search.synthetic import FakeExecutor

ROOT = Path(__file__).parents[1]
QUICK: dict[str, Any] = {"trials": 6, "sampler": "random", "budget": None}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine without a GPU, with two recorded lengths, and a compiler and interpreter that agree at once."""
    sample.serve_from(monkeypatch, tmp_path / "home", tmp_path / "results")
    sample.hide_gpu(monkeypatch)
    monkeypatch.setattr(shape_searches, "confirm", confirm_at_once)
    for seq in (64, 128):
        rows = sample.sweep(sample.shape(seq))
        path = Path(f"nvidia_h200/flash_attention/sweeps/triton_{seq}.parquet")
        write_shipped(path, rows, results=tmp_path / "results")
    dispatch.reload()
    yield tmp_path / "home"
    dispatch.reload()


def confirm_at_once(
    operation: object, shape: object, device: object, finalists: Sequence[Candidate], *_: object
) -> Confirmation:
    resources = Resources(shared_bytes=65536, registers=128, spill_bytes=0)
    compiled = tuple(Outcome(candidate=each, status=Status.OK, resources=resources) for each in finalists)
    return Confirmation(compiled, Verdict(Status.OK, error=0.001, error_limit=0.004), "float16")


class Notes(Observer):
    """Notes the names of events, trials apart, and what came with some of them."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.kept: list[Trial] = []

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("on_") and name != "on_trial":
            self.events.append(name.removeprefix("on_"))
        return super().__getattribute__(name)

    def on_trial(self, trial: Trial) -> None:
        self.kept.append(trial)


def test_a_shape_is_tuned_stored_and_served(home: Path) -> None:
    found = tune(sample.shape(64), **QUICK)
    (result,) = found.results
    assert (result.operation, result.asked, result.shape) == ("flash_attention", sample.shape(64), sample.shape(64))
    assert result.winner is not None
    assert result.winner in Store(home).trials("flash_attention")
    assert result.winner in result.ties
    assert (result.failure, found.failures, found.interrupted, found.holds) == ("", (), False, True)
    served = dispatch.get_kernel(sample.shape(64), device="NVIDIA H200")
    assert (served.provenance.rung, served.candidate) == ("exact", result.winner.candidate)


def test_what_is_found_reads_well() -> None:
    (result,) = (found := tune(sample.shape(64), **QUICK)).results
    assert result.winner is not None
    text = str(found)
    assert text.startswith(f"flash_attention: {sample.shape(64)}\n  winner {result.winner.candidate}\n  time ")
    assert "replayed as recorded on an NVIDIA H200" in text
    assert f"{result.default_ratio:.2f}x the speed of the default" in text
    (other,) = tune(sample.shape(96), **QUICK).results
    assert f"of {sample.shape(128)}, not of the shape asked for" in str(other)
    assert "checked numbers ok in Triton's interpreter, float16" in str(other)
    assert str(Tuning(())) == "nothing to tune"


def test_a_replay_has_its_budget_from_the_call_whatever_was_begun_before() -> None:
    begun = HeadStart(time.monotonic() - 1000.0)  # a driver is loaded, and the GPU is hidden or another is named
    (found,) = tune(sample.shape(64), trials=6, sampler="random", budget=60.0, begun=begun).results
    assert found.search is not None
    assert found.search.measured == 6
    assert found.search.seconds < 900.0


def test_a_gpu_has_its_budget_from_what_was_begun_and_tells_the_steps_of_its_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = HeadStart(time.monotonic() - 1000.0)
    assert begun.started is not None
    executor = FakeExecutor()
    executor.reached = {"gpu_opened": begun.started + 2.0, "before": begun.started - 1.0}
    monkeypatch.setattr(tuner, "open_executor", lambda *_: executor)
    (found,) = tune(sample.shape(64), implementations="triton", **QUICK, begun=begun).results
    assert found.search is not None
    assert found.search.seconds > 1000.0
    assert list(found.search.stages) == ["gpu_opened", "listed", "first_measured", "screened"]
    assert found.search.stages["gpu_opened"] == pytest.approx(2.0)


def test_several_shapes_have_a_result_each_in_their_order() -> None:
    shapes = [sample.shape(128), sample.shape(64), sample.shape(96)]
    found = tune(iter(shapes), **QUICK)
    assert [each.asked for each in found.results] == shapes
    assert [each.shape for each in found.results] == [sample.shape(128), sample.shape(64), sample.shape(128)]
    assert found.results[0].search is found.results[2].search  # one search answers both


def test_an_operation_may_stand_beside_a_shape() -> None:
    flash = get_operation("flash_attention")
    assert tune([(flash, sample.shape(64))], **QUICK).results[0].operation == "flash_attention"
    assert tune([("flash_attention", sample.shape(64))], **QUICK).results[0].operation == "flash_attention"
    assert tune(sample.shape(64), operation="flash_attention", implementations="triton", **QUICK).results[0].winner


def test_a_second_call_continues() -> None:
    first = tune(sample.shape(64), **QUICK).results[0].search
    again = tune(sample.shape(64), **{**QUICK, "trials": 8}).results[0].search
    assert first is not None
    assert again is not None
    assert (first.measured, again.resumed, again.measured) == (6, 6, 2)


def test_an_observer_receives_what_happens_in_order() -> None:
    notes = Notes()
    tune([sample.shape(64), sample.shape(96), sample.shape(128)], observer=notes, **QUICK)
    searched = ["skipped", "race", "result", "confirming", "confirmed", "saved"]
    assert notes.events == ["replay", "start", "skipped", *searched, "nearest", "start", *searched]
    assert len(notes.kept) == 12


def test_a_replay_says_of_what_nothing_is_recorded() -> None:
    notes = Notes()
    (found,) = tune(sample.shape(64), observer=notes, **QUICK).results
    assert notes.events[:3] == ["replay", "start", "skipped"]
    assert found.search is not None
    assert [bool(part.skipped) for part in found.search.implementations] == [False, True, True]
    with pytest.raises(MissingDependencyError, match="no sweep of flash_attention/gluon_hopper is recorded"):
        tune(sample.shape(64), implementations="gluon_hopper", **QUICK)


def test_a_shape_of_several_that_fails_is_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    full = sample.shape(64, causal=False)  # of a family that is not recorded
    notes = Notes()
    found = tune([sample.shape(64), full], observer=notes, **QUICK)
    good, bad = found.results
    assert good.winner is not None
    assert (bad.winner, bad.search) == (None, None)
    assert "no recorded sweep resembles" in bad.failure
    assert found.failures == (bad,)
    assert f"failed: {bad.failure}" in str(found)
    assert notes.events[:2] == ["failure", "replay"]  # known before anything is searched
    with pytest.raises(MissingDependencyError, match="no recorded sweep resembles"):
        tune(full, **QUICK)

    def fail(*_: object, **__: object) -> SearchResult:
        raise SearchError("no config is valid")

    monkeypatch.setattr(shape_searches, "search", fail)
    assert [each.failure for each in tune([sample.shape(64), sample.shape(128)]).results] == ["no config is valid"] * 2
    with pytest.raises(SearchError, match="no config is valid"):
        tune(sample.shape(64))


def test_what_must_be_measured_is_not_measured_on_another_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = open_replay(None, Policy())
    monkeypatch.setattr(tuner, "open_gpu", lambda *_: executor)
    wrong = "device='NVIDIA B200' is not allowed with must_measure=True; expected 'NVIDIA H200' or None"
    with pytest.raises(UsageError, match=wrong):
        tune(sample.shape(64), device="NVIDIA B200", must_measure=True, **QUICK)
    assert tune(sample.shape(64), device="nvidia h200", must_measure=True, **QUICK).results[0].winner


def test_a_winner_that_does_not_hold_here_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Confirmation((), Verdict(Status.WRONG_RESULT, "off by 3"), "float16")
    monkeypatch.setattr(shape_searches, "confirm", lambda *_: wrong)
    found = tune(sample.shape(64), **QUICK)
    assert (found.holds, found.results[0].confirmation) == (False, wrong)


def test_another_target_is_compiled_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Device, list[Candidate]]] = []

    def compile_all(operation: object, shape: object, device: Device, wanted: list[Candidate], _: object) -> list[Any]:
        asked.append((device, wanted))
        return []

    monkeypatch.setattr(shape_searches, "compile_all", compile_all)
    tune(sample.shape(64), target="gfx942", **QUICK)
    ((device, wanted),) = asked
    assert device.arch == "gfx942"
    assert all(each.config["kpack"] is not None for each in wanted)  # a parameter that the H200 lacks


@pytest.mark.parametrize("answers", [0, 3, 8])
def test_ctrl_c_returns_what_was_found_until_then(home: Path, monkeypatch: pytest.MonkeyPatch, answers: int) -> None:
    collect, count = ReplayExecutor.collect, 0

    def collect_until_stopped(executor: ReplayExecutor, timeout: float | None = None) -> Outcome:
        nonlocal count
        if count == answers:
            raise KeyboardInterrupt
        count += 1
        return collect(executor, timeout)

    monkeypatch.setattr(ReplayExecutor, "collect", collect_until_stopped)
    found = tune([sample.shape(64), sample.shape(128)], **QUICK)
    assert found.interrupted
    assert [each.asked for each in found.results] == [sample.shape(64), sample.shape(128)]
    assert (found.results[0].winner is not None) == (answers == 8)
    assert found.results[0].failure == ("" if answers == 8 else "interrupted before its race")
    assert len([row for row in Store(home).trials("flash_attention") if row.race_id == ""]) == answers
    assert "interrupted" in str(found)


def test_ctrl_c_while_a_winner_is_confirmed_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shape_searches, "confirm", stop)
    found = tune([sample.shape(64), sample.shape(128)], **QUICK)
    assert found.interrupted
    assert found.results[0].winner is not None
    assert "interrupted" in found.results[1].failure


def test_tuning_works_in_a_thread_that_ends_and_under_a_running_event_loop() -> None:
    found: list[Tuning] = []
    thread = threading.Thread(target=lambda: found.append(tune(sample.shape(64), **QUICK)))
    thread.start()
    thread.join()

    async def cell() -> None:  # as a notebook runs one
        found.append(tune(sample.shape(128), **QUICK))

    asyncio.run(cell())
    assert [each.results[0].winner is not None for each in found] == [True, True]


CHILD = """
import json, sys
import autotune
from autotune.shape import AttentionShape
from autotune.tuning import shape_searches, tune

shape_searches.confirm = lambda *_: None
fields = json.loads(sys.argv[1])
found = tune(AttentionShape(**fields), trials=int(sys.argv[2]), sampler="random", seed=int(sys.argv[3]), budget=None,
             implementations=("triton",))
print(json.dumps([str(found.results[0].winner.candidate), found.results[0].search.measured]))
"""


@pytest.mark.slow
def test_two_processes_tune_on_one_home_at_once(tmp_path: Path) -> None:
    """By replay of what ships; nothing is confirmed where nothing can be compiled."""
    home = tmp_path / "shared"
    shape = json.dumps(AttentionShape(batch=16, heads=16, seq_q=1024, head_dim=128, causal=True).as_dict())
    environment = {**os.environ, "AUTOTUNE_HOME": str(home), "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    commands = [[sys.executable, "-c", CHILD, shape, "8", seed] for seed in ("0", "1")]
    running = [subprocess.Popen(each, env=environment, stdout=subprocess.PIPE, text=True) for each in commands]
    said = [json.loads(process.communicate(timeout=300)[0].splitlines()[-1]) for process in running]
    assert [process.returncode for process in running] == [0, 0]
    rows = Store(home).trials("flash_attention")
    assert len([row for row in rows if row.race_id == ""]) == sum(measured for _, measured in said)


def test_docstring_of_each_event_is_there() -> None:
    """The protocol of progress is documented where it is declared."""
    events = [name for name in vars(Observer) if name.startswith("on_")]
    assert len(events) == 16
    assert all(getattr(Observer, name).__doc__ for name in events)


def test_every_argument_is_documented_and_what_the_budget_leaves_out() -> None:
    text = tune.__doc__ or ""
    assert [name for name in inspect.signature(tune).parameters if f"\n        {name}: " not in text] == []
    assert "Where there is no GPU, compiling" in " ".join(text.split())
    assert "checking the winner come on top" in " ".join(text.split())


@pytest.mark.parametrize(
    "setting",
    [
        *("", "AUTOTUNE_CONFIG"),
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("invalid AUTOTUNE_CONFIG", "AUTOTUNE_DISABLE", "seal")
        ),
    ],
)
def test_a_search_on_a_gpu_begins_with_what_tables_alone_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    """Neither what is pinned, nor tables that are switched off, nor the seal of the process that tunes counts."""
    shape, chosen = sample.shape(512), sample.config(num_stages=3)
    write_portfolio([sample.assignment(shape, chosen)], results=tmp_path / "results")
    winners = Path("nvidia_h200/flash_attention/triton.parquet")
    write_shipped(winners, [sample.trial(sample.shape(512, batch=36))], results=tmp_path / "results")
    pinned = sample.config(BLOCK_K=32)
    blocks = "BLOCK_Q=256,BLOCK_K=256,num_stages=4" if setting.startswith("invalid") else "BLOCK_K=32"
    if setting.endswith("AUTOTUNE_CONFIG"):
        monkeypatch.setenv("AUTOTUNE_CONFIG", f"flash_attention/triton:{blocks}")
    if setting == "AUTOTUNE_DISABLE":
        monkeypatch.setenv(setting, "1")
    monkeypatch.setattr(dispatch.events, "_counts", dispatch.events._Counts())
    if setting == "seal":
        dispatch.seal()
    dispatch.reload()
    executor = FakeExecutor(time_us=lambda config: 100.0 + config.integer("BLOCK_K") + config.integer("num_stages"))
    monkeypatch.setattr(tuner, "open_executor", lambda *_: executor)
    shapes = [shape, sample.shape(64, batch=7)]
    (near, untuned) = tune(shapes, implementations="triton", **{**QUICK, "trials": 8}).results
    assert near.winner is not None
    assert untuned.failure == ""
    assert near.winner.default_config == chosen
    assert {chosen, sample.FAST} <= set(executor.races[0])
    assert executor.submitted[:2] == [sample.FAST, chosen]
    assert pinned not in executor.submitted[:5]
    assert (dispatch.stats().picks, dispatch.stats().misses) == ({}, ())


def test_a_gpu_begins_with_what_is_served_and_measures_what_people_write_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, chosen = sample.shape(512), sample.config(num_stages=3)
    write_portfolio([sample.assignment(shape, chosen)], results=tmp_path / "results")
    winners = Path("nvidia_h200/flash_attention/triton.parquet")
    write_shipped(winners, [sample.trial(sample.shape(512, batch=36))], results=tmp_path / "results")
    dispatch.reload()
    executor = FakeExecutor(time_us=lambda config: 100.0 + config.integer("BLOCK_K") + config.integer("num_stages"))
    monkeypatch.setattr(tuner, "open_executor", lambda *_: executor)
    (found,) = tune(shape, implementations="triton", **{**QUICK, "trials": 8}).results
    space = get_implementation("flash_attention", "triton").space
    by_hand = space.heuristics(shape, executor.device)
    # The near winner, which is served, the served default, the space's default, and what people write by hand.
    default = space.default(shape, executor.device)
    assert executor.submitted[:5] == [sample.FAST, chosen, default, *by_hand]
    assert {chosen, sample.FAST, *by_hand} <= set(executor.races[0])
    assert found.winner is not None
    assert found.winner.default_config == chosen
    assert found.winner.heuristic_timing is not None
    assert "the speed of the config that people write by hand" in str(found)
