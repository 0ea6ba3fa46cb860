"""Winners are a pure function of a set of trials, and each rule of the choice decides where it should."""

import dataclasses
import itertools
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune import registry
from autotune.device import NVIDIA_H200
from autotune.space import Config
from autotune.table import ranked, tie_set, winners
from autotune.trial import Conditions, Policy, Resources, Stage, Status, Timing, Trial
from tests.table import sample

MEDIANS = st.sampled_from([99.0, 99.5, 100.0, 100.4, 100.9, 101.5, 103.0])


@st.composite
def races(draw: st.DrawFn, name: str) -> list[Trial]:
    """One race: its trials share shape, device, policy and executor."""
    shared = {
        "race_id": name,
        "executor": draw(st.sampled_from(["gpu", "replay"])),
        "shape": draw(st.sampled_from([sample.SHAPE, dataclasses.replace(sample.SHAPE, batch=4)])),
        "device": draw(st.sampled_from([NVIDIA_H200, sample.CAPPED_H200])),
        "policy": draw(st.sampled_from([Policy(), Policy(mode="eager")])),
    }
    return draw(st.lists(_raced(shared), max_size=4))


CANDIDATES = st.one_of(
    sample.configs(NVIDIA_H200).map(lambda config: ("triton", config)),
    st.integers(1, 3).map(lambda tile: ("foreign", Config(TILE=tile))),
)


def _raced(shared: dict[str, Any]) -> st.SearchStrategy[Trial]:
    return st.builds(
        lambda second, candidate, **changes: sample.trial(
            started_at=sample.START + timedelta(seconds=second),
            implementation=candidate[0],
            config=candidate[1],
            **shared,
            **changes,
        ),
        second=st.integers(0, 3),
        candidate=CANDIDATES,
        timing=st.builds(sample.timing, MEDIANS, st.sampled_from([0.1, 1.0, 3.0])),
        is_default=st.booleans(),
        status=st.sampled_from([Status.OK, Status.OK, Status.OK, Status.WRONG_RESULT]),
        stage=st.sampled_from([Stage.RACE, Stage.RACE, Stage.SCREEN]),
        resources=st.builds(Resources, st.sampled_from([None, 0, 1024]), st.sampled_from([None, 32, 64])),
        conditions=st.builds(Conditions, contended=st.booleans()),
    )


@st.composite
def tables(draw: st.DrawFn) -> list[list[Trial]]:
    return [draw(races(f"race-{number}")) for number in range(draw(st.integers(1, 5)))]


def _flat(races: list[list[Trial]]) -> list[Trial]:
    return [trial for race in races for trial in race]


@settings(max_examples=50, deadline=None)
@given(tables(), st.randoms(use_true_random=False))
def test_order_and_repetition_do_not_matter(races: list[list[Trial]], generator: Any) -> None:
    trials = _flat(races)
    shuffled = generator.sample(trials, len(trials))
    assert winners(shuffled) == winners(trials) == winners(trials + shuffled)


@settings(max_examples=50, deadline=None)
@given(tables(), st.integers(0, 5))
def test_merging_winners_is_the_winner_of_the_merge(races: list[list[Trial]], cut: int) -> None:
    whole = winners(_flat(races))
    assert winners(whole) == whole
    assert winners(winners(_flat(races[:cut])) + winners(_flat(races[cut:]))) == whole


@settings(max_examples=50, deadline=None)
@given(tables())
def test_there_is_one_winner_for_each_raced_problem_and_it_is_a_row_of_the_table(races: list[list[Trial]]) -> None:
    trials = _flat(races)
    found = winners(trials)
    keys = [(trial.implementation, trial.shape, trial.device, trial.policy) for trial in found]
    raced = {
        (trial.implementation, trial.shape, trial.device, trial.policy)
        for trial in trials
        if trial.status is Status.OK and trial.stage is Stage.RACE
    }
    assert len(keys) == len(set(keys))
    assert set(keys) == raced
    assert set(found) <= set(trials)


def _wins(chosen: Trial, *others: Trial) -> None:
    assert winners([*others, chosen]) == [chosen]


FAST = sample.trial(1, timing=sample.timing(100.0), config=sample.config(block=64))


def test_the_fastest_wins_beyond_a_tie() -> None:
    _wins(FAST, sample.trial(2, timing=sample.timing(101.1), is_default=True))


def test_a_separated_interval_is_no_tie_even_within_one_percent() -> None:
    fast = sample.trial(1, timing=sample.timing(100.0, spread=0.1))
    _wins(fast, sample.trial(2, timing=sample.timing(100.5, spread=0.1), is_default=True))


def test_the_default_wins_a_tie() -> None:
    lean = sample.trial(1, timing=sample.timing(100.0), resources=Resources(0, 0))
    _wins(sample.trial(2, timing=sample.timing(100.9), is_default=True, resources=Resources(9, 9)), lean)


def test_then_the_least_shared_memory_then_the_fewest_registers_then_parameter_order() -> None:
    def tied(shared: int | None, registers: int | None, config: Config) -> Trial:
        return sample.trial(config=config, resources=Resources(shared, registers))

    small, large = sample.config(block=16), sample.config(block=64)
    order = [
        tied(1, 9, large),
        tied(2, 1, large),
        tied(2, 2, small),
        tied(2, 2, large),
        tied(2, None, small),
        tied(None, 1, small),
        tied(None, None, sample.config(block=16, loads="descriptor")),
        tied(None, None, large),
    ]
    assert tie_set(reversed(order)) == order
    _wins(*order)


def test_parameter_order_is_the_order_of_the_space_not_of_the_alphabet() -> None:
    _wins(sample.trial(config=sample.config(loads="pointer")), sample.trial(config=sample.config(loads="descriptor")))


def test_the_newest_race_decides_though_slower() -> None:
    newer = sample.trial(2, race_id="a-later-race", timing=sample.timing(150.0))
    _wins(newer, FAST)
    _wins(sample.trial(1, race_id="race-2", timing=sample.timing(150.0)), FAST)


def test_a_race_without_one_valid_row_does_not_decide() -> None:
    _wins(FAST, sample.trial(9, race_id="later", status=Status.NAN_RESULT, timing=None))


def test_a_gpu_outranks_a_replay_and_a_quiet_gpu_a_contended_one() -> None:
    contended = sample.trial(3, race_id="race-3", conditions=Conditions(contended=True))
    replayed = sample.trial(4, race_id="race-4", executor="replay")
    _wins(FAST, contended, replayed)
    _wins(contended, replayed)


def test_only_rows_of_a_race_count() -> None:
    screened = sample.trial(2, stage=Stage.SCREEN, timing=sample.timing(1.0))
    nameless = sample.trial(3, race_id="", timing=sample.timing(1.0))
    slow = sample.trial(4, status=Status.SLOW, timing=sample.timing(1.0))
    _wins(FAST, screened, nameless, slow)
    assert winners([screened, nameless, slow]) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"device": sample.CAPPED_H200},
        {"device": dataclasses.replace(NVIDIA_H200, sm_count=66)},
        {"shape": dataclasses.replace(sample.SHAPE, causal=False)},
        {"policy": Policy(cache="warm")},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_differs_in_its_problem_is_kept_side_by_side(changes: dict[str, Any]) -> None:
    other = sample.trial(2, timing=sample.timing(1.0), **changes)
    assert set(winners([FAST, other])) == {FAST, other}


def test_other_toolchains_and_sources_compete_in_time() -> None:
    _wins(sample.trial(2, race_id="race-2", source_hash="cd" * 32, timing=sample.timing(200.0)), FAST)


def test_the_tie_set_of_nothing_is_empty() -> None:
    assert tie_set([]) == []
    assert tie_set([sample.trial(status=Status.SLOW)]) == []


def test_the_edges_of_a_tie() -> None:
    fast = sample.trial(1, timing=Timing(100.0, 99.0, 101.0, 5))
    touching = sample.trial(2, timing=Timing(101.0, 101.0, 102.0, 5))
    beyond = sample.trial(3, timing=Timing(101.01, 101.0, 102.0, 5))
    assert set(tie_set([fast, touching, beyond])) == {fast, touching}


@pytest.mark.parametrize(
    "timings",
    [
        [Timing(100.0, 99.0, 101.0, 5), Timing(100.5, 99.0, 101.0, 5)],
        [Timing(100.0, 99.9, 100.1, 5), Timing(100.0, 95.0, 105.0, 5), Timing(100.5, 100.4, 100.6, 5)],
    ],
    ids=["one config timed twice", "equal medians of unequal certainty"],
)
def test_the_order_of_rows_never_decides(timings: list[Timing]) -> None:
    race = [sample.trial(timing=timing) for timing in timings]
    assert len({tuple(tie_set(order)) for order in itertools.permutations(race)}) == 1


# Several implementations


def foreign(number: int, median: float = 100.0, **changes: Any) -> Trial:
    """A raced row of the implementation that is not ours."""
    found = {"implementation": "foreign", "config": Config(TILE=1), "timing": sample.timing(median), **changes}
    return sample.trial(number, **found)


def ours(number: int, median: float = 100.0, **changes: Any) -> Trial:
    return sample.trial(number, timing=sample.timing(median), **changes)


def test_each_implementation_has_a_winner_of_its_newest_race() -> None:
    rows = [ours(1, 100.0), foreign(2, 50.0), foreign(3, 60.0), ours(4, 120.0, race_id="race-2")]
    assert winners(rows) == [rows[1], rows[3]]


def test_one_race_ranks_by_time_and_a_tie_is_ours() -> None:
    assert ranked([ours(1, 100.0), foreign(2, 50.0)]) == [foreign(2, 50.0), ours(1, 100.0)]
    tied = [foreign(2, 99.5, is_default=True, resources=Resources(0, 0)), ours(1, 100.0, resources=Resources(9, 9))]
    assert ranked(tied) == tied[::-1]
    assert tie_set(tied) == tied[::-1]


def test_a_foreign_one_of_another_race_comes_after_ours() -> None:
    later = foreign(9, 10.0, race_id="race-2")
    assert ranked([later, ours(1)]) == [ours(1), later]


def test_of_several_races_of_ours_the_newest_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._implementations, (sample.NAME, "second"), f"{__name__}:SECOND")
    second = ours(5, 300.0, implementation="second", race_id="race-2")
    together = [ours(1, 100.0), foreign(2, 90.0)]
    assert ranked([*together, second]) == [second, *together[::-1]]
    assert ranked([*together, second], lambda row: row.implementation == "second") == [*together[::-1], second]
    tied = ours(3, 100.0, implementation="second", is_default=True)
    assert ranked([tied, ours(1)]) == tie_set([tied, ours(1)]) == [ours(1), tied]


SECOND = dataclasses.replace(sample.IMPLEMENTATION, name="second")


@settings(max_examples=50, deadline=None)
@given(tables(), st.randoms(use_true_random=False))
@pytest.mark.slow
def test_ranks_depend_on_nothing_but_the_rows(races: list[list[Trial]], generator: Any) -> None:
    for _, rows in _problems(winners(_flat(races))):
        shuffled = generator.sample(rows, len(rows))
        found = ranked(shuffled)
        assert found == ranked(rows)
        assert set(found) == set(rows)


def _problems(rows: list[Trial]) -> list[tuple[Any, list[Trial]]]:
    found: dict[Any, list[Trial]] = {}
    for row in rows:
        found.setdefault((row.shape, row.device, row.policy), []).append(row)
    return list(found.items())
