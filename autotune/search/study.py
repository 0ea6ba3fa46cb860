"""Optuna's studies as a search uses them: made quietly, and asked for each valid config once."""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import optuna
from optuna.trial import TrialState

from autotune.search.encoding import PartialEncoding
from autotune.space import Config

CONSTRAINT: Final = "invalid"  # at most 0: feasible (Optuna's convention)
MAX_USELESS_ASKS: Final = 5  # then the sampler has run dry, and an unseen config is taken

Values = Sequence[float] | None  # None: the config failed

_making = threading.Lock()


def create_study(sampler: optuna.samplers.BaseSampler, *, objectives: int = 1) -> optuna.Study:
    """Make a study in memory that minimises, without Optuna's notice of it; the user's verbosity stays."""
    logger = logging.getLogger("optuna")
    with _making:  # or one thread would take the other's level for the user's
        level = logger.level
        logger.setLevel(logging.WARNING)
        try:
            return optuna.create_study(sampler=sampler, directions=["minimize"] * objectives)
        finally:
            logger.setLevel(level)


class DistinctStudy:
    """A study that gives configs, each valid and once, and learns their values.

    An invalid or failed config is recorded as pruned with a constraint, which a sampler learns from; as failed it
    would be proposed for ever.

    Args:
        configs: every valid config.
        fallback: picks one of those not given yet, where the sampler has run dry.
        first: configs to give before the sampler is asked, in order; others than valid ones are passed over.
        past: configs of earlier runs and their values: learned from, never given.
    """

    def __init__(
        self,
        encoding: PartialEncoding,
        configs: Iterable[Config],
        sampler: optuna.samplers.BaseSampler,
        fallback: Callable[[Sequence[Config]], Config],
        *,
        objectives: int = 1,
        first: Iterable[Config] = (),
        past: Iterable[tuple[Config, Values]] = (),
    ) -> None:
        self._encoding, self._fallback = encoding, fallback
        self._study = create_study(sampler, objectives=objectives)
        self._unseen = dict.fromkeys(configs)
        self._valid = frozenset(self._unseen)
        self._asked: dict[Config, optuna.Trial] = {}
        self._configs: dict[int, Config] = {}  # by the number of the trial
        for number, (config, values) in enumerate(past):
            self._study.add_trial(finished_trial(encoding, config, values))
            self._configs[number] = config
            self._unseen.pop(config, None)
        self._first = [config for config in dict.fromkeys(first) if config in self._unseen]

    def ask(self) -> Config | None:
        if not self._unseen:
            return None
        if self._first:
            return self._enqueue(self._first.pop(0))
        for _ in range(MAX_USELESS_ASKS):
            trial, config = self._propose()
            if config in self._unseen:
                return self._give(config, trial)
            if config in self._valid:  # its values are known: pruned, the neighbourhood of the best would count as bad
                self._study.tell(trial, state=TrialState.FAIL)
            else:
                self._learn(trial, None)
        return self._enqueue(self._fallback(list(self._unseen)))

    def tell(self, config: Config, values: Values) -> None:
        self._learn(self._asked.pop(config), values)

    def front(self) -> list[Config]:
        """Return the configs that none beats in every objective at once, in the order in which they came."""
        return [self._configs[number] for number in sorted(trial.number for trial in self._study.best_trials)]

    def _enqueue(self, config: Config) -> Config:
        self._study.enqueue_trial(self._encoding.encode(config))
        trial, found = self._propose()
        assert found == config
        return self._give(config, trial)

    def _propose(self) -> tuple[optuna.Trial, Config]:
        trial = self._study.ask()
        return trial, self._encoding.suggest(trial)

    def _give(self, config: Config, trial: optuna.Trial) -> Config:
        del self._unseen[config]
        self._asked[config], self._configs[trial.number] = trial, config
        return config

    def _learn(self, trial: optuna.Trial, values: Values) -> None:
        trial.set_constraint(CONSTRAINT, 1.0 if values is None else -1.0)
        self._study.tell(trial, values, TrialState.PRUNED if values is None else None)


def finished_trial(encoding: PartialEncoding, config: Config, values: Values) -> optuna.trial.FrozenTrial:
    """Make a finished trial of an outcome that was learned elsewhere."""
    params = encoding.encode(config)
    return optuna.trial.create_trial(
        state=TrialState.PRUNED if values is None else TrialState.COMPLETE,
        values=values,
        params=params,
        distributions={name: encoding.distributions[name] for name in params},
        constraints={CONSTRAINT: 1.0 if values is None else -1.0},
    )
