"""A second search measures only what is missing, also after Ctrl-C; what no longer holds is measured again."""

from dataclasses import replace
from typing import Any

import pytest

from autotune.search import SAMPLERS, Limits, Sampler, search, session
from autotune.shape import Shape
from autotune.table import Store, winners
from autotune.trial import Policy, Stage, Status
from tests.search.session.searching import SPACE, rows, run, winner_of
from tests.search.synthetic import LARGE, SHAPE, SMALL, SYNTHETIC, FakeExecutor


@pytest.mark.parametrize("capacity", [1, 4])
def test_a_second_run_measures_only_what_is_missing(store: Store, capacity: int) -> None:
    first, second, third = (FakeExecutor(capacity=capacity) for _ in range(3))
    run(first, store, trials=10)
    result = run(second, store, trials=16)
    assert (len(first.submitted), len(second.submitted)) == (10, 6)
    assert not set(first.submitted) & set(second.submitted)
    assert (result.resumed, result.measured) == (10, 6)
    assert result.statuses == {Status.OK: 16}
    again = run(third, store, trials=16)
    assert (third.submitted, third.races) == ([], [])
    assert (again.winner, again.ties, again.best_screened) == (result.winner, result.ties, result.best_screened)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_finished_space_is_not_measured_again(store: Store, sampler: Sampler) -> None:
    run(FakeExecutor(), store, SMALL, trials=None, sampler="exhaustive")
    executor = FakeExecutor()
    assert run(executor, store, SMALL, trials=None, sampler=sampler).measured == 0
    assert (executor.submitted, executor.races) == ([], [])


def test_a_sweep_measures_what_a_search_stopped_early(store: Store) -> None:
    slow = dict.fromkeys(SPACE[::3], Status.SLOW)
    run(FakeExecutor(failures=slow), store, SMALL, trials=None)
    sweep = FakeExecutor()
    result = run(sweep, store, SMALL, trials=None, sampler="exhaustive")
    assert set(sweep.submitted) == set(slow)
    assert {trial.status for trial in result.recorded} == {Status.OK}


@pytest.mark.parametrize(
    ("change", "resumed"),
    [
        ({"triton": "3.9.0"}, 0),
        ({"ptxas": "13.0"}, 0),
        ({"tool": "0.2.0"}, 12),
        ({"torch": "2.14"}, 12),
        ({"driver": "590"}, 12),
    ],
    ids=str,
)
def test_only_another_compiler_forgets_what_was_measured(store: Store, change: dict[str, str], resumed: int) -> None:
    run(FakeExecutor(), store)
    toolchain = replace(FakeExecutor().toolchain, **change)
    executor = FakeExecutor(toolchain=toolchain)
    assert run(executor, store).resumed == resumed
    assert len(executor.submitted) == 12 - resumed


def test_another_source_forgets_what_was_measured(store: Store) -> None:
    run(FakeExecutor(), store)
    result = run(FakeExecutor(), store, replace(LARGE, entry=("median_us",)))
    assert (result.resumed, result.measured) == (0, 12)
    assert len({trial.source_hash for trial in rows(store, Stage.RACE)}) == 2


def test_configs_that_a_changed_space_rejects_are_forgotten(store: Store) -> None:
    run(FakeExecutor(), store, SMALL, trials=None)
    kept = [config for config in SPACE if config["BLOCK_K"] != 64]  # 64 was the fastest
    narrow = replace(SMALL.space, reject=lambda config, shape, device: None if config in kept else "too narrow")
    result = run(FakeExecutor(), store, replace(SMALL, space=narrow), trials=None)
    assert (result.resumed, result.measured) == (len(kept), 0)
    assert winner_of(result) in kept


@pytest.mark.parametrize(
    ("policy", "shape"),
    [(Policy(cache="warm"), SHAPE), (Policy(), replace(SHAPE, seq_q=2048))],
    ids=["policy", "shape"],
)
def test_another_policy_or_shape_is_another_study(store: Store, policy: Policy, shape: Shape) -> None:
    run(FakeExecutor(), store)
    result = search(SYNTHETIC, shape, FakeExecutor(policy=policy), store, limits=Limits(12))
    assert (result.resumed, result.measured) == (0, 12)
    assert len({trial.study for trial in store.trials(LARGE.operation)}) == 2


@pytest.mark.parametrize("capacity", [1, 4])
@pytest.mark.parametrize("call", [1, 2, 7, 8, 9])  # eight trials and the race
def test_an_interrupted_search_keeps_its_rows_and_continues(store: Store, call: int, capacity: int) -> None:
    executor = FakeExecutor(interrupt_at=call, capacity=capacity)
    result = run(executor, store, trials=8)
    assert result.interrupted
    assert result.winner is None
    kept = [trial.config for trial in rows(store, Stage.SCREEN)]
    assert kept == executor.collected
    assert (result.measured, len(kept)) == (call - 1, call - 1)
    assert (result.best_screened is None) == (call == 1)
    following = FakeExecutor(capacity=capacity)
    done = run(following, store, trials=8)
    assert len(following.submitted) == 8 - len(kept)
    assert not set(following.submitted) & set(kept)
    assert (done.interrupted, len(following.races)) == (False, 1)
    assert done.winner is not None


def test_an_interrupted_search_still_names_the_winner_of_an_earlier_race(store: Store) -> None:
    before = run(FakeExecutor(), store, trials=5)
    after = run(FakeExecutor(interrupt_at=2), store, trials=10)
    assert after.interrupted
    assert after.winner == before.winner


@pytest.mark.parametrize("step", ["compact", "winners"])
def test_what_was_found_is_told_where_ctrl_c_falls_after_the_race(
    store: Store, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    pressed: list[str] = []

    def interrupt(*arguments: Any) -> Any:
        if pressed:
            return winners(*arguments)
        pressed.append(step)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Store if step == "compact" else session, step, interrupt)
        result = run(FakeExecutor(), store, trials=8)
    assert pressed
    assert result.interrupted
    assert result.winner is not None
    following = FakeExecutor()
    assert run(following, store, trials=8).winner == result.winner
    assert not following.races
