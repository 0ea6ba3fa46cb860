"""Fixtures of the command line's tests: a machine without a GPU, with tables and a sweep of its own."""

import hashlib
import io
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from autotune import dispatch, registry
from autotune.cli import health
from autotune.cli.app import main
from autotune.console import interrupts
from autotune.correctness import Verdict
from autotune.executor.select import Settings
from autotune.operation import Operation
from autotune.own_kernels import OwnKernels
from autotune.registry import get_implementation
from autotune.search import Confirmation
from autotune.table import Store, write_shipped
from autotune.table.parquet import encode
from autotune.trial import Candidate, Outcome, Resources, Status, Trial
from autotune.tuning import shape_searches
from tests import sample


class Ran(NamedTuple):
    """The exit of a command and what it printed."""

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

    def plant(self, trial: Trial, **columns: int | str) -> Path:
        """Add a row to the user's tables with other values than the trial's, such as ones outside of its space."""
        file = pq.ParquetFile(io.BytesIO(encode([trial])))
        table = file.read()
        for name, value in columns.items():
            place = table.schema.get_field_index(name)
            table = table.set_column(place, table.schema.field(place), pa.array([value], table.schema.types[place]))
        sink = io.BytesIO()
        with pq.ParquetWriter(sink, table.schema, store_schema=False) as writer:
            writer.write_table(table)
            writer.add_key_value_metadata(file.metadata.metadata)
        path = self.home / trial.device.slug / trial.operation / trial.implementation
        path.mkdir(parents=True, exist_ok=True)
        path /= f"{hashlib.sha256(sink.getvalue()).hexdigest()}.parquet"
        path.write_bytes(sink.getvalue())
        dispatch.reload()
        return path

    def ship(self, *trials: Trial) -> None:
        """Write the shipped winners of the H200, of one implementation."""
        path = Path(f"nvidia_h200/flash_attention/{trials[0].implementation}.parquet")
        write_shipped(path, trials, results=self.results)
        dispatch.reload()

    def ship_sweep(self, seq: int) -> list[Trial]:
        """Write a sweep of the default problem at that length."""
        trials = sample.sweep(sample.shape(seq))
        write_shipped(Path(f"nvidia_h200/flash_attention/sweeps/triton_{seq}.parquet"), trials, results=self.results)
        return trials

    def kept(self) -> list[Trial]:
        """Every trial of the user."""
        return Store(self.home).trials("flash_attention")


@pytest.fixture(autouse=True)
def machine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    here = Machine(tmp_path / "home", tmp_path / "results")
    if request.node.get_closest_marker("gpu"):  # which has this machine's own
        yield here
        return
    sample.serve_from(monkeypatch, here.home, here.results)
    sample.hide_gpu(monkeypatch)
    monkeypatch.setattr(health, "why_no_import", lambda name: None)  # which takes seconds to find
    monkeypatch.setattr(registry, "_kernels", OwnKernels())
    for registered in ("_operations", "_implementations"):  # none that other tests registered in this process
        ours = {name: path for name, path in getattr(registry, registered).items() if path.startswith("autotune.")}
        monkeypatch.setattr(registry, registered, ours)
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
def confirmed(monkeypatch: pytest.MonkeyPatch) -> list[list[Candidate]]:
    """A compiler and an interpreter that agree at once, on what compiles here; the finalists of each call."""
    calls: list[list[Candidate]] = []

    def confirm(
        operation: Operation[Any],
        shape: object,
        device: object,
        finalists: list[Candidate],
        winner: Candidate,
        settings: Settings,
    ) -> Any:
        if not get_implementation(operation.name, winner.implementation).compiles_ahead:
            return None
        calls.append(finalists)
        resources = Resources(shared_bytes=65536, registers=128, spill_bytes=0)
        compiled = tuple(Outcome(candidate=c, status=Status.OK, resources=resources) for c in finalists)
        return Confirmation(compiled, Verdict(Status.OK, error=0.001, error_limit=0.004), "float16")

    monkeypatch.setattr(shape_searches, "confirm", confirm)
    return calls
