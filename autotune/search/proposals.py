"""Sources of configs to try: an Optuna study over a space, which learns from outcomes, or a list."""

import math
import random
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

import optuna

from autotune.device import Device
from autotune.search.encoding import Encoding, feature_matrix
from autotune.search.gp_sampler import FiniteSpaceSampler
from autotune.search.sampler import DEFAULT_SAMPLER, Sampler
from autotune.search.study import DistinctStudy
from autotune.shape import Shape
from autotune.space import Config, Space
from autotune.trial import Outcome, Status

LISTED: Final[tuple[Sampler, ...]] = ("random", "exhaustive")  # these learn nothing

# Configs in flight, whatever the cores: what is in flight teaches nothing. With 32 of them, 6 % of searches converged
# more than 2 % off the optimum, with 16 none and 2.5 s later (`python -m benchmarks.in_flight`, 2026-11-22: replays of
# the twelve sweeps that an H200 recorded, with 31 simulated compilers and 4 seeds each).
AHEAD: Final = 16


class Proposals(Protocol):
    """A source of configs, each given out once."""

    def ask(self) -> Config | None:
        """Return the next config, valid and never given before; None when every one was."""

    def tell(self, outcome: Outcome) -> None:
        """Learn from a config that ended."""


def most_in_flight(sampler: Sampler) -> float:
    """Return the number of a sampler's configs that may be in flight: asked for and not yet told."""
    return math.inf if sampler in LISTED else AHEAD


def make_proposals(
    sampler: Sampler,
    space: Space[Any],
    shape: Shape,
    device: Device,
    *,
    seed: int,
    first: Iterable[Config] = (),
    past: Iterable[Outcome] = (),
    valid: Sequence[Config] | None = None,
) -> Proposals:
    """Make the proposals of a sampler by name.

    Args:
        first: configs to try before the sampler is asked, in order; the space's default belongs at the head.
        past: outcomes of earlier runs: learned from, never proposed again.
        valid: the space's valid configs, in order, where they are listed already.
    """
    valid = list(space.configs(shape, device) if valid is None else valid)
    if sampler in LISTED:
        begin = [config for config in first if config in set(valid)]
        if sampler == "random":
            random.Random(seed).shuffle(valid)
        return Listed([*begin, *valid], seen=[outcome.config for outcome in past])
    return StudyProposals(space, shape, device, sampler=sampler, seed=seed, first=first, past=past, valid=valid)


class Listed:
    """Every config in the order given: all of a space for a sweep, shuffled for a random search."""

    def __init__(self, configs: Iterable[Config], *, seen: Iterable[Config] = ()) -> None:
        known = set(seen)
        self._configs = iter([config for config in dict.fromkeys(configs) if config not in known])

    def ask(self) -> Config | None:
        return next(self._configs, None)

    def tell(self, outcome: Outcome) -> None:
        pass


class StudyProposals:
    """Proposals of an Optuna study over log-time.

    ``gp`` is a Gaussian process over the listed configs, ``tpe`` that of Bergstra et al. (NeurIPS 2011). The study
    lives in memory and is rebuilt from ``past`` outcomes; arguments are those of ``make_proposals``.
    """

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
        valid: Sequence[Config] | None = None,
    ) -> None:
        valid = list(space.configs(shape, device)) if valid is None else valid
        self._space = space
        self._random = random.Random(seed)
        known = [(outcome.config, _values(outcome)) for outcome in past]
        timed = [(values[0], config) for config, values in known if values is not None]
        self._best = min(timed, key=lambda item: item[0], default=None)
        encoding = Encoding(space, device)
        self._study = DistinctStudy(
            encoding,
            valid,
            _optuna_sampler(sampler, encoding, space, shape, device, valid, seed=seed),
            self._nearest_to_best,
            first=first,
            past=known,
        )

    def ask(self) -> Config | None:
        return self._study.ask()

    def tell(self, outcome: Outcome) -> None:
        values = _values(outcome)
        self._study.tell(outcome.config, values)
        if values is not None and (self._best is None or values[0] < self._best[0]):
            self._best = (values[0], outcome.config)

    def _nearest_to_best(self, unseen: Sequence[Config]) -> Config:
        """Return an unseen config that differs least from the best so far, ties broken by the seed."""
        if self._best is None:
            return self._random.choice(unseen)
        best = self._space.order(self._best[1])
        steps = [sum(abs(a - b) for a, b in zip(best, self._space.order(config), strict=True)) for config in unseen]
        return self._random.choice([config for config, step in zip(unseen, steps, strict=True) if step == min(steps)])


def _optuna_sampler(
    sampler: Sampler,
    encoding: Encoding,
    space: Space[Any],
    shape: Shape,
    device: Device,
    valid: Sequence[Config],
    *,
    seed: int,
) -> optuna.samplers.BaseSampler:
    if sampler == "gp":
        features = feature_matrix(encoding, space, shape, device, valid)
        params = [encoding.encode(config) for config in valid]
        return FiniteSpaceSampler(params, features, encoding.distributions, seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)


def _values(outcome: Outcome) -> tuple[float] | None:
    """Return the value that the study minimises: the logarithm of the time, or nothing for a config that failed."""
    if outcome.timing is None or outcome.status not in (Status.OK, Status.SLOW):
        return None
    return (math.log(outcome.timing.median_us),)
