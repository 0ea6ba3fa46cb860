"""The benchmark of two GPUs: its grid, the judge of a winner that was not in the other's race, and what is missed."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from autotune.device import NVIDIA_H200
from autotune.executor import Race
from autotune.executor.gpu import GpuExecutor
from autotune.executor.several_gpus import GpuUse
from autotune.registry import get_implementation
from autotune.trial import Candidate, Outcome, Status
from autotune.tuning import TunedShape
from autotune.tuning.workloads import find_implementations
from benchmarks.two_gpus import Tuned, grid, is_inside, misses, summarize, ties_in_race
from tests import sample

FAST, NEAR, SLOW = (sample.candidate(sample.config(BLOCK_Q=q)) for q in (64, 128, 256))
UNTIMED = sample.candidate(sample.config(BLOCK_Q=32))
MEDIANS = {FAST: 100.0, NEAR: 100.4, SLOW: 120.0}


class FakeExecutor:
    """Races by what each candidate takes."""

    def race(self, candidates: Sequence[Candidate], *, seconds: float, baselines: str) -> Race:
        timed = [(each, MEDIANS.get(each)) for each in candidates]
        return Race(
            tuple(
                Outcome(candidate=each, status=Status.WRONG_RESULT, message="off")
                if median is None
                else Outcome(candidate=each, status=Status.OK, timing=sample.timing(median))
                for each, median in timed
            )
        )


def test_the_grid_is_of_eight_shapes_of_each_operation_that_one_of_ours_supports() -> None:
    names = [operation.name for operation, _ in grid()]
    assert (names.count("flash_attention"), names.count("paged_decode"), len(set(grid()))) == (8, 8, 16)
    for operation, shape in grid():
        assert find_implementations(operation, shape, NVIDIA_H200)


@pytest.mark.parametrize(
    ("ties", "rival", "expected"),
    [
        ([FAST], NEAR, True),
        ([FAST, NEAR], SLOW, False),
        ([SLOW], FAST, True),
        ([FAST], UNTIMED, False),
        ([UNTIMED], SLOW, True),
    ],
)
def test_a_rival_is_judged_by_the_fastest_of_the_ties(ties: list[Candidate], rival: Candidate, expected: bool) -> None:
    assert ties_in_race(cast(GpuExecutor, FakeExecutor()), ties, rival) is expected


class Found:
    """A search's winner and ties, which is all that is asked of it here."""

    def __init__(self, *candidates: Candidate) -> None:
        rows = [sample.trial(chosen=each.config) for each in candidates]
        self.winner, self.ties, self.measured, self.seconds = rows[0], tuple(rows), 32, 15.0


def tuned(*candidates: Candidate) -> TunedShape:
    search: Any = Found(*candidates) if candidates else None
    shape = sample.shape()
    return TunedShape(operation="flash_attention", asked=shape, shape=shape, search=search)


def test_a_winner_among_the_ties_needs_no_race() -> None:
    executor = cast(GpuExecutor, None)
    assert is_inside(tuned(FAST, NEAR), tuned(NEAR), executor)
    assert not is_inside(tuned(), tuned(NEAR), executor)
    assert not is_inside(tuned(FAST), tuned(), executor)


def test_what_is_missed_is_told() -> None:
    assert get_implementation("flash_attention", "triton").name == FAST.implementation
    use = GpuUse(0, "NVIDIA H200", 0.8)
    uses = (use, replace(use, index=1, busy=0.7))
    one, two = Tuned(300.0, (use,), (tuned(FAST, NEAR),) * 16), Tuned(155.0, uses, (tuned(NEAR),) * 16)
    found = summarize(one, two, [True] * 16)
    assert (round(found["speed_up"], 2), found["inside"], misses(found)) == (1.94, 16, [])
    assert found["studies"][0]["two"]["winner"] == str(NEAR)
    slow = summarize(one, replace(two, seconds=200.0, gpus=(use, replace(use, index=1, busy=0.5))), [False] * 16)
    assert misses(slow) == [
        "the speed-up is 1.50, not 1.85",
        "0 winners tie with those of one GPU, not 15",
        "GPU 1 is busy 50% of the time, not 60%",
    ]
