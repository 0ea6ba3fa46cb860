"""A search that is stopped, by Ctrl-C or SIGTERM, keeps what it has, says so, and ends with the signal's exit code."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.cli import studies
from autotune.dispatch import get_kernel
from autotune.executor.replay import ReplayExecutor
from autotune.space import Config
from autotune.table import Store
from autotune.trial import Outcome
from tests.cli.conftest import Machine, Ran
from tests.report import sample

Run = Callable[..., Ran]


def test_an_interrupted_search_keeps_what_it_found_and_continues(
    run: Run, machine: Machine, confirmed: list[list[Config]], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.ship_sweep(1024)
    collect = ReplayExecutor.collect
    answered: list[Outcome] = []

    def collect_until_stopped(executor: ReplayExecutor, timeout: float | None = None) -> Outcome:
        if len(answered) == 7:
            raise KeyboardInterrupt
        answered.append(collect(executor))
        return answered[-1]

    with monkeypatch.context() as patch:
        patch.setattr(ReplayExecutor, "collect", collect_until_stopped)
        ran = run("search", "--seq", "1024,64")
    assert (ran.code, ran.err) == (130, "")
    assert "interrupted: the best so far is BLOCK_Q=128 BLOCK_K=" in ran.out
    assert "seq 64" not in ran.out
    assert len(machine.kept()) == 7
    assert "2 configs tried and 7 known in " in run("search", "--trials", "9").out


@pytest.mark.parametrize("stop", ["confirm", "_compile_for"])
def test_an_interrupted_confirmation_is_said_and_the_winner_stands(
    run: Run, machine: Machine, confirmed: list[list[Config]], monkeypatch: pytest.MonkeyPatch, stop: str
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(studies, stop, interrupt)
    machine.ship_sweep(64)
    machine.ship_sweep(32)
    ran = run("search", "--seq", "64,32", "--trials", "5", "--target", "sm_80")
    assert (ran.code, ran.err) == (130, "")
    assert "interrupted: the winner stands, but not all of it was compiled and checked here\nsaved     " in ran.out
    assert "seq 32" not in ran.out
    assert get_kernel(sample.shape(64), device="NVIDIA H200").provenance.rung == "exact"


def test_an_interrupt_before_the_first_trial_is_said(
    run: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(studies, "open_executor", interrupt)
    ran = run("search", "--json")
    assert (ran.code, json.loads(ran.out)) == (130, [])
    assert ran.err.startswith("interrupted: everything that was measured is kept")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_search_in_order(tmp_path: Path, number: signal.Signals, code: int) -> None:
    environment = {**os.environ, "AUTOTUNE_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "tests.cli.endless", "search", "--seq", "64", "--sampler", "random"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("1 trial"):
            assert process.poll() is None
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (code, "closed\n")
    assert "\ninterrupted: the best so far is BLOCK_Q=" in f"\n{out}"
    assert len(Store(tmp_path).trials("flash_attention")) >= 1
