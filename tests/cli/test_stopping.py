"""A search that is stopped, by Ctrl-C or SIGTERM, keeps what it has, says so, and ends with the signal's exit code."""

import json
import os
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.dispatch import get_kernel
from autotune.executor.replay import ReplayExecutor
from autotune.space import Config
from autotune.table import Store
from autotune.trial import Outcome
from autotune.tuning import shape_searches, tuner
from tests import sample
from tests.cli.conftest import Machine, Ran

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


@pytest.mark.parametrize("as_json", [False, True])
def test_an_interrupted_race_leaves_the_best_by_screening(
    run: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ReplayExecutor, "race", interrupt)
    machine.ship_sweep(1024)
    ran = run("search", "--trials", "5", *(["--json"] if as_json else []))
    best = min(machine.kept(), key=lambda trial: trial.timing.median_us if trial.timing else float("inf"))
    assert ran.code == 130
    assert f"\ninterrupted: the best so far is {best.config}, " in (ran.err if as_json else ran.out)
    assert ", by screening; everything is kept" in (ran.err if as_json else ran.out)
    if as_json:
        (data,) = json.loads(ran.out)
        assert best.timing is not None
        assert (data["winner"], data["interrupted"], data["best"]["stage"]) == (None, True, "screen")
        assert data["best"]["config"] == {name: value for name, value in best.config.items() if value is not None}
        assert data["best"]["timing"]["median_us"] == best.timing.median_us


@pytest.mark.parametrize("stop", ["confirm", "compile_all"])
def test_an_interrupted_confirmation_is_said_and_the_winner_stands(
    run: Run, machine: Machine, confirmed: list[list[Config]], monkeypatch: pytest.MonkeyPatch, stop: str
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shape_searches, stop, interrupt)
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

    monkeypatch.setattr(tuner, "open_executor", interrupt)
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


# The console script's code and what ``python -m autotune`` runs; the process signals itself when it imports MODULE.
ENTRIES = {
    "script": "from autotune.cli import main\nsys.exit(main())",
    "module": "import runpy\nrunpy.run_module('autotune', run_name='__main__', alter_sys=True)",
}
SIGNALLED = """
import os, sys

class Signal:
    def find_spec(name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(Signal)
            os.kill(os.getpid(), {number})

sys.meta_path.insert(0, Signal)
"""


def run_signalled(home: Path, before: str, entry: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", before + ENTRIES[entry], *arguments]
    environment = {**os.environ, "AUTOTUNE_HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("entry", "module", "number", "code"),
    [
        ("script", "autotune.cli.app", signal.SIGINT, 130),
        ("module", "autotune.cli.app", signal.SIGTERM, 143),
        ("script", "click", signal.SIGTERM, 143),
        ("module", "pyarrow", signal.SIGINT, 130),
        ("script", "optuna", signal.SIGINT, 130),
        ("module", "autotune.cli.studies", signal.SIGTERM, 143),
    ],
)
def test_a_signal_while_the_program_loads_ends_it_silently(
    tmp_path: Path, entry: str, module: str, number: int, code: int
) -> None:
    before = SIGNALLED.format(module=module, number=int(number))
    done = run_signalled(tmp_path, before, entry, "search", "--seq", "64", "--trials", "1")
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_script", [False, True])
@pytest.mark.parametrize("module", ["autotune.console.interrupts", "autotune.platforms"])
def test_a_signal_while_the_package_itself_is_imported_ends_it_silently(
    tmp_path: Path, module: str, is_script: bool
) -> None:
    before = SIGNALLED.format(module=module, number=int(signal.SIGINT))
    (tmp_path / "sitecustomize.py").write_text(before)
    (tmp_path / "autotune").write_text(f"import sys\n{ENTRIES['script']}")
    path = os.pathsep.join(map(str, (tmp_path, *sys.path)))
    entry = [str(tmp_path / "autotune")] if is_script else ["-m", "autotune"]
    done = subprocess.run(
        [sys.executable, *entry, "search", "--seq", "64"],
        env={**os.environ, "AUTOTUNE_HOME": str(tmp_path / "home"), "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("arguments", [[], ["-m", "autotune"]], ids=["alone", "with a mark of pytest"])
def test_a_program_that_imports_the_package_keeps_its_own_interrupts(arguments: list[str]) -> None:
    code = "import signal, autotune\nassert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code, *arguments], env=environment, check=True)


def test_a_signal_while_python_ends_is_silent(tmp_path: Path) -> None:
    before = f"import atexit, os, sys\natexit.register(os.kill, os.getpid(), {int(signal.SIGTERM)})\n"
    done = run_signalled(tmp_path, before, "script", "bench", "--suite", "none")  # a command that was interruptible
    assert (done.returncode, done.stderr.count("\n")) == (143, 1)
    assert done.stderr.startswith("autotune: --suite='none' is unknown")


def test_a_background_job_that_ignores_ctrl_c_goes_on_ignoring_it(tmp_path: Path) -> None:
    before = SIGNALLED.format(module="click", number=int(signal.SIGINT))
    ignoring = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    done = run_signalled(tmp_path, ignoring + before, "script", "--version")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_installed_command_is_the_one_that_is_signalled_here() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert project["project"]["scripts"] == {"autotune": "autotune.cli:main"}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_pull_from_a_store_that_never_answers(tmp_path: Path, number: int, code: int) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "AUTOTUNE_SITE": str(tmp_path / "site")}
    output = tmp_path / "output"
    with socket.create_server(("127.0.0.1", 0)) as silent, output.open("wb") as file:
        silent.settimeout(60)
        uri = f"gs://anonymous@bucket/x?scheme=http&endpoint_override=127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-m", "autotune", "tables", "pull"]
        with subprocess.Popen(command, env={**environment, "AUTOTUNE_PULL": uri}, stdout=file, stderr=file) as process:
            try:
                connection, _ = silent.accept()
                with connection:
                    process.send_signal(number)
                    assert process.wait(timeout=20) == code
            finally:
                process.kill()
    assert output.read_text() == ""
    assert list(tmp_path.iterdir()) == [output]
