"""Searches by name: ours through ``make_proposals``, and Optuna's samplers as a user without our codec takes them."""

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, NSGAIISampler, TPESampler

from autotune.search import SAMPLERS, Sampler
from autotune.search.proposals import make_proposals
from autotune.space import Config
from benchmarks.search_efficiency.machine import COMPILERS, IN_FLIGHT, Judged, ProposalSource, simulate
from benchmarks.search_efficiency.recordings import Recording

OURS: Final[dict[str, Sampler]] = {name: name for name in SAMPLERS if name != "exhaustive"}
CONTROL: Final = "random"  # the default, then valid configs drawn uniformly
PLAIN: Final[dict[str, Callable[[int], BaseSampler]]] = {
    "optuna-tpe": lambda seed: TPESampler(seed=seed),
    "optuna-gp": lambda seed: GPSampler(seed=seed),
    "optuna-cma-es": lambda seed: CmaEsSampler(seed=seed, warn_independent_sampling=False),
    "optuna-nsga2": lambda seed: NSGAIISampler(seed=seed),
}
ASKS_PER_EVALUATION: Final = 20  # then a search that is not ours is given up: it proposes what it already knows


@dataclass(frozen=True)
class Run:
    """One search with one seed.

    ``batches`` are the configs in order, those of one list asked for together. ``pipelined`` are the verdicts of a
    second search with the same seed that kept the simulated machine busy; None for searches that cannot.
    ``stopped`` is the error that ended a search before its budget.
    """

    sampler: str
    recording: str
    seed: int
    batches: list[list[int]]
    asking_seconds: float
    pipelined: list[Judged] | None = None
    stopped: str = ""

    @property
    def trace(self) -> list[int]:
        return [index for batch in self.batches for index in batch]


def run_sampler(sampler: str, recording: Recording, seed: int) -> Run:
    """Search a recording to its budget, one config at a time; ours also with many in flight."""
    start = time.perf_counter()
    trace = replay(open_source(sampler, recording, seed), recording.budget)
    seconds = time.perf_counter() - start
    pipelined = None
    if sampler in OURS:
        source = open_source(sampler, recording, seed)
        pipelined = simulate(recording, source, compilers=COMPILERS, in_flight=IN_FLIGHT)
    return Run(sampler, recording.name, seed, [[index] for index in trace], seconds, pipelined)


def replay(source: ProposalSource, budget: int) -> list[int]:
    """Return the configs asked for, each answered before the next; raise RuntimeError if one is asked for twice."""
    trace: dict[int, None] = {}
    while len(trace) < budget and (index := source.ask()) is not None:
        if index in trace:
            raise RuntimeError(f"config {index} was asked for twice")
        trace[index] = None
        source.tell(index)
    return list(trace)


def open_source(sampler: str, recording: Recording, seed: int) -> ProposalSource:
    return OurSource(OURS[sampler], recording, seed) if sampler in OURS else PlainSource(sampler, recording, seed)


class OurSource:
    """Proposals of the library, which begin with the space's default."""

    def __init__(self, sampler: Sampler, recording: Recording, seed: int) -> None:
        self._recording = recording
        first = [recording.outcomes[recording.default].config]
        self._proposals = make_proposals(
            sampler, recording.implementation.space, recording.shape, recording.device, seed=seed, first=first
        )

    def ask(self) -> int | None:
        config = self._proposals.ask()
        return None if config is None else self._recording.index[config]

    def tell(self, index: int) -> None:
        self._proposals.tell(self._recording.outcomes[index])


class PlainSource:
    """An Optuna study over the index of each value, told the logarithm of the time; for one config at a time.

    What the space rejects is answered without an evaluation, and a config that was evaluated before is answered from
    memory. Failures are pruned trials for TPE; the others, which ignore those, are told the worst time so far.
    """

    def __init__(self, sampler: str, recording: Recording, seed: int) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._recording, self._prunes = recording, sampler == "optuna-tpe"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self._study = optuna.create_study(sampler=PLAIN[sampler](seed))
        parameters = recording.implementation.space.parameters
        self._choices = {parameter.name: parameter.choices(recording.device) for parameter in parameters}
        counts = {parameter: len(self._choices[parameter.name]) for parameter in parameters}
        self._distributions: dict[str, BaseDistribution] = {
            parameter.name: IntDistribution(0, count - 1)
            if parameter.is_ordered
            else CategoricalDistribution(range(count))
            for parameter, count in counts.items()
            if count > 1
        }
        self._asks_left = ASKS_PER_EVALUATION * recording.budget
        self._known: set[int] = set()
        self._worst: float | None = None
        self._asked: optuna.Trial | None = None

    def ask(self) -> int | None:
        while self._asks_left:
            self._asks_left -= 1
            trial = self._study.ask(self._distributions)
            index = self._recording.index.get(self._decode(trial.params))
            if index is not None and index not in self._known:
                self._asked = trial
                return index
            self._finish(trial, index)
        return None

    def tell(self, index: int) -> None:
        assert self._asked is not None
        self._known.add(index)
        self._finish(self._asked, index)

    def _decode(self, params: dict[str, Any]) -> Config:
        return Config({name: choices[params.get(name, 0)] for name, choices in self._choices.items()})

    def _finish(self, trial: optuna.Trial, index: int | None) -> None:
        time_us = math.nan if index is None else self._recording.times_us[index]
        if not math.isnan(time_us):
            value = math.log(time_us)
            self._worst = value if self._worst is None else max(self._worst, value)
            self._study.tell(trial, value)
        elif self._prunes:
            self._study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        elif self._worst is None:
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            self._study.tell(trial, self._worst)
