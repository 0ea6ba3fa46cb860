"""Turns outcomes into rows of the store: identity, number, date, rates."""

import hashlib
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from autotune.executor import Executor, Race
from autotune.operation import Operation
from autotune.roofline import rates
from autotune.shape import Shape
from autotune.space import Config
from autotune.table import Store
from autotune.trial import Outcome, Stage, Status, Trial

# The machine's failure, not the config's: such a config is tried again by the next run.
NO_VERDICT: Final = (Status.OUT_OF_MEMORY, Status.WORKER_DIED)


@dataclass
class Recorder:
    """Makes rows of outcomes and keeps them; knows what every row of one search shares."""

    operation: Operation[Any]
    shape: Shape
    executor: Executor
    store: Store
    seed: int
    number: int = 0
    screened: dict[Config, Trial] = field(default_factory=dict)

    @property
    def study(self) -> str:
        """Names the Optuna study: one for each operation, device and shape."""
        key = repr((self.operation.name, self.executor.device, self.shape, self.executor.policy))
        return f"{self.operation.name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"

    @property
    def source_hash(self) -> str:
        """That of every row: of a library it is the version that measures, in a replay the one that was recorded."""
        return self.operation.source_hash_under(self.executor.toolchain)

    def resume(self, *, measured_fully: bool = False) -> list[Trial]:
        """Take up what the store holds of this study, for this source and toolchain; returns the rows of its races.

        With ``measured_fully`` a config that an earlier search stopped early is not known: a sweep measures it whole.
        """
        tools, space = self.executor.toolchain, self.operation.space
        past = [
            trial
            for trial in self.store.trials(self.operation.name, self.executor.device)
            if (trial.study, trial.executor) == (self.study, self.executor.name)
            and trial.source_hash == self.source_hash
            and (trial.toolchain.triton, trial.toolchain.ptxas) == (tools.triton, tools.ptxas)
            and space.why_invalid(trial.config, self.shape, self.executor.device) is None  # the space may have changed
        ]
        unknown = (*NO_VERDICT, Status.SLOW) if measured_fully else NO_VERDICT
        verdicts = [trial for trial in past if trial.status not in unknown]
        self.screened = {trial.config: trial for trial in verdicts if trial.stage is Stage.SCREEN}
        self.number = max((trial.number for trial in past), default=0)
        return [trial for trial in past if trial.stage is Stage.RACE]

    def row(self, outcome: Outcome, stage: Stage, **race: Any) -> Trial:
        """A trial for an outcome, numbered and dated."""
        self.number += 1
        timing = outcome.timing
        tflops, gbps = rates(self.operation.cost(self.shape), timing.median_us) if timing else (None, None)
        return Trial(
            operation=self.operation.name,
            source_hash=self.source_hash,
            shape=self.shape,
            device=self.executor.device,
            toolchain=self.executor.toolchain,
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

    @property
    def default(self) -> Config:
        return self.operation.space.default(self.shape, self.executor.device)

    def keep_screened(self, outcome: Outcome) -> Trial:
        """Store a screened config."""
        trial = self.row(outcome, Stage.SCREEN)
        self.store.append([trial])
        self.screened[outcome.config] = trial
        return trial

    def keep_race(self, race: Race) -> list[Trial]:
        """Store a race as one batch, so that it is there whole or not at all."""
        baseline = race.fastest_baseline
        default = next((o.timing for o in race.outcomes if o.config == self.default), None)
        race_id = f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}-{self.study}"
        rows = [
            self.row(
                self._with_resources(outcome),
                Stage.RACE,
                race_id=race_id,
                default_timing=default,
                baseline=baseline.name,
                baseline_timing=baseline.timing,
            )
            for outcome in race.outcomes
        ]
        self.store.append(rows)
        return rows

    def _with_resources(self, outcome: Outcome) -> Outcome:
        screened = self.screened.get(outcome.config)
        if screened is None:
            return outcome
        return replace(
            outcome,
            resources=screened.outcome.resources,
            compile_seconds=screened.outcome.compile_seconds,
        )
