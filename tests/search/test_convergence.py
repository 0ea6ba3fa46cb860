"""When more trials are not worth their time."""

from autotune.search.convergence import PATIENCE, Convergence
from autotune.trial import Outcome, Status
from tests.search.synthetic import SMALL, default, timing


def test_gains_put_convergence_off() -> None:
    convergence = Convergence((), valid=40)
    time_us = 1000.0
    for _ in range(60):
        assert not convergence.is_reached
        time_us *= 0.98
        convergence.note(Outcome(config=default(SMALL), status=Status.OK, timing=timing(time_us)))
    for _ in range(PATIENCE):
        assert not convergence.is_reached
        convergence.note(Outcome(config=default(SMALL), status=Status.OK, timing=timing(0.995 * time_us)))
    assert convergence.is_reached
