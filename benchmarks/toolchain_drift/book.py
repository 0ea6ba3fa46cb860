"""Records what versions of Triton make of shipped winners; what is recorded already is not compiled again."""

import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from autotune.device import Device
from autotune.executor.messages import from_plain
from autotune.registry import implementations_of, operation_names
from autotune.shape import Shape
from autotune.space import Config
from autotune.table import Compilation, shipped_compilations, shipped_winners, write_compilations
from autotune.table.schema import MAX_TEXT_LENGTH
from autotune.trial import Outcome, Status, Trial
from benchmarks.toolchain_drift.tritons import compile_with

SERIES: Final = ("3.6", "3.7", "3.8", "3.9")  # those that pyproject.toml allows
KEPT_SECONDS: Final = 30.0  # what an interrupted run may lose


class Stored(NamedTuple):
    """The stored config that is compiled, and the source that it is compiled from."""

    operation: str
    implementation: str
    device: Device
    shape: Shape
    config: Config
    source_hash: str

    @classmethod
    def of(cls, row: Trial | Compilation) -> "Stored":
        return cls(*(getattr(row, name) for name in cls._fields))


def series_of(version: str) -> str:
    """Return the series of a version, ``3.9`` of ``3.9.0``."""
    return ".".join(version.split(".")[:2])


def winners_of(operation: str | None, implementation: str | None, results: Path) -> list[Trial]:
    """List the shipped winners that are compiled ahead, of today's source; a name of None means all."""
    return [
        trial
        for name in ([operation] if operation else operation_names())
        for each in implementations_of(name)
        if each.is_ours and each.compiles_ahead and implementation in (None, each.name)
        for trial in shipped_winners(name, implementation=each.name, results=results)
        if trial.source_hash == each.source_hash
    ]


class Book:
    """The compilations of a folder of results, by stored config and series of Triton."""

    def __init__(self, results: Path) -> None:
        self._results = results
        rows = [row for name in operation_names() for row in shipped_compilations(name, results=results)]
        self._rows = {(Stored.of(row), series_of(row.triton_version)): row for row in rows}
        self._written = time.monotonic()
        self._new: set[tuple[str, str, str]] = set()  # architecture, operation and implementation

    def find(self, trial: Trial, series: str) -> Compilation | None:
        return self._rows.get((Stored.of(trial), series))

    def record(self, winners: Sequence[Trial], series: str, packages: Path | None) -> None:
        """Compile winners with a series of Triton, and write the answers now and then, and at the end."""
        try:
            for number, (version, trial, answer) in enumerate(compile_with(packages, winners), start=1):
                if (row := as_compilation(trial, version, answer)) is not None:
                    self._rows[Stored.of(trial), series] = row
                    self._new.add((trial.device.arch, trial.operation, trial.implementation))
                print(f"triton {version}: {number} of {len(winners)} winners compiled", file=sys.stderr, flush=True)
                if time.monotonic() - self._written > KEPT_SECONDS:
                    self.write()
        finally:
            self.write()

    def write(self) -> None:
        """Write the files that have new rows."""
        for arch, operation, name in sorted(self._new):
            owner = (arch, operation, name)
            rows = [
                row
                for _, row in sorted(self._rows.items(), key=lambda item: repr(item[0]))
                if (row.device.arch, row.operation, row.implementation) == owner
            ]
            if rows:
                write_compilations(rows, results=self._results)
        self._new.clear()
        self._written = time.monotonic()

    def all_of(self, winners: Iterable[Trial]) -> list[tuple[Trial, dict[str, Compilation | None]]]:
        """Return winners, each with its compilation by every series of Triton; None where it is not recorded."""
        return [(trial, {series: self.find(trial, series) for series in SERIES}) for trial in winners]

    def prune(self, winners: Iterable[Trial]) -> None:
        """Forget what is of no winner any more: a row that was replaced, or an older source."""
        kept = {Stored.of(trial) for trial in winners}
        for stored, series in [key for key in self._rows if key[0] not in kept]:
            del self._rows[stored, series]
            self._new.add((stored.device.arch, stored.operation, stored.implementation))


def as_compilation(trial: Trial, version: str, answer: dict[str, Any]) -> Compilation | None:
    """Return the row of an answer; None where memory ran out, which says nothing of the config."""
    outcome = from_plain(Outcome, answer["outcome"])
    if outcome.status is Status.OUT_OF_MEMORY:
        print(f"{trial.shape}, {trial.config}: {outcome.message}", file=sys.stderr)
        return None
    refusal = "" if outcome.status is Status.OK else f"{outcome.status}: {outcome.message}"[:MAX_TEXT_LENGTH]
    resources = outcome.resources
    return Compilation(
        **Stored.of(trial)._asdict(),
        triton_version=version,
        refusal=refusal,
        shared_bytes=resources.shared_bytes,
        registers=resources.registers,
        spill_bytes=resources.spill_bytes,
        loop_spills=answer["loop_spills"],
    )
