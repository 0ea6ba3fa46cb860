"""The times to expect of implementations at a shape, from the recorded shapes at which they met in a race."""

from collections.abc import Sequence
from operator import ne
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from autotune.likeness import Likeness

if TYPE_CHECKING:
    from autotune.table import Assignment

# Of the slopes, over standardized sizes: sizes and features are about ten, and some classes have as few shapes. By what
# is said below dense attention loses 0.60 to 0.66 % with 0.3 to 10, and paged prefill least with 3.0 or more.
PENALTY: Final = 3.0
# A shape has the trend's error at a recorded one by 1 / (1 + this times the squared distance), and all of it at none.
FADING: Final = 4.0


class ExpectedTimes(NamedTuple):
    """The times to expect of an implementation, over that of the best of all: of its choices, and of its winners.

    ``alike`` are both by the shapes of the same features alone, as votes weigh them; None where there is none.
    """

    chosen: float
    best: float
    alike: tuple[float, float] | None = None


def expected_times(here: Likeness, met: "Sequence[tuple[Assignment, float]]") -> ExpectedTimes:
    """Expect the times of an implementation from the recorded shapes at which it met another, and their votes.

    The logarithm of a time is a linear trend over the sizes of a shape and the features in which it differs, by ridge
    regression (Hoerl and Kennard, Technometrics 12, 1970), and the trend's errors at the recorded shapes, weighted by
    their votes (regression kriging with inverse distances; Hengl, Heuvelink and Rossiter, Computers & Geosciences 33,
    2007). A trend is needed since which implementation is faster turns round with sizes that few shapes are recorded
    of. The one so chosen is 0.6, 1.6 and 0.8 % behind the best of all in the mean of 307, 31 and 32 shapes of dense
    attention, packed sequences and paged prefill that are left out (NVIDIA H200 and H100, 2026-11-29; ``python -m
    benchmarks.portfolios --list``). No size counts as beyond those recorded.

    Args:
        met: at least one shape of the same kind, each with its vote, the inverse square of its distance.
    """
    rows = [row for row, _ in met]
    places = np.array([_place(row.likeness, here) for row in rows], dtype=float)
    scale = places.std(axis=0)
    scale[scale == 0.0] = 1.0
    center = places.mean(axis=0)
    known = (places - center) / scale
    asked = (np.clip(_place(here, here), places.min(axis=0), places.max(axis=0)) - center) / scale
    behind = np.array([1.0 + (row.behind or 0.0) for row in rows])
    lost = np.array([row.own_left_out_time or 1.0 for row in rows])
    times = np.stack([behind * lost, behind], axis=1)
    logarithms = np.log(times)
    mean = logarithms.mean(axis=0)
    gram = known.T @ known + PENALTY * np.eye(known.shape[1])
    slopes = np.linalg.solve(gram, known.T @ (logarithms - mean))
    votes = np.array([vote for _, vote in met])
    errors = votes @ (logarithms - mean - known @ slopes) / (votes.sum() + FADING)
    chosen, best = np.exp(mean + asked @ slopes + errors).tolist()
    alike = np.array([row.likeness.features == here.features for row in rows])
    if not alike.any():
        return ExpectedTimes(chosen, best)
    of_alike = (votes * alike) @ times / (votes @ alike)
    return ExpectedTimes(chosen, best, (float(of_alike[0]), float(of_alike[1])))


def _place(there: Likeness, here: Likeness) -> tuple[float, ...]:
    """Return the sizes of a shape, and 1 for each feature, and for the type, in which it differs from the asked one."""
    return *there.sizes, *map(ne, there.features, here.features), there.dtype != here.dtype
