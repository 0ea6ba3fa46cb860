"""Messages between processes arrive as they left."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.device import NVIDIA_H200
from autotune.executor import BaselineResult, Race
from autotune.executor.messages import (
    Identified,
    Message,
    RunRace,
    Started,
    Unopened,
    UseDevice,
    WorkingOn,
    decode,
    encode,
    refer_to_problem,
)
from autotune.registry import implementation_names
from autotune.trial import Outcome, Toolchain
from tests.executor import faulty
from tests.table import sample

OUTCOMES = sample.outcomes(NVIDIA_H200)
BASELINES = st.builds(BaselineResult, sample.TEXTS, st.none() | sample.TIMINGS, sample.TEXTS)
RACES = st.builds(
    lambda outcomes, baselines: Race(tuple(outcomes), tuple(baselines)),
    st.lists(OUTCOMES, max_size=3),
    st.lists(BASELINES, max_size=3),
)


def arrive(message: Message) -> Message:
    """Encode, send as a line, decode."""
    text = json.dumps(encode(message))
    assert "\n" not in text
    return decode(json.loads(text))


@settings(max_examples=50, deadline=None)
@given(OUTCOMES)
def test_an_outcome_arrives_as_it_left(outcome: Outcome) -> None:
    arrived = arrive(outcome)
    assert arrived == outcome
    assert isinstance(arrived, Outcome)
    assert list(arrived.config) == list(outcome.config)
    assert type(arrived.status) is type(outcome.status)


@settings(max_examples=30, deadline=None)
@given(RACES)
def test_a_race_arrives_as_it_left(race: Race) -> None:
    assert arrive(race) == race


@pytest.mark.parametrize(
    "message",
    [
        Identified(NVIDIA_H200, Toolchain("1.0", triton="3.6.0")),
        Started(),
        UseDevice(NVIDIA_H200),
        *(WorkingOn(entrant) for entrant in (None, 0, "sdpa")),
        *(Unopened("no memory", number) for number in (None, 3)),
        *(RunRace((faulty.candidate(),), 1.5, baselines, ("x",)) for baselines in ("fastest", (), ("a", "b"))),
    ],
    ids=str,
)
def test_a_message_arrives_as_it_left(message: Message) -> None:
    assert arrive(message) == message


def test_a_problem_is_found_again_by_its_names() -> None:
    reference = refer_to_problem(faulty.OPERATION, faulty.SHAPE)
    assert list(reference.implementations) == implementation_names("faulty") == ["ours", "in_place", "unloadable"]
    assert reference.resolve() == (faulty.OPERATION, faulty.SHAPE)


def test_the_fastest_baseline_is_the_one_with_the_least_median() -> None:
    slow, fast = (BaselineResult(str(median), sample.timing(median)) for median in (200.0, 100.0))
    refused = BaselineResult("refused", message="no kernel")
    assert Race((), (slow, refused, fast)).fastest_baseline == fast
    assert Race((), (refused,)).fastest_baseline == Race(()).fastest_baseline == BaselineResult("")
