"""Fixtures of the command line's tests: a machine without a GPU, with tables and a sweep of its own."""

import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from autotune import dispatch
from autotune.cli.app import main
from autotune.table import Store, write_shipped
from autotune.trial import Trial
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
    for module in ("autotune.hardware", "autotune.cli.search", "autotune.cli.tables"):
        monkeypatch.setattr(f"{module}.has_gpu", lambda: False)
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # main sets its own
    dispatch.reload()
    yield here
    dispatch.reload()


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
