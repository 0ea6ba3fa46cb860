"""When more trials are not worth their time."""

import pytest

from autotune.search.convergence import PATIENCE, Convergence
from autotune.trial import Candidate, Outcome, Status
from tests.search.synthetic import SMALL, default, timing


@pytest.mark.parametrize("step", [0.98, 0.992])  # alone, or two together, it is a gain of 1 %
def test_gains_put_convergence_off(step: float) -> None:
    convergence = Convergence((), valid=40)
    time_us = 1000.0
    for _ in range(61):
        assert not convergence.is_reached
        time_us *= step
        convergence.note(
            Outcome(candidate=Candidate("valley", default(SMALL)), status=Status.OK, timing=timing(time_us))
        )
    for _ in range(PATIENCE):
        assert not convergence.is_reached
        convergence.note(
            Outcome(candidate=Candidate("valley", default(SMALL)), status=Status.OK, timing=timing(0.999 * time_us))
        )
    assert convergence.is_reached
