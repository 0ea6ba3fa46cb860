"""A recording of the grid of model shapes on the GPU here, resumable, that stops in time: ``benchmarks.record grid``.

Each problem has a second or two an implementation (``one_problem``): the members of its class's portfolio, the
defaults, what people write by hand, the winners of like shapes and some neighbours are checked, screened and raced, all
implementations in one race, and a search goes on only where it gained more than 3 % at like shapes. Every verdict is in
the store before the next problem begins; all of them ship as the grid's tables, and the winners with the others.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from autotune.errors import AutotuneError, MissingDependencyError
from autotune.executor import Executor
from autotune.implementation import Implementation
from autotune.registry import get_implementation, get_operation, our_implementations
from autotune.shape import Shape
from autotune.table import Store, shipped_grid, shipped_sweeps, shipped_winners
from autotune.trial import Candidate, Trial
from benchmarks.merge import RESULTS, add_grid, add_winners
from benchmarks.model_grid.knowledge import Knowledge
from benchmarks.model_grid.one_problem import RACE_SECONDS, SEARCH_SECONDS, RecordedProblem, is_recorded, record_problem
from benchmarks.model_grid.problems import GridCell, device_seconds

LOOK_AHEAD: Final = 6  # problems whose binaries are compiled while another is measured
SHIP_SECONDS: Final = 8.0  # kept for writing the tables
SAFETY: Final = 1.5  # a problem begins if its expected seconds times this are left


@dataclass
class Part:
    """The problems of one implementation: what is known of them, before and by this recording."""

    title: str
    knowledge: Knowledge
    known: dict[Shape, list[Trial]] = field(default_factory=dict)

    @property
    def operation(self) -> str:
        return self.knowledge.implementation.operation


@dataclass
class GridRecording:
    """Records problems of any operations over one executor; ``deadline`` is as of ``time.monotonic()``.

    Of each problem the implementations of ours that support it are measured, or of those the ones of ``names``.
    """

    executor: Executor
    store: Store
    results: Path
    deadline: float = math.inf
    names: Sequence[str] = ()
    race_seconds: float = RACE_SECONDS
    search_seconds: float = SEARCH_SECONDS
    parts: dict[str, Part] = field(default_factory=dict)
    recorded: int = 0  # problems
    expected: float = 0.0  # seconds of what was recorded, by the grid's estimate, and as it was
    taken: float = 0.0

    def part(self, title: str) -> Part:
        """Return what is known of an implementation; read once."""
        if title not in self.parts:
            folders = list(dict.fromkeys([RESULTS, self.results]))
            self.parts[title] = _read_part(title, self.executor, self.store, folders)
        return self.parts[title]

    def implementations_for(self, each: GridCell) -> list[Implementation[Any]]:
        """Return the implementations that are measured for a problem; none where no named one supports it here."""
        return [
            implementation
            for implementation in our_implementations(each.operation)
            if (not self.names or implementation.name in self.names)
            and implementation.supports(each.shape, self.executor.device) is None
        ]

    def parts_for(self, each: GridCell) -> list[Part]:
        """Return what is known of each implementation that is measured for a problem."""
        return [self.part(implementation.title) for implementation in self.implementations_for(each)]

    def supported(self, cells: Sequence[GridCell]) -> list[GridCell]:
        """Return the problems that an implementation is measured for, and print how many the others are."""
        found = [each for each in cells if self.implementations_for(each)]
        if unsupported := len(cells) - len(found):
            names = ", ".join(self.names) or "our implementations"
            print(f"{unsupported} of {len(cells)} problems are left out: {names} cannot compute them here", flush=True)
        return found

    def missing(self, cells: Sequence[GridCell]) -> list[GridCell]:
        """Return the problems for which an implementation has no winner of this source and Triton on this device, in
        store or results, or whose default of today was not measured."""
        return [each for each in cells if not all(self._is_recorded(part, each.shape) for part in self.parts_for(each))]

    def untimed(self, cells: Sequence[GridCell]) -> list[GridCell]:
        """Return the missing problems that every implementation has a winner for, so that only defaults were not
        measured: few after a change of their rules."""
        return [
            each
            for each in self.missing(cells)
            if all(self._has_winner(part, each.shape) for part in self.parts_for(each))
        ]

    def _has_winner(self, part: Part, shape: Shape) -> bool:
        implementation, toolchain = part.knowledge.implementation, self.executor.toolchain
        return is_recorded(part.known.get(shape, []), implementation.source_hash, toolchain.triton)

    def _is_recorded(self, part: Part, shape: Shape) -> bool:
        default = part.knowledge.implementation.space.default(shape, self.executor.device)
        return self._has_winner(part, shape) and any(row.config == default for row in part.known.get(shape, []))

    def record(self, cells: Sequence[GridCell]) -> bool:
        """Record what is supported in order until the deadline, then ship; return True if none failed or is left."""
        cells, failures, done, wanted = self.supported(cells), 0, 0, 0
        try:
            for done, each in enumerate(cells):
                if time.monotonic() + self._seconds_of(each) > self.deadline:
                    print(f"time is up: {len(cells) - done} of {len(cells)} are left")
                    return False
                while wanted < min(len(cells), done + LOOK_AHEAD):
                    wanted += 1
                    self._expect(cells[wanted - 1])
                failures += not self._record_one(each, f"{done + 1}/{len(cells)}")
        finally:
            self.ship()
        return failures == 0

    def ship(self) -> None:
        """Add the rows to the grid's tables below ``results``, and the winners to theirs."""
        for part in self.parts.values():
            rows = [row for trials in part.known.values() for row in trials]
            if rows:
                add_grid(part.operation, rows, self.results)
                add_winners(part.operation, rows, self.results)

    def _record_one(self, each: GridCell, place: str) -> bool:
        started = time.monotonic()
        try:
            parts = self.parts_for(each)
            found = record_problem(
                get_operation(each.operation),
                each.shape,
                self.executor,
                self.store,
                [part.knowledge for part in parts],
                known=[row for part in parts for row in part.known.get(each.shape, [])],
                race_seconds=self.race_seconds,
                search_seconds=self.search_seconds,
            )
        except MissingDependencyError:  # the machine's fault, whatever the problem
            raise
        except AutotuneError as error:
            print(f"{place} {each}: failed, {error}", flush=True)
            return False
        for part in parts:
            name = part.knowledge.implementation.name
            part.known[each.shape] = [row for row in found.rows if row.implementation == name]
        self.recorded += 1
        self.expected += self._estimate(each)
        self.taken += time.monotonic() - started
        print(f"{place} {each}\n  {_summary(found)}", flush=True)
        return True

    def _seconds_of(self, each: GridCell) -> float:
        """Expect how long a problem takes, and shipping after it, by the estimate and what others took beyond theirs.

        They take longer since compiles keep the device waiting, as many of a short problem as of a long one.
        """
        beyond = max(0.0, self.taken - self.expected) / max(1, self.recorded)
        return SHIP_SECONDS + SAFETY * (self._estimate(each) + beyond)

    def _estimate(self, each: GridCell) -> float:
        """Estimate how long the device takes to measure all implementations of a problem."""
        return len(self.implementations_for(each)) * device_seconds(each.operation, each.shape)

    def _expect(self, each: GridCell) -> None:
        """Let what is measured first be compiled before: the binaries that screen it, and then those that race it."""
        candidates = [
            Candidate(part.knowledge.implementation.name, config)
            for part in self.parts_for(each)
            for config in part.knowledge.first(each.shape)
        ]
        for every_output in (False, True):
            self.executor.expect_problem(
                get_operation(each.operation), each.shape, candidates, every_output=every_output
            )


def _read_part(title: str, executor: Executor, store: Store, folders: Sequence[Path]) -> Part:
    """Read what folders of results have of an implementation, of any device of the architecture, and what the store has
    of this one, measured as this executor measures."""
    operation, name = title.split("/")
    implementation: Any = get_implementation(operation, name)
    part, known = Part(title, Knowledge(implementation, executor.device)), []
    for results in folders:
        sweeps = [sweep.trials() for sweep in shipped_sweeps(operation, implementation=name, results=results)]
        grid = shipped_grid(operation, implementation=name, results=results)
        part.knowledge.learn([*sweeps, shipped_winners(operation, implementation=name, results=results), grid])
        known += grid
    stored = store.trials(operation, executor.device, implementation=name)
    known += [row for row in stored if (row.executor, row.policy) == (executor.name, executor.policy)]
    part.knowledge.learn([known])
    for trial in dict.fromkeys(known):
        if trial.device == executor.device:
            part.known.setdefault(trial.shape, []).append(trial)
    return part


def _summary(found: RecordedProblem) -> str:
    winner, *others = found.ranked
    assert winner.timing is not None
    times = {"served": winner.default_timing, "by hand": winner.heuristic_timing}
    times |= {f"best of {other.implementation}": other.timing for other in others if other.race_id == winner.race_id}
    ratios = [f"{name} {timing.median_us / winner.timing.median_us:.3f}x" for name, timing in times.items() if timing]
    gains = [f"a search of {name} gained {100 * gain:.1f} %" for name, gain in found.gains.items()] or ["not searched"]
    return (
        f"{winner.timing.median_us:.1f} us, {', '.join(ratios)}; {found.measured} configs in {found.seconds:.1f} s, "
        f"{', '.join(gains)}: {winner.candidate}"
    )
