"""The portfolio's choice: which of an architecture's few good configs a shape gets, and how near the best that is."""

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from autotune.device import Device
from autotune.dispatch.evidence import UNKNOWN, Expectation, left_out_regret
from autotune.implementation import Implementation
from autotune.likeness import Likeness, likeness
from autotune.shape import Shape
from autotune.space import Config

if TYPE_CHECKING:
    from autotune.table import Assignment

# A winner's row says which config won, not what the portfolio's others would have taken: it decides for a new shape
# only where what was timed more fully is a good deal farther away.
WINNER_ALONE_STEP: Final = 2.0
NEARLY_ZERO: Final = 1e-3  # the distance of a recorded shape from itself, whose vote outweighs all others


class PortfolioChoice(NamedTuple):
    """A config of a portfolio, or the space's default where that is its member (``is_default``).

    ``nearest`` is the nearest recorded shape that was assigned it. ``expectation`` is of the left-out shapes like this
    one, and of nothing where the choice is not the first. ``expected_time`` is over the best of all implementations,
    from shapes like this one at which another one met this one in a race; None where there is none.
    """

    config: Config
    is_default: bool
    nearest: "Assignment"
    expectation: Expectation
    expected_time: float | None = None


def choose(
    rows: "Iterable[Assignment]",
    implementation: Implementation[Any],
    shape: Shape,
    device: Device,
) -> PortfolioChoice | None:
    """Choose from a portfolio the member that the recorded shapes like this one were assigned; None if none is valid.

    Args:
        rows: the assignments of the implementation on the device's architecture.
    """
    return next(choose_all(rows, implementation, shape, device), None)


def choose_all(
    rows: "Iterable[Assignment]",
    implementation: Implementation[Any],
    shape: Shape,
    device: Device,
) -> Iterator[PortfolioChoice]:
    """Yield the members that recorded shapes like this one were assigned and that are valid here, the likeliest first.

    Each recorded shape of the class votes for its member by the inverse square of its distance (``likeness``), so that
    a near one outweighs many far ones and two as near do not hang on their order (distance-weighted nearest neighbours;
    Dudani, IEEE Trans. Systems, Man, and Cybernetics 6, 1976). Votes for what cannot run here do not count.
    """
    space, here = implementation.space, likeness(shape, device)
    kin = [
        _Voter(row, there, math.hypot(here.distance(there), 0.0 if row.is_broad else WINNER_ALONE_STEP))
        for row in rows
        if (there := likeness(row.shape, row.device)).kind == here.kind
    ]
    kin.sort(key=lambda voter: (voter.distance, -voter.row.timed, repr((voter.row.shape, voter.row.device))))
    votes: dict[Config | None, float] = {}
    for voter in kin:
        votes[voter.member] = votes.get(voter.member, 0.0) + voter.weight
    expected_time = _expected_time(kin)
    for place, member in enumerate(sorted(votes, key=lambda member: -votes[member])):
        config = space.default(shape, device) if member is None else member
        if space.why_invalid(config, shape, device) is None:
            nearest = next(voter.row for voter in kin if voter.member == member)
            rows = [voter.row for voter in kin]
            recorded = left_out_regret(rows, nearest, shape, device) if place == 0 else UNKNOWN
            expected = Expectation(recorded, implementation, nearest.source_hash, nearest.triton_version)
            yield PortfolioChoice(config, member is None, nearest, expected, expected_time)


class _Voter(NamedTuple):
    """A recorded shape as it stands to a new one."""

    row: "Assignment"
    likeness: Likeness
    distance: float

    @property
    def member(self) -> Config | None:
        return None if self.row.is_default else self.row.config

    @property
    def weight(self) -> float:
        return 1.0 / max(self.distance, NEARLY_ZERO) ** 2


def _expected_time(kin: "Iterable[_Voter]") -> float | None:
    """Return the weighted mean of what was chosen at left-out shapes took over the best of several implementations."""
    known = [
        (voter.weight, time if (time := voter.row.left_out_time) is not None else 1.0 + voter.row.behind)
        for voter in kin
        if voter.row.behind is not None
    ]
    total = sum(weight for weight, _ in known)
    return sum(weight * time for weight, time in known) / total if known else None
