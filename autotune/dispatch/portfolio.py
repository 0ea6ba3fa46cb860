"""The portfolio's choice: which of an architecture's few good configs a shape gets, and how near the best that is."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from autotune.device import Device
from autotune.dispatch.evidence import UNKNOWN, Expectation, left_out_regret, served_rivals
from autotune.implementation import Implementation
from autotune.likeness import Likeness, likeness
from autotune.shape import Shape
from autotune.space import Config

if TYPE_CHECKING:
    from autotune.dispatch.expected_times import ExpectedTimes
    from autotune.table import Assignment

# A winner's row says which config won, not what the portfolio's others would have taken: it decides for a new shape
# only where what was timed more fully is a good deal farther away.
WINNER_ALONE_STEP: Final = 2.0
NEARLY_ZERO: Final = 1e-3  # the distance of a recorded shape from itself, whose vote outweighs all others


class PortfolioChoice(NamedTuple):
    """A config of a portfolio, or the space's default where that is its member (``is_default``).

    ``nearest`` is the nearest recorded shape that was assigned it. ``expectation`` is of the left-out shapes like this
    one, and of nothing where the choice is not the first. ``times`` are expected from shapes at which another
    implementation met this one in a race; None where there is none.
    """

    config: Config
    is_default: bool
    nearest: "Assignment"
    expectation: Expectation
    times: "ExpectedTimes | None" = None


def choose(
    rows: "Sequence[Assignment]",
    implementation: Implementation[Any],
    shape: Shape,
    device: Device,
    *,
    rivals: "Sequence[Assignment] | None" = None,
    is_first: bool = True,
    polls: "Polls | None" = None,
) -> PortfolioChoice | None:
    """Choose from a portfolio the member that the recorded shapes like this one were assigned; None if none is valid.

    Args:
        rows: the assignments of the implementation on the device's architecture.
        rivals: rows of other implementations that may be served too: what was behind the best of a race counts as
            lost; None without any.
        is_first: the choice is served before those of the others, so that where these are served, theirs counts.
        polls: those taken of these rows on this device already; a new one is added.
    """
    return next(choose_all(rows, implementation, shape, device, rivals=rivals, is_first=is_first, polls=polls), None)


def choose_all(
    rows: "Sequence[Assignment]",
    implementation: Implementation[Any],
    shape: Shape,
    device: Device,
    *,
    rivals: "Sequence[Assignment] | None" = None,
    is_first: bool = True,
    polls: "Polls | None" = None,
) -> Iterator[PortfolioChoice]:
    """Yield the members that recorded shapes like this one were assigned and that are valid here, the likeliest first.

    What a rule lost tells nothing of a default that is learned there, nor the other way round (``Space.is_learned``).
    Each recorded shape of the class votes for its member by the inverse square of its distance (``likeness``), so that
    a near one outweighs many far ones and two as near do not hang on their order (distance-weighted nearest neighbours;
    Dudani, IEEE Trans. Systems, Man, and Cybernetics 6, 1976). Votes for what cannot run here do not count.
    """
    space, here = implementation.space, likeness(shape, device)
    polls = {} if polls is None else polls
    if (poll := polls.get((implementation.name, here))) is None:
        poll = polls[implementation.name, here] = _Poll.take(rows, here)
    for place, (member, nearest) in enumerate(poll.members):
        config = space.default(shape, device) if member is None else member
        if space.why_invalid(config, shape, device) is None:
            recorded = UNKNOWN
            served: list[Assignment] = []
            if place == 0:
                is_learned = space.is_learned(shape, device)
                own, others = (
                    [
                        row
                        for row in some
                        if here.is_like(row.likeness)  # as those that count are: most are passed over so
                        and (not row.is_default or space.is_learned(row.shape, row.device) == is_learned)
                    ]
                    for some in (rows, rivals or ())
                )
                served = served_rivals(others, nearest, shape, device) if is_first else []
                measured = None if rivals is None else served
                recorded = left_out_regret(own, nearest, shape, device, rivals=measured, is_first=is_first)
            counted = (row for row in served if recorded[0] is not None and row.left_out_time is not None)
            sources = frozenset((row.operation, row.implementation, row.source_hash) for row in counted)
            expected = Expectation(recorded, implementation, nearest.source_hash, nearest.triton_version, sources)
            yield PortfolioChoice(config, member is None, nearest, expected, poll.times)


class _Poll(NamedTuple):
    """Answer of recorded shapes to a new one: members by votes (None is the default), each with its nearest voter."""

    members: "Sequence[tuple[Config | None, Assignment]]"
    times: "ExpectedTimes | None"

    @classmethod
    def take(cls, rows: "Iterable[Assignment]", here: Likeness) -> "_Poll":
        voters = _in_order([_Voter.of(row, here) for row in rows if row.likeness.kind == here.kind])
        votes: dict[Config | None, float] = {}
        nearest: dict[Config | None, Assignment] = {}
        for voter in voters:
            votes[voter.member] = votes.get(voter.member, 0.0) + voter.weight
            nearest.setdefault(voter.member, voter.row)
        ranked = sorted(votes, key=lambda member: -votes[member])
        return cls([(member, nearest[member]) for member in ranked], _expected_times(here, voters))


# By implementation and likeness, in which many shapes are one: numbers of tiles make no difference from some on.
Polls: TypeAlias = dict[tuple[str, Likeness], _Poll]


class _Voter(NamedTuple):
    """A recorded shape as it stands to a new one; ``nearness`` orders the nearest first, then the most fully timed."""

    row: "Assignment"
    likeness: Likeness
    member: Config | None
    weight: float
    nearness: tuple[float, int]

    @classmethod
    def of(cls, row: "Assignment", here: Likeness) -> "_Voter":
        there = row.likeness
        distance = here.distance(there)
        if not row.is_broad:
            distance = math.hypot(distance, WINNER_ALONE_STEP)
        weight = 1.0 / max(distance, NEARLY_ZERO) ** 2
        return cls(row, there, None if row.is_default else row.config, weight, (distance, -row.timed))


def _in_order(voters: "list[_Voter]") -> "list[_Voter]":
    """Return the nearest first, of those as near the most fully timed, in an order that is the same everywhere."""
    nearness = attrgetter("nearness")
    ordered: list[_Voter] = []
    for _, tied in itertools.groupby(sorted(voters, key=nearness), key=nearness):
        first, *others = tied
        ordered += sorted((first, *others), key=_name) if others else (first,)
    return ordered


def _name(voter: _Voter) -> str:
    return repr((voter.row.shape, voter.row.device))


def _expected_times(here: Likeness, voters: "Iterable[_Voter]") -> "ExpectedTimes | None":
    met = [(voter.row, voter.weight) for voter in voters if voter.row.behind is not None]
    if not met:
        return None
    from autotune.dispatch.expected_times import expected_times  # with numpy, which imports of the package do without

    return expected_times(here, met)
