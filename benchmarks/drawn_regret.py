"""Drawn shapes, served untuned against a local search: the part of ``benchmarks.served_regret`` that measures.

The drawn shapes are those of ``autotune.tuning.draw_shapes`` for an H100, on any GPU. What is served is what
``get_kernel`` picks with nothing but the tables that ship; with ``only_other_device`` those of this model of device
count for nothing, and of the portfolio of its architecture only what other models recorded. (Which configs are members
was chosen with all recordings.) Of each shape a search begins as that of ``autotune search`` does, with what is served
besides, and one race decides between that and its finalists. A store keeps each search and its race: a shape that is
decided there is not measured again, and of one that was searched but did not race what is served now, only the race is
repeated.
"""

import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from autotune.device import Device
from autotune.dispatch import Provenance, alternatives_for, default_config, pick_for_tuning
from autotune.errors import SearchError, UsageError
from autotune.executor import Executor
from autotune.implementation import Implementation
from autotune.operation import Operation
from autotune.registry import get_implementation, our_implementations
from autotune.search import Limits, search
from autotune.search.rotation import reached_device
from autotune.shape import Shape
from autotune.table import (
    AS_EXPECTED,
    AS_EXPECTED_SHARE,
    Store,
    as_expected,
    races_of,
    shipped_portfolios,
    undisturbed_times,
)
from autotune.trial import Candidate, Policy, PriorPick, Stage, Status, Trial
from autotune.tuning import draw_shapes, is_measurable, nearest_rank
from autotune.tuning.beginnings import find_heuristics, find_neighbours
from benchmarks import expected_regret

MEMORY_MIB: Final = 81559  # of an H100 80GB HBM3: all GPUs are asked for the same shapes
MEDIAN_LIMIT, TAIL_LIMIT = 0.02, 0.08
OTHER_MEDIAN_LIMIT: Final = 0.04
TAIL: Final = 0.95


@dataclass(frozen=True, slots=True)
class UntunedPick:
    """A drawn shape, what is served for it untuned, and why."""

    shape: Shape
    candidate: Candidate
    provenance: Provenance


@dataclass(frozen=True, slots=True)
class Decided:
    """A pick, and its time over the least of its race, less one; infinite where it failed. ``best`` won."""

    pick: UntunedPick
    regret: float
    best: Candidate | None = None

    @property
    def rung(self) -> str:
        return self.pick.provenance.rung

    @property
    def expected(self) -> float | None:
        return self.pick.provenance.expected_regret

    def __str__(self) -> str:
        said = "       -" if self.expected is None else f"{100 * self.expected:6.1f} %"
        changed = "" if self.best in (None, self.pick.candidate) else f"; best {self.best}"
        return f"{100 * self.regret:6.1f} % {said}  {self.pick.shape}: {self.rung}, {self.pick.candidate}{changed}"


def draw(operation: Operation[Any], drawn: int | None, points: int | None, seed: int) -> list[Shape]:
    """Draw shapes as users have them; or, of ``points``, that many of the named models' that an H100 can tune."""
    if points is None:
        return draw_shapes(operation, drawn or 0, seed, memory_mib=MEMORY_MIB)
    every = expected_regret.points().get(operation.name, [])
    known = [each for each in dict.fromkeys(every) if is_measurable(operation, each, memory_mib=MEMORY_MIB)]
    if not 1 <= points <= len(known):
        can = f"{operation.name} has {len(known)} that an H100 can tune"
        raise UsageError(f"points={points} is not allowed; expected 1 or more, and {can}")
    return random.Random(seed).sample(known, points)


def pick(operation: Operation[Any], shape: Shape, device: Device, *, only_other_device: bool) -> UntunedPick:
    """Return what is served for a shape by the tables that ship, where the user's are empty."""
    ours = _supporting(operation, shape, device)
    if not only_other_device:
        kernel = pick_for_tuning(shape, device, operation.name, tuple(each.name for each in ours))
        return UntunedPick(shape, kernel.candidate, kernel.provenance)
    portfolio = [
        row
        for each in ours
        for row in shipped_portfolios(operation.name, implementation=each.name)
        if row.device.arch == device.arch and row.device.model != device.model
    ]
    found = alternatives_for(shape, device, [], ours, portfolio=portfolio)[0]
    return UntunedPick(shape, found.candidate, found.provenance)


def _supporting(operation: Operation[Any], shape: Shape, device: Device) -> list[Implementation[Any]]:
    return [each for each in our_implementations(operation.name) if each.supports(shape, device) is None]


def decide(rows: Iterable[Trial], pick: UntunedPick) -> Decided | None:
    """Return what stored rows of one device and source say of a pick; None where they do not decide.

    The newest undisturbed race that it was in decides; a verdict that it failed by is as final.
    """
    own = [row for row in rows if row.shape == pick.shape]
    for race in reversed(races_of(own)):
        times = undisturbed_times(race)
        if pick.candidate in times:
            best = min(times, key=lambda candidate: times[candidate])
            return Decided(pick, times[pick.candidate] / times[best] - 1.0, best)
    undecided = (Status.OK, Status.SLOW, Status.OUT_OF_MEMORY, Status.WORKER_DIED)
    has_failed = any(row.candidate == pick.candidate and row.status not in undecided for row in own)
    return Decided(pick, math.inf) if has_failed else None


def measure(
    operation: Operation[Any],
    pick: UntunedPick,
    executor: Executor,
    store: Store,
    *,
    seconds: float,
    known: Iterable[Trial] = (),
) -> Sequence[Trial]:
    """Search a shape for as many seconds and race the finalists with the pick; return the rows of both.

    A shape that the ``known`` rows have a race of is only raced.
    """
    shape, device = pick.shape, executor.device
    ours = _supporting(operation, shape, device)
    known = [row for row in known if row.shape == shape]
    limits = Limits(seconds=seconds, converge=True)
    if any(row.stage is Stage.RACE for row in known):  # the pick comes first of what is not known
        reached = sum(reached_device(row.outcome) for row in known if row.stage is Stage.SCREEN)
        limits = Limits(trials=reached + 1, seconds=seconds)
    why = pick.provenance
    result = search(
        operation,
        shape,
        executor,
        store,
        limits=limits,
        implementations=ours,
        served=PriorPick(pick.candidate, why.rung, why.expected_regret, why.evidence),
        neighbours={each.name: find_neighbours(each, shape, device, measures=True) for each in ours},
        defaults={each.name: default_config(each, shape, device) for each in ours},
        heuristics=find_heuristics(ours, shape, device),
    )
    if result.interrupted:
        raise KeyboardInterrupt  # which a search takes for its own end
    return result.recorded


def stored_rows(operation: Operation[Any], executor: Executor, store: Store) -> list[Trial]:
    """Return the rows of a store that were measured as this executor would measure them."""
    return [
        row
        for row in store.trials(operation.name, executor.device)
        if (row.executor, row.policy) == (executor.name, Policy())
        and get_implementation(operation.name, row.implementation).is_current(
            row, executor.toolchain_of(row.implementation)
        )
    ]


def measure_all(
    operation: Operation[Any],
    picks: Sequence[UntunedPick],
    executor: Executor,
    store: Store,
    *,
    seconds: float,
    deadline: float = math.inf,
    say: Callable[[str], object] = print,
) -> list[Decided]:
    """Decide each pick that the store does not, until the deadline; return and say what is decided, in their order.

    Args:
        deadline: ``time.monotonic()``; no search begins that would end later.
    """
    found, known = [], stored_rows(operation, executor, store)
    for each in picks:
        decided = decide(known, each)
        if decided is None and time.monotonic() + seconds <= deadline:
            try:
                decided = decide(measure(operation, each, executor, store, seconds=seconds, known=known), each)
            except SearchError as error:
                say(f"failed: {each.shape}: {error}")
        if decided is not None:
            found.append(decided)
            say(str(decided))
    return found


def summarize(found: Sequence[Decided], wanted: int, *, only_other_device: bool) -> tuple[list[str], bool]:
    """Return the lines on all that was decided, and True if all was and is within the limits."""
    median, tail = (nearest_rank([each.regret for each in found], share) for share in (0.5, TAIL))
    limits = [(median, OTHER_MEDIAN_LIMIT)] if only_other_device else [(median, MEDIAN_LIMIT), (tail, TAIL_LIMIT)]
    text = f"wanted at most {' and '.join(f'{limit:.0%}' for _, limit in limits)}"
    lines = [_decided_line(found, wanted), *_regret_lines(found, text), _expected_line(found)]
    return lines, len(found) == wanted and all(value <= limit for value, limit in limits)


def summarize_expected(found: Sequence[Decided], wanted: int, *, only_other_device: bool) -> tuple[list[str], bool]:
    """Return the lines as ``summarize`` does, and True if all was decided and mostly is as was expected."""
    near, known = as_expected(found)
    lines = [_decided_line(found, wanted), *_regret_lines(found, ""), _expected_line(found)]
    return lines, len(found) == wanted and known > 0 and near >= AS_EXPECTED_SHARE * known


def _decided_line(found: Sequence[Decided], wanted: int) -> str:
    left = "; the same command goes on with the others" if len(found) < wanted else ""
    return f"decided  {len(found)} of {wanted} shapes{left}"


def _regret_lines(found: Sequence[Decided], limits: str) -> list[str]:
    if not found:
        return []
    regrets = [each.regret for each in found]
    median, tail = (nearest_rank(regrets, share) for share in (0.5, TAIL))
    text = f"regret   median {median:.1%}, 95th percentile {tail:.1%}, worst {max(regrets):.1%}"
    return [f"{text}; {limits}" if limits else text]


def _expected_line(found: Sequence[Decided]) -> str:
    near, known = as_expected(found)
    others = sum(each.rung != "exact" for each in found)
    points = f"{100 * AS_EXPECTED:.0f} points"
    return f"expected known for {known} of {others} without a row of their own, within {points} for {near}"
