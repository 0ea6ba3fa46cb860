"""Fixtures of the command line's tests: a machine without a GPU, with tables and a sweep of its own."""

import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from autotune import dispatch, hardware
from autotune.cli import interrupts, studies
from autotune.cli.app import main
from autotune.correctness import Verdict
from autotune.executor.select import Settings
from autotune.search import Confirmation
from autotune.space import Config
from autotune.table import Store, write_shipped
from autotune.trial import Outcome, Resources, Status, Trial
from tests.report import sample


class Ran(NamedTuple):
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Machine:
    """The folders that commands read and write."""

    home: Path
    results: Path

    def tune(self, *trials: Trial) -> None:
        """Add rows to the user's tables."""
        for trial in trials:
            Store(self.home).append([trial])
        dispatch.reload()

    def ship(self, *trials: Trial) -> None:
        """Write the shipped winners of the H200."""
        write_shipped(Path("nvidia_h200/flash_attention.parquet"), trials, results=self.results)
        dispatch.reload()

    def ship_sweep(self, seq: int) -> list[Trial]:
        """Write a sweep of the default problem at that length."""
        trials = sample.sweep(sample.shape(seq))
        write_shipped(Path(f"nvidia_h200/sweeps/seq_{seq}.parquet"), trials, results=self.results)
        return trials

    def kept(self) -> list[Trial]:
        """Every trial of the user."""
        return Store(self.home).trials("flash_attention")


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    here = Machine(tmp_path / "home", tmp_path / "results")
    sample.serve_from(monkeypatch, here.home, here.results)
    monkeypatch.setattr(hardware, "has_gpu", lambda: False)
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # main sets its own
    handlers = {number: signal.getsignal(number) for number in interrupts.SIGNALS}  # and these
    dispatch.reload()
    yield here
    dispatch.reload()
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run ``autotune`` with these arguments in this process, as its console script does."""

    def command(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["autotune", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return Ran(int(ended.value.code or 0), printed.out, printed.err)

    return command


@pytest.fixture
def confirmed(monkeypatch: pytest.MonkeyPatch) -> list[list[Config]]:
    """A compiler and an interpreter that agree at once; the finalists of each call."""
    calls: list[list[Config]] = []

    def confirm(
        operation: object, shape: object, device: object, finalists: list[Config], winner: Config, settings: Settings
    ) -> Any:
        calls.append(finalists)
        resources = Resources(shared_bytes=65536, registers=128, spill_bytes=0)
        compiled = tuple(Outcome(config=c, status=Status.OK, resources=resources) for c in finalists)
        return Confirmation(compiled, Verdict(Status.OK, error=0.001, error_limit=0.004), "float16")

    monkeypatch.setattr(studies, "confirm", confirm)
    return calls
