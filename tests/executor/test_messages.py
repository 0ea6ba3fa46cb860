"""What travels between processes arrives as it left."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.device import NVIDIA_H200
from autotune.executor import BaselineResult, Race
from autotune.executor.messages import (
    open_problem,
    outcome_from_json,
    outcome_to_json,
    problem_to_json,
    race_from_json,
    race_to_json,
)
from autotune.trial import Outcome
from tests.executor import faulty
from tests.table import sample

OUTCOMES = sample.outcomes(NVIDIA_H200)
BASELINES = st.builds(BaselineResult, sample.TEXTS, st.none() | sample.TIMINGS, sample.TEXTS)
RACES = st.builds(
    lambda outcomes, baselines: Race(tuple(outcomes), tuple(baselines)),
    st.lists(OUTCOMES, max_size=3),
    st.lists(BASELINES, max_size=3),
)


@settings(max_examples=50, deadline=None)
@given(OUTCOMES)
def test_an_outcome_arrives_as_it_left(outcome: Outcome) -> None:
    text = json.dumps(outcome_to_json(outcome))
    assert "\n" not in text
    arrived = outcome_from_json(json.loads(text))
    assert arrived == outcome
    assert list(arrived.config) == list(outcome.config)
    assert type(arrived.status) is type(outcome.status)


@settings(max_examples=30, deadline=None)
@given(RACES)
def test_a_race_arrives_as_it_left(race: Race) -> None:
    arrived = race_from_json(json.loads(json.dumps(race_to_json(race))))
    assert arrived == race
    assert arrived.fastest_baseline == race.fastest_baseline


def test_a_problem_is_found_again_by_its_names() -> None:
    data = json.loads(json.dumps(problem_to_json(faulty.OPERATION, faulty.SHAPE)))
    operation, kernel, shape = open_problem(data)
    assert (operation, shape) == (faulty.OPERATION, faulty.SHAPE)
    assert kernel is faulty.KERNEL  # type: ignore[comparison-overlap]


def test_the_fastest_baseline_is_the_one_with_the_least_median() -> None:
    slow, fast = (BaselineResult(str(median), sample.timing(median)) for median in (200.0, 100.0))
    refused = BaselineResult("refused", message="no kernel")
    assert Race((), (slow, refused, fast)).fastest_baseline == fast
    assert Race((), (refused,)).fastest_baseline == Race(()).fastest_baseline == BaselineResult("")
