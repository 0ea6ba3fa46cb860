"""Which config to try next: an Optuna study over a space, told of everything that was learned, or a list."""

import math
import random
import warnings
from collections.abc import Iterable
from typing import Any, Final, Literal, Protocol, get_args

import optuna

from autotune.device import Device
from autotune.search.encoding import Encoding, feature_matrix
from autotune.search.gp_sampler import FiniteSpaceSampler
from autotune.shape import Shape
from autotune.space import Config, Space
from autotune.trial import Outcome, Status

Sampler = Literal["gp", "tpe", "random", "exhaustive"]
SAMPLERS: Final[tuple[Sampler, ...]] = get_args(Sampler)
DEFAULT_SAMPLER: Final[Sampler] = "gp"  # docs/search-efficiency.md

CONSTRAINT: Final = "invalid"  # at most 0: feasible (Optuna's convention)
# Configs in flight, whatever the cores: what is in flight teaches nothing. With 32 of them, 6 % of searches converged
# more than 2 % off the optimum, with 16 none and 2.5 s later (replays of the twelve sweeps of `flash_attention` on an
# H200 with 31 compilers, 4 seeds each, 2026-11-22).
AHEAD: Final = 16
MAX_USELESS_ASKS: Final = 5  # then the sampler has run dry, and an unseen neighbour of the best is tried

optuna.logging.set_verbosity(optuna.logging.WARNING)


class Proposals(Protocol):
    """A source of configs, each given out once."""

    @property
    def ahead(self) -> float:
        """How many may be asked for and not yet told; infinity where telling teaches nothing."""

    def ask(self) -> Config | None:
        """The next config, valid and never given before; None when every one was."""

    def tell(self, outcome: Outcome) -> None:
        """Learn from a config that ended."""


def make_proposals(
    sampler: Sampler,
    space: Space[Any],
    shape: Shape,
    device: Device,
    *,
    seed: int,
    first: Iterable[Config] = (),
    past: Iterable[Outcome] = (),
) -> Proposals:
    """The proposals of a sampler by name.

    Args:
        first: configs to try before the sampler is asked, in order; the space's default belongs at the head.
        past: outcomes of earlier runs: learned from, never proposed again.
    """
    if sampler in ("exhaustive", "random"):
        valid = list(space.configs(shape, device))
        begin = [config for config in first if config in set(valid)]
        if sampler == "random":
            random.Random(seed).shuffle(valid)
        return Listed([*begin, *valid], seen=[outcome.config for outcome in past])
    return StudyProposals(space, shape, device, sampler=sampler, seed=seed, first=first, past=past)


class Listed:
    """Every config in the order given: all of a space for a sweep, shuffled for a random search."""

    ahead = math.inf

    def __init__(self, configs: Iterable[Config], *, seen: Iterable[Config] = ()) -> None:
        known = set(seen)
        self._configs = iter([config for config in dict.fromkeys(configs) if config not in known])

    def ask(self) -> Config | None:
        return next(self._configs, None)

    def tell(self, outcome: Outcome) -> None:
        pass


class StudyProposals:
    """Proposals of an Optuna study over log-time.

    ``gp`` is a Gaussian process over the listed configs, ``tpe`` that of Bergstra et al. (NeurIPS 2011). An invalid or
    failed config is told as pruned with a constraint, which a sampler learns from; told as failed it would be proposed
    for ever. The study lives in memory and is rebuilt from ``past`` outcomes.

    Args:
        first: configs to try before the sampler is asked, in order; the space's default belongs at the head.
        past: outcomes of earlier runs: learned from, never proposed again.
    """

    ahead = AHEAD

    def __init__(
        self,
        space: Space[Any],
        shape: Shape,
        device: Device,
        *,
        sampler: Sampler = DEFAULT_SAMPLER,
        seed: int,
        first: Iterable[Config] = (),
        past: Iterable[Outcome] = (),
    ) -> None:
        self._space, self._shape, self._device = space, shape, device
        self._encoding = Encoding(space, device)
        self._random = random.Random(seed)
        self._study = optuna.create_study(
            sampler=_optuna_sampler(sampler, self._encoding, space, shape, device, seed=seed)
        )
        self._unseen = dict.fromkeys(space.configs(shape, device))
        self._asked: dict[Config, optuna.Trial] = {}
        self._best: tuple[float, Config] | None = None
        for outcome in past:
            self._unseen.pop(outcome.config, None)
            self._study.add_trial(_freeze(self._encoding, outcome))
            self._note_best(outcome)
        self._first = [config for config in dict.fromkeys(first) if config in self._unseen]

    def ask(self) -> Config | None:
        for _ in range(MAX_USELESS_ASKS):
            if self._first:
                self._study.enqueue_trial(self._encoding.encode(self._first.pop(0)))
            if not self._unseen:
                return None
            trial = self._study.ask(self._encoding.distributions)
            config = self._encoding.decode(trial.params)
            if config in self._unseen:
                return self._take(config, trial)
            if self._space.reject(config, self._shape, self._device) is not None:
                trial.set_constraint(CONSTRAINT, 1.0)
                self._study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            else:  # given before, its time is known: pruned, the neighbourhood of the best would count as bad
                self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
        config = self._nearest_unseen()
        self._study.enqueue_trial(self._encoding.encode(config))
        return self._take(config, self._study.ask(self._encoding.distributions))

    def tell(self, outcome: Outcome) -> None:
        trial = self._asked.pop(outcome.config)
        value = _value(outcome)
        trial.set_constraint(CONSTRAINT, 1.0 if value is None else -1.0)
        if value is None:
            self._study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            self._study.tell(trial, value)
            self._note_best(outcome)

    def _take(self, config: Config, trial: optuna.Trial) -> Config:
        del self._unseen[config]
        self._asked[config] = trial
        return config

    def _note_best(self, outcome: Outcome) -> None:
        value = _value(outcome)
        if value is not None and (self._best is None or value < self._best[0]):
            self._best = (value, outcome.config)

    def _nearest_unseen(self) -> Config:
        """An unseen config that differs least from the best so far, ties broken by the seed."""
        unseen = list(self._unseen)
        if self._best is None:
            return self._random.choice(unseen)
        best = self._space.order(self._best[1])
        steps = [sum(abs(a - b) for a, b in zip(best, self._space.order(config), strict=True)) for config in unseen]
        return self._random.choice([config for config, step in zip(unseen, steps, strict=True) if step == min(steps)])


def _optuna_sampler(
    sampler: Sampler, encoding: Encoding, space: Space[Any], shape: Shape, device: Device, *, seed: int
) -> optuna.samplers.BaseSampler:
    if sampler == "gp":
        configs = list(space.configs(shape, device))
        features = feature_matrix(encoding, space, shape, device, configs)
        params = [encoding.encode(config) for config in configs]
        return FiniteSpaceSampler(params, features, encoding.distributions, seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)


def _freeze(encoding: Encoding, outcome: Outcome) -> optuna.trial.FrozenTrial:
    """A finished trial of an earlier run, as the study takes it."""
    value = _value(outcome)
    states = optuna.trial.TrialState
    return optuna.trial.create_trial(
        state=states.PRUNED if value is None else states.COMPLETE,
        value=value,
        params=encoding.encode(outcome.config),
        distributions=encoding.distributions,
        constraints={CONSTRAINT: 1.0 if value is None else -1.0},
    )


def _value(outcome: Outcome) -> float | None:
    """What the study minimises: the logarithm of the time, or nothing for a config that failed."""
    if outcome.timing is None or outcome.status not in (Status.OK, Status.SLOW):
        return None
    return math.log(outcome.timing.median_us)
