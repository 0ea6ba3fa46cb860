"""The rows of a search: identity, number, date and rates of outcomes, kept in the store."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from autotune.executor import Executor, Race
from autotune.implementation import Implementation
from autotune.operation import Operation
from autotune.roofline import rates
from autotune.shape import Shape
from autotune.space import Config
from autotune.table import Store
from autotune.trial import Candidate, Outcome, PriorPick, Stage, Status, Timing, Toolchain, Trial

# The machine's failure, not the config's: such a config is tried again by the next run.
NO_VERDICT: Final = (Status.OUT_OF_MEMORY, Status.WORKER_DIED)


@dataclass
class Recorder:
    """The rows of one implementation in a search, and what all of them share.

    Attributes:
        served_default: what is served here as default; the space's default if None.
        heuristics: what people write by hand, where that is measured beside.
        served: what the tables served for the shape before this search, where that is raced.
        number: that of the last row of the study.
        screened: the verdict on each config, of this run and of those before it.
    """

    operation: Operation[Any]
    implementation: Implementation[Any]
    shape: Shape
    executor: Executor
    store: Store
    seed: int
    served_default: Config | None = None
    heuristics: Sequence[Config] = ()
    served: PriorPick | None = None
    number: int = 0
    screened: dict[Config, Trial] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.implementation.name

    @property
    def study(self) -> str:
        """Name the Optuna study: one for each implementation, device, shape and policy."""
        names = (self.operation.name, self.implementation.name)
        key = repr((*names, self.executor.device, self.shape, self.executor.policy))
        return f"{'-'.join(names)}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"

    @property
    def source_hash(self) -> str:
        """Hash of every row: of a library the version that measures, in a replay the one that was recorded."""
        return self.implementation.source_hash_under(self.toolchain)

    @property
    def toolchain(self) -> Toolchain:
        return self.executor.toolchain_of(self.implementation.name)

    @property
    def default(self) -> Config:
        return self.served_default or self.implementation.space.default(self.shape, self.executor.device)

    def resume(self, known: Iterable[Trial] | None = None, *, measured_fully: bool = False) -> list[Trial]:
        """Take up the stored trials of this problem, source and toolchain; return the rows of its races.

        Trials that were read already are given as ``known``. With ``measured_fully`` a config that an earlier search
        stopped early is not known: a sweep measures it whole.
        """
        tools, space = self.toolchain, self.implementation.space
        name, device = self.implementation.name, self.executor.device
        if known is None:
            known = self.store.trials(self.operation.name, device, implementation=name)
        past = [
            trial
            for trial in known
            if (trial.shape, trial.device, trial.policy) == (self.shape, device, self.executor.policy)
            and trial.executor == self.executor.name
            and self.implementation.is_current(trial, tools)
            and space.why_invalid(trial.config, self.shape, device) is None  # the space may have changed
        ]
        unknown = (*NO_VERDICT, Status.SLOW) if measured_fully else NO_VERDICT
        verdicts = [trial for trial in past if trial.status not in unknown]
        self.screened = {trial.config: trial for trial in verdicts if trial.stage is Stage.SCREEN}
        self.number = max((trial.number for trial in past), default=0)
        return [trial for trial in past if trial.stage is Stage.RACE]

    def candidate(self, config: Config) -> Candidate:
        return Candidate(self.name, config)

    def is_valid(self, config: Config) -> bool:
        """Return True if a config may run here."""
        return self.implementation.space.why_invalid(config, self.shape, self.executor.device) is None

    def keep_screened(self, *outcomes: Outcome) -> list[Trial]:
        """Store verdicts as one batch."""
        trials = [self._row(outcome, Stage.SCREEN) for outcome in outcomes]
        self.store.append(trials)
        self.screened |= {trial.config: trial for trial in trials}
        return trials

    def race_rows(self, race: Race, race_id: str, by_hand: Timing | None = None) -> list[Trial]:
        """Make the rows of a race that are of this implementation; ``by_hand`` is the least time of what people write
        by hand, of whatever implementation."""
        outcomes = [outcome for outcome in race.outcomes if outcome.implementation == self.implementation.name]
        timings = {outcome.config: outcome.timing for outcome in outcomes}
        best = race.fastest_baseline
        shared: dict[str, Any] = {
            "default_timing": timings.get(self.default),
            "default_config": self.default,
            "heuristic_timing": by_hand,
            "baseline": best.name,
            "baseline_timing": best.timing,
        }
        if (served := self.served) is not None:  # of whatever implementation
            times = {outcome.candidate: outcome.timing for outcome in race.outcomes}
            shared |= {"served_timing": times.get(served.candidate), "served_rung": served.rung}
            shared |= {"expected_regret": served.expected_regret, "evidence": served.evidence}
        return [
            self._row(
                self._with_resources(each),
                Stage.RACE,
                race_id=race_id,
                is_served=None if served is None else each.candidate == served.candidate,
                **shared,
            )
            for each in outcomes
        ]

    def _row(self, outcome: Outcome, stage: Stage, **race: Any) -> Trial:
        self.number += 1
        timing = outcome.timing
        tflops, gbps = rates(self.operation.cost(self.shape), timing.median_us) if timing else (None, None)
        return Trial(
            operation=self.operation.name,
            source_hash=self.source_hash,
            shape=self.shape,
            device=self.executor.device,
            toolchain=self.toolchain,
            executor=self.executor.name,
            policy=self.executor.policy,
            study=self.study,
            seed=self.seed,
            number=self.number,
            worker=self.executor.worker,
            started_at=datetime.now(UTC),
            stage=stage,
            is_default=outcome.config == self.default,
            outcome=outcome,
            tflops=tflops,
            gbps=gbps,
            **race,
        )

    def _with_resources(self, outcome: Outcome) -> Outcome:
        if (screened := self.screened.get(outcome.config)) is None:
            return outcome
        known = screened.outcome
        return replace(outcome, resources=known.resources, compile_seconds=known.compile_seconds)


def keep_race(race: Race, recorders: Mapping[str, Recorder]) -> list[Trial]:
    """Store a race as one batch; the rows of all implementations share its name."""
    first = next(iter(recorders.values()))
    race_id = f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}-{first.study}"
    written = {recorder.candidate(config) for recorder in recorders.values() for config in recorder.heuristics}
    timings = [each.timing for each in race.outcomes if each.candidate in written and each.timing is not None]
    by_hand = min(timings, key=lambda timing: timing.median_us, default=None)
    rows = [row for recorder in recorders.values() for row in recorder.race_rows(race, race_id, by_hand)]
    first.store.append(rows)
    return rows
