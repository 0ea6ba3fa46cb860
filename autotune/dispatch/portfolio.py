"""The portfolio's choice: which of an architecture's few good configs a shape gets, and how near the best that is."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from autotune.device import Device
from autotune.implementation import Implementation
from autotune.likeness import Likeness, likeness
from autotune.shape import Shape
from autotune.space import Config

if TYPE_CHECKING:
    from autotune.table import Assignment

# Left-out shapes: with fewer of a class their mean says nothing, and the nearest of many say more than all.
MIN_EVIDENCE, MAX_EVIDENCE = 3, 8
# A winner's row says which config won, not what the portfolio's others would have taken: it decides for a new shape
# only where what was timed more fully is a good deal farther away.
WINNER_ALONE_STEP: Final = 2.0
NEARLY_ZERO: Final = 1e-3  # the distance of a recorded shape from itself, whose vote outweighs all others


class PortfolioChoice(NamedTuple):
    """A config of a portfolio, or the space's default where that is its member (``is_default``).

    ``nearest`` is the nearest recorded shape that was assigned it. ``expected_regret`` is None where nothing is known;
    ``evidence`` counts the left-out shapes that it is the mean of.
    """

    config: Config
    is_default: bool
    nearest: "Assignment"
    expected_regret: float | None
    evidence: int


def choose(
    rows: "Iterable[Assignment]",
    implementation: Implementation[Any],
    shape: Shape,
    device: Device,
    *,
    refuses: Callable[[Config], object] = lambda config: None,
) -> PortfolioChoice | None:
    """Choose from a portfolio the member that the recorded shapes like this one were assigned; None if none is valid.

    Each recorded shape of the class votes for its member by the inverse square of its distance (``likeness``), so that
    a near one outweighs many far ones and two as near do not hang on their order (distance-weighted nearest neighbours;
    Dudani, IEEE Trans. Systems, Man, and Cybernetics 6, 1976). Votes for what cannot run here do not count.

    Args:
        rows: the assignments of the implementation on the device's architecture.
        refuses: returns something true for a config that cannot run here for another reason than the space's.
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
        votes[voter.member] = votes.get(voter.member, 0.0) + 1.0 / max(voter.distance, NEARLY_ZERO) ** 2
    for member in sorted(votes, key=lambda member: -votes[member]):
        config = space.default(shape, device) if member is None else member
        if space.why_invalid(config, shape, device) is None and not refuses(config):
            nearest = next(voter.row for voter in kin if voter.member == member)
            return PortfolioChoice(config, member is None, nearest, *_left_out(here, kin))
    return None


class _Voter(NamedTuple):
    """A recorded shape as it stands to a new one."""

    row: "Assignment"
    likeness: Likeness
    distance: float

    @property
    def member(self) -> Config | None:
        return None if self.row.is_default else self.row.config


def _left_out(here: Likeness, kin: Sequence[_Voter]) -> tuple[float | None, int]:
    """Expect the mean regret of the nearest shapes that were left out, and count them; of kin, the nearest first."""
    measured = [voter for voter in kin if voter.row.left_out_regret is not None]
    if len(measured) < MIN_EVIDENCE or not here.is_among(voter.likeness for voter in measured):
        return None, 0
    regrets = [voter.row.left_out_regret or 0.0 for voter in measured[:MAX_EVIDENCE]]
    return sum(regrets) / len(regrets), len(regrets)


def transfer_regret(
    rows: "Sequence[Assignment]", shape: Shape, device: Device, distance: float
) -> tuple[float | None, int]:
    """Expect the regret of the winner of a shape so far away, and count the pairs of recordings that say so.

    Of each recorded shape the winner of the nearest other one of its family was timed there. The regret of these pairs
    is taken to grow in proportion to ``Shape.distance``: their summed regret over their summed distance, times this
    one. Without a pair it is not known.
    """
    kind = likeness(shape, device).kind
    pairs = [
        (row.transfer_distance, row.transfer_regret)
        for row in rows
        if row.transfer_distance is not None
        and row.transfer_regret is not None
        and likeness(row.shape, row.device).kind == kind
    ]
    if not pairs:
        return None, 0
    far, lost = (sum(values) for values in zip(*pairs, strict=True))
    return distance * lost / far, len(pairs)
