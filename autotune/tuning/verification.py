"""``verify(shapes)``: the regret of what the tables serve, measured in a race with the best of a short search."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from autotune.executor.head_start import HeadStart
from autotune.executor.select import Settings
from autotune.search import DEFAULT_SAMPLER, Observer, Sampler
from autotune.shape import Shape
from autotune.table import ServedRegret, Store, regret_of
from autotune.trial import PriorPick, Stage, Trial
from autotune.tuning.tuned import TunedShape
from autotune.tuning.tuner import tune
from autotune.workload import Workload

BUDGET: Final = 30.0  # seconds of a search


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedShape:
    """A shape that was verified: the verdict of its race on what was served for it.

    Attributes:
        tuned: its search, whose winner is served from now on.
        measured: the measurement; None where there is none, or what was served has no time.
        failure: the reason why there is none; empty otherwise.
    """

    tuned: TunedShape
    measured: ServedRegret | None = None
    failure: str = ""

    @property
    def regret(self) -> float | None:
        """Its time over the least of the race, less one: 0.02 for 2 %; None where that is not known."""
        return None if self.measured is None else self.measured.regret

    def __str__(self) -> str:
        title = f"{self.tuned.operation}: {self.tuned.asked}"
        if self.measured is None or self.regret is None:
            return f"{title}\n  failed: {self.failure}"
        found = self.measured
        expected = "nothing was expected" if found.expected is None else f"expected {100 * found.expected:.1f} %"
        return f"{title}\n  served ({found.rung}) {100 * self.regret:.1f} % slower than the best; {expected}"


@dataclass(frozen=True, slots=True)
class Verification:
    """The results of ``verify``, one for each shape that was asked for, in that order.

    ``interrupted``: Ctrl-C ended it early; what was measured until then is kept.
    """

    results: tuple[VerifiedShape, ...]
    interrupted: bool = False

    @property
    def measured(self) -> tuple[ServedRegret, ...]:
        """The measurements, one for each shape that was searched."""
        found = {(each.tuned.operation, each.tuned.shape): each.measured for each in self.results}
        return tuple(each for each in found.values() if each is not None)

    @property
    def failures(self) -> tuple[VerifiedShape, ...]:
        """The results with a message in place of a regret."""
        return tuple(each for each in self.results if each.failure)

    def __str__(self) -> str:
        ending = ["interrupted: what was measured is kept, the same call continues"] if self.interrupted else []
        return "\n".join([*map(str, self.results), *ending]) or "nothing to verify"


def verify(
    shapes: Shape | Iterable[Shape | Workload | tuple[str, Shape]],
    *,
    operation: str | None = None,
    implementations: str | Sequence[str] = (),
    budget: float | None = BUDGET,
    trials: int | None = 120,
    sampler: Sampler = DEFAULT_SAMPLER,
    seed: int = 0,
    device: str | None = None,
    settings: Settings | None = None,
    store: Store | None = None,
    observer: Observer | None = None,
    begun: HeadStart | None = None,
) -> Verification:
    """Measure how much longer what is served takes than the best that a short search of each shape finds.

    All shapes are looked up before the first is searched, as ``get_kernel`` would with the tables as they are. Then
    each is tuned as ``tune`` does, with what is served in its race: the winner is served from then on, and the rows of
    the race keep what was served before, its time and what was expected of it. A shape whose race is stored already is
    answered by it, so that a second call continues. Without a GPU a recorded sweep of the very shape answers; a shape
    that is not recorded is a failure, which says so.

    The regret is the time of what was served over the least of the race, less one: what the search did not try is not
    in it.

    Args:
        budget: seconds for each shape, the race included. All other arguments are those of ``tune``.

    Raises:
        AutotuneError: as ``tune`` does.

    Example:
        >>> shape = AttentionShape(batch=3, heads=28, kv_heads=4, seq_q=1537, head_dim=128, causal=True)
        >>> print(verify(shape, budget=15))
    """
    found = tune(
        shapes,
        operation=operation,
        implementations=implementations,
        budget=budget,
        trials=trials,
        sampler=sampler,
        seed=seed,
        device=device,
        settings=settings,
        store=store,
        observer=observer,
        race_served=True,
        begun=begun,
    )
    return Verification(tuple(map(_verified, found.results)), found.interrupted)


def nearest_rank(values: Iterable[float], share: float) -> float:
    """Return the least value that a share of all values does not exceed; nan of none.

    Example:
        >>> nearest_rank([4.0, 1.0, 3.0, 2.0], 0.5)
        2.0
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def _verified(tuned: TunedShape) -> VerifiedShape:
    if tuned.search is None or tuned.winner is None:
        return VerifiedShape(tuned=tuned, failure=tuned.failure)
    race = [row for row in tuned.search.recorded if row.stage is Stage.RACE]
    if any(row.outcome.conditions.contended for row in race):
        return VerifiedShape(tuned=tuned, failure="another process used the GPU during its race; run it again")
    if tuned.served is not None and all(row.served_rung is None for row in race):  # an earlier search's
        race = _naming(tuned.served, race)
    measured = regret_of(race)
    if measured is None or measured.regret is None:
        return VerifiedShape(tuned=tuned, measured=measured, failure=_why_untimed(tuned))
    return VerifiedShape(tuned=tuned, measured=measured)


def _naming(served: PriorPick, race: Iterable[Trial]) -> list[Trial]:
    """Return rows that say what was served, of a race that does not."""
    rows = list(race)
    timing = next((row.timing for row in rows if row.candidate == served.candidate), None)
    return [
        replace(
            row,
            served_timing=timing,
            served_rung=served.rung,
            is_served=row.candidate == served.candidate,
            expected_regret=served.expected_regret,
            evidence=served.evidence,
        )
        for row in rows
    ]


def _why_untimed(tuned: TunedShape) -> str:
    """Return why what was served has no time in the race."""
    assert tuned.search is not None
    candidate = None if tuned.served is None else tuned.served.candidate
    found = next((row for row in tuned.search.recorded if row.candidate == candidate and row.timing is None), None)
    if found is None:
        return f"what was served ({candidate}) was not raced"
    return f"what was served ({candidate}) failed: {found.status} {found.outcome.message}".rstrip()
