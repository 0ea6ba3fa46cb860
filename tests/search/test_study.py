"""A study gives each valid config once whatever its sampler proposes, and leaves Optuna's verbosity to the user."""

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import optuna
import pytest
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial

from autotune.search.encoding import PartialEncoding
from autotune.search.study import CONSTRAINT, MAX_USELESS_ASKS, DistinctStudy, create_study
from autotune.space import Config, Parameter

PARAMETERS = (Parameter("block", (16, 32, 64)), Parameter("loads", ("pointer", "descriptor")))
CONFIGS = [Config(block=block, loads=loads) for block in (16, 32, 64) for loads in ("pointer", "descriptor")]
CHILD = """
import optuna

optuna.logging.set_verbosity(optuna.logging.INFO)
import autotune.search
from autotune.search.pareto import ParetoStudy
from autotune.space import Parameter

ParetoStudy([Parameter("a", (1, 2))], lambda point: None, objectives=2, budget=1).ask()
assert optuna.logging.get_verbosity() == optuna.logging.INFO
optuna.create_study(study_name="the user's")
"""


class Stubborn(optuna.samplers.BaseSampler):
    """Proposes the same config for ever."""

    def __init__(self, config: Config) -> None:
        self._params = PartialEncoding(PARAMETERS).encode(config)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._params[param_name]


def last(configs: Sequence[Config]) -> Config:
    return configs[-1]


def distinct(proposed: Config, valid: Sequence[Config] = CONFIGS, **others: Any) -> DistinctStudy:
    return DistinctStudy(PartialEncoding(PARAMETERS), valid, Stubborn(proposed), last, **others)


def states(study: DistinctStudy) -> list[str]:
    return [trial.state.name for trial in study._study.trials]


def test_repeated_proposals_are_failed_and_then_an_unseen_config_is_taken() -> None:
    study = distinct(CONFIGS[1])
    assert [study.ask(), study.ask()] == [CONFIGS[1], CONFIGS[-1]]
    assert states(study) == ["RUNNING", *["FAIL"] * MAX_USELESS_ASKS, "RUNNING"]
    assert not any(trial.constraints for trial in study._study.trials)


def test_invalid_proposals_are_pruned_with_a_constraint() -> None:
    study = distinct(CONFIGS[0], CONFIGS[1:4])
    assert study.ask() == CONFIGS[3]
    assert states(study) == [*["PRUNED"] * MAX_USELESS_ASKS, "RUNNING"]
    assert all(trial.constraints == {CONSTRAINT: 1.0} for trial in study._study.trials[:-1])


def test_every_config_is_given_once_and_the_first_ones_first() -> None:
    invalid = Config(block=128, loads="pointer")
    study = distinct(CONFIGS[0], first=[CONFIGS[4], invalid, CONFIGS[2], CONFIGS[4]])
    asked = [study.ask() for _ in CONFIGS]
    assert asked == [CONFIGS[4], CONFIGS[2], CONFIGS[0], CONFIGS[5], CONFIGS[3], CONFIGS[1]]
    assert study.ask() is None


def test_past_configs_are_told_and_not_given() -> None:
    study = distinct(CONFIGS[0], first=CONFIGS[:2], past=[(CONFIGS[0], (2.0,)), (CONFIGS[3], None)])
    assert states(study) == ["COMPLETE", "PRUNED"]
    assert [trial.constraints[CONSTRAINT] for trial in study._study.trials] == [-1.0, 1.0]
    assert [study.ask() for _ in range(5)] == [CONFIGS[1], CONFIGS[5], CONFIGS[4], CONFIGS[2], None]


def test_front_is_of_what_was_told_here_and_in_the_past() -> None:
    past = [(CONFIGS[3], (1.0, 9.0)), (CONFIGS[4], (9.0, 9.0)), (CONFIGS[5], None)]
    study = distinct(CONFIGS[0], objectives=2, past=past)
    for values in ((9.0, 1.0), None, (5.0, 5.0)):
        config = study.ask()
        assert config is not None
        study.tell(config, values)
    assert study.front() == [CONFIGS[3], CONFIGS[0], CONFIGS[1]]


@pytest.fixture
def notices() -> Iterator[list[str]]:
    """Optuna's messages; its level is as before when the test ends."""
    logger, said = logging.getLogger("optuna"), list[str]()
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    level = logger.level
    logger.addHandler(handler)
    yield said
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.mark.parametrize("level", [logging.NOTSET, logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR])
def test_a_study_is_made_quietly_and_the_level_stays(level: int, notices: list[str]) -> None:
    logging.getLogger("optuna").setLevel(level)
    create_study(optuna.samplers.RandomSampler(seed=0))
    assert notices == []
    assert logging.getLogger("optuna").level == level


def test_the_level_stays_where_no_study_could_be_made(notices: list[str]) -> None:
    optuna.logging.set_verbosity(optuna.logging.INFO)
    with pytest.raises(ValueError, match="objectives"):
        create_study(optuna.samplers.RandomSampler(seed=0), objectives=0)
    assert optuna.logging.get_verbosity() == optuna.logging.INFO


def test_studies_made_by_several_threads_leave_the_level(notices: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    optuna.logging.set_verbosity(optuna.logging.INFO)
    found = []

    def make(**_: Any) -> None:
        found.append(logging.getLogger("optuna").level)
        time.sleep(0.01)  # so that they would meet
        found.append(logging.getLogger("optuna").level)

    monkeypatch.setattr(optuna, "create_study", make)
    threads = [
        threading.Thread(target=create_study, args=[optuna.samplers.RandomSampler(seed=seed)]) for seed in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [logging.WARNING] * 8
    assert optuna.logging.get_verbosity() == optuna.logging.INFO


def test_importing_and_using_the_search_leaves_a_users_verbosity() -> None:
    child = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=120)
    assert child.returncode == 0, child.stderr
    assert child.stderr.count("A new study created") == 1  # the user's own, who asked to be told
