"""A suite and its result as data: titled tables of typed values."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from autotune.comparison.entry import Comparison
from autotune.comparison.suites.machine import Machine
from autotune.trial import Policy, Timing, Toolchain

# ``time``: a Timing, or microseconds of one run. ``bytes``: an integer. ``ratio``, ``share`` (of 1), ``error`` and
# ``rate`` (a second), ``intensity`` (FLOPs a byte): numbers. None of any kind: not measured.
Kind = Literal["text", "count", "time", "bytes", "ratio", "share", "error", "rate", "intensity"]
Value = str | int | float | Timing | None
Row = tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """A title, and what the values below it are."""

    title: str
    kind: Kind = "text"


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a suite, with a value for each column in every row.

    ``notes`` say what was left out or put in another's place, ``failures`` which result is wrong or absent that was to
    be shown; ``comparisons`` are the races that the rows were taken from, where it was systems that raced.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    comparisons: tuple[Comparison, ...] = ()


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """All tables of a suite, where it ran, and how its times were taken; ``policy`` is None where none were.

    ``threads`` are torch's on a processor; None on a GPU, and where nothing was measured or rows have their own.
    """

    suite: str
    description: str
    device: str
    toolchain: Toolchain
    policy: Policy | None
    tables: tuple[Table, ...]
    threads: int | None = None

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """Those of all tables."""
        return tuple(comparison for table in self.tables for comparison in table.comparisons)

    @property
    def failures(self) -> tuple[str, ...]:
        """Those of all tables."""
        return tuple(failure for table in self.tables for failure in table.failures)


def _its_own(machine: Machine) -> Policy | None:
    return machine.policy


@dataclass(frozen=True, slots=True)
class Suite:
    """A name, a line of description, and what yields its tables, one after the other as they are found.

    ``has_comparisons``: whether systems race over problems of an operation, so that the rows fit a table of those.
    ``policy_on``: how times are taken on a machine, None where none are. ``has_own_threads``: its rows say with how
    many of torch's threads they were taken.
    """

    name: str
    description: str
    measure: Callable[[Machine], Iterator[Table]]
    has_comparisons: bool = False
    policy_on: Callable[[Machine], Policy | None] = _its_own
    has_own_threads: bool = False

    def run(self, machine: Machine, on_table: Callable[[Table], object] = lambda table: None) -> SuiteResult:
        """Measure on this machine; ``on_table`` is given each table as soon as it is there.

        Raises:
            AutotuneError: what the suite needs is absent.

        Example:
            >>> find_suite("assignment").run(CpuMachine()).failures
            ()
        """
        tables = []
        for table in self.measure(machine):
            on_table(table)
            tables.append(table)
        return self.result(machine, tables)

    def result(self, machine: Machine, tables: Sequence[Table]) -> SuiteResult:
        """These tables as a result; fewer than all where the suite was ended before."""
        policy = self.policy_on(machine)
        threads = None if policy is None or self.has_own_threads else machine.threads
        return SuiteResult(self.name, self.description, machine.name, machine.toolchain, policy, tuple(tables), threads)
