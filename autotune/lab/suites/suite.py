"""A suite and its result as data, sheets with what failed and the races behind them; and the suites by name."""

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from autotune.errors import UnknownNameError
from autotune.lab.bench.comparison import Comparison
from autotune.lab.bench.machines import Machine
from autotune.sheets import Sheet
from autotune.trial import Policy, Toolchain


@dataclass(frozen=True, slots=True)
class SuiteSheet(Sheet):
    """One table of a suite; its notes say what was left out or replaced.

    Attributes:
        failures: the results that are wrong, or absent though they were to be shown.
        comparisons: the races that the rows were taken from, where systems raced.
    """

    failures: tuple[str, ...] = ()
    comparisons: tuple[Comparison, ...] = ()


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """All sheets of a suite, where it ran, and how its times were taken.

    Attributes:
        policy: None where nothing was measured.
        threads: torch's on a processor; None on a GPU, and where nothing was measured or rows have their own.
    """

    suite: str
    description: str
    device: str
    toolchain: Toolchain
    policy: Policy | None
    sheets: tuple[SuiteSheet, ...]
    threads: int | None = None

    @property
    def failures(self) -> tuple[str, ...]:
        return tuple(failure for sheet in self.sheets for failure in sheet.failures)


def _its_own(machine: Machine) -> Policy | None:
    return machine.policy


@dataclass(frozen=True, slots=True)
class Suite:
    """A published comparison that is measured again.

    Attributes:
        measure: yields the sheets, one after the other as they are found.
        has_comparisons: True if systems race over shapes of an operation, so that the rows fit a table of comparisons.
        policy_on: returns how times are taken on a machine, None where none are.
        has_own_threads: True if the rows name the number of torch's threads that they were taken with.
    """

    name: str
    description: str
    measure: Callable[[Machine], Iterator[SuiteSheet]]
    has_comparisons: bool = False
    policy_on: Callable[[Machine], Policy | None] = _its_own
    has_own_threads: bool = False

    def result(self, machine: Machine, sheets: Sequence[SuiteSheet]) -> SuiteResult:
        """Collect the sheets that were measured on a machine; fewer than all if the suite ended early.

        Example:
            >>> suite, machine = find_suite("assignment"), CpuMachine()
            >>> suite.result(machine, list(suite.measure(machine))).failures
            ()
        """
        policy = self.policy_on(machine)
        threads = None if policy is None or self.has_own_threads else machine.threads
        return SuiteResult(self.name, self.description, machine.name, machine.toolchain, policy, tuple(sheets), threads)


SUITES: Final = ("exercise", "blocks", "assignment", "gaudi", "cudnn-paged", "axes")


def find_suite(name: str) -> Suite:
    """Import a suite, which loads torch; UnknownNameError for another name.

    Example:
        >>> find_suite("cudnn-paged").name
        'cudnn-paged'
    """
    if name not in SUITES:
        raise UnknownNameError(f"suite={name!r} is unknown; allowed: {', '.join(SUITES)}")
    found = importlib.import_module(f"autotune.lab.suites.{name.replace('-', '_')}").SUITE
    assert isinstance(found, Suite)
    return found
