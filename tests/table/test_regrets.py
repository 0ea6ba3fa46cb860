"""Served regret from the rows of races: what was served over the least of its own race, and nothing of other races."""

from dataclasses import replace
from typing import Any

import pytest

from autotune.shape import AttentionShape
from autotune.space import Config
from autotune.table import races_of, regret_of, served_regrets
from autotune.trial import Candidate, Conditions, Policy, Stage, Status, Timing, Trial
from tests.table import sample

SERVED, BEST, OTHER = (sample.config(block) for block in (16, 32, 64))
WHY: dict[str, Any] = {"served_rung": "nearest", "expected_regret": 0.04, "evidence": 5}


def race(number: int, *, served: float | None = 112.0, best: float = 100.0, **changes: Any) -> list[Trial]:
    """Rows of one race: what was served, the best, and one between that is tied with it."""
    timing = None if served is None else sample.timing(served)
    shared: dict[str, Any] = {"race_id": f"race-{number}", "served_timing": timing, **WHY, **changes}
    status = Status.OK if served is not None else Status.HANG
    return [
        sample.trial(3 * number, config=SERVED, timing=timing, status=status, **{"is_served": True, **shared}),
        sample.trial(3 * number + 1, config=BEST, timing=sample.timing(best), **shared),
        sample.trial(3 * number + 2, config=OTHER, timing=sample.timing(best + 0.5), **shared),
    ]


def test_the_regret_is_over_the_least_of_the_race() -> None:
    (found,) = served_regrets(race(1))
    assert found.regret == pytest.approx(0.12)
    assert (found.rung, found.expected, found.evidence) == ("nearest", 0.04, 5)
    assert (found.served, found.best_us) == (Candidate("triton", SERVED), 100.0)
    assert found.winner.config == BEST


def test_what_is_served_and_best_has_none() -> None:
    (found,) = served_regrets(race(1, served=99.0))
    assert (found.regret, found.best_us) == (0.0, 99.0)


def test_another_implementation_of_the_race_counts_and_other_races_do_not() -> None:
    rows = race(1)
    foreign = sample.trial(
        9,
        implementation="foreign",
        config=Config(TILE=1),
        timing=sample.timing(80.0),
        race_id="race-1",
        served_timing=rows[0].timing,
        **WHY,
    )
    (found,) = served_regrets([*rows, foreign])
    assert found.regret == pytest.approx(0.4)
    assert found.winner.implementation == "foreign"
    wider = AttentionShape(batch=2, heads=8, kv_heads=2, seq_q=2048, head_dim=64, causal=True)
    found_in_both = served_regrets([*race(2, best=56.0), *rows, *race(3, shape=wider, served=100.0)])
    assert [each.regret for each in found_in_both] == pytest.approx([0.12, 1.0, 0.0])


def test_races_that_do_not_say_or_were_disturbed_are_left_out() -> None:
    silent = race(1, served_rung=None)
    disturbed = race(2, conditions=Conditions(contended=True))
    nothing_right = [row for row in race(3, served=None) if row.status is not Status.OK]
    screened = [sample.trial(30, race_id="")]
    assert served_regrets([*silent, *disturbed, *nothing_right, *screened]) == []
    assert regret_of([]) is None


def test_what_failed_has_no_regret() -> None:
    (found,) = served_regrets(race(1, served=None))
    assert (found.regret, found.timing, found.served) == (None, None, Candidate("triton", SERVED))


def test_what_was_served_is_told_from_what_took_the_very_same_time() -> None:
    slow, best, other = race(1, served=112.0)
    twin = sample.trial(9, config=sample.config(128), timing=slow.timing, race_id="race-1", served_timing=slow.timing)
    twin = replace(twin, **WHY, is_served=False)
    (found,) = served_regrets([twin, best, other, slow])
    assert found.served == Candidate("triton", SERVED)
    assert found.regret == pytest.approx(0.12)


def test_rows_that_do_not_name_what_was_served_leave_it_open() -> None:
    (found,) = served_regrets(replace(row, is_served=None) for row in race(1))
    assert found.served is None
    assert found.regret == pytest.approx(0.12)


def test_races_are_those_of_one_name_problem_and_executor_the_oldest_first() -> None:
    newer, older = race(2), race(1)
    wider = AttentionShape(batch=2, heads=8, kv_heads=2, seq_q=2048, head_dim=64, causal=True)
    others = [*race(1, shape=wider), *race(1, executor="replay"), *race(1, policy=Policy("eager", "warm"))]
    screened = [sample.trial(30, race_id=""), sample.trial(31, race_id="race-1", stage=Stage.SCREEN)]
    found = races_of([*newer, *screened, *older, *others])
    assert found[0] == older
    assert found[-1] == newer
    assert [len(each) for each in found] == [3] * 5


def test_the_regret_is_read_back_from_a_lone_winner() -> None:
    winner = sample.trial(1, config=BEST, timing=Timing(50.0, 49.0, 51.0, 9), served_timing=sample.timing(55.0), **WHY)
    (found,) = served_regrets([winner])
    assert found.regret == pytest.approx(0.1)
