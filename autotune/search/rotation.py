"""Screening: the studies of a search take turns with the executor until a limit is reached."""

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from autotune.search.convergence import Convergence
from autotune.search.finalists import rank
from autotune.search.observer import Observer
from autotune.search.proposals import Proposals
from autotune.search.recorder import Recorder
from autotune.search.result import Ending, ImplementationResult, Limits
from autotune.trial import Candidate, Outcome, Status, Trial

# A race's binaries take 1 to 4 s of a core each: what is submitted so late is not screened any more, so that finalists
# have the compilers (H100 and H200, the recorded grids of 2026-11-25).
NEAR_SECONDS: Final = 4.0
EXPECTED: Final = 12  # candidates with a verdict from which on the fastest few are worth binaries for a race
# A search that has a budget beyond its race waits so long past it for its first verdict: on a cold machine starting
# took 15 s (an H100, 2026-11-22), and a search that ends before one config was measured is worth nothing.
START_UP_SECONDS: Final = 60.0

# What a race takes of each entrant, in times of the fastest kernel: references, checks, warm-up and the least rounds.
# Of 12 entrants of 26 ms races took 18 to 22 s, of 12 ms 12 to 14 s (an H200, 2026-11-27, from the last screening to
# the end of the searches of ``benchmarks.many_gpus --budget 31``, whose share for a race is 9 s).
RACE_LAUNCHES: Final = 75
MOST_KEPT: Final = 0.5  # of a budget, for its race


class ImplementationStudy:
    """The study of one implementation within a search: its recorder, its proposals, and how far it is.

    Args:
        recorder: one that has resumed.
        races: the rows of its earlier races.
        valid: the number of configs that there are to try.
    """

    def __init__(self, recorder: Recorder, proposals: Proposals, races: Sequence[Trial], *, valid: int) -> None:
        past = sorted(recorder.screened.values(), key=lambda trial: trial.number)
        self.recorder = recorder
        self.proposals = proposals
        self.convergence = Convergence([trial.outcome for trial in past], valid)
        self.ending: Ending | None = None
        self.in_flight = 0
        # The worker compiles the configs that nothing compiles ahead, one after the other.
        self.room = math.inf if recorder.implementation.compiles_ahead else 1
        self.races = races
        self.valid = valid
        self.resumed = len(recorder.screened)
        self._resumed_number = recorder.number

    @property
    def name(self) -> str:
        return self.recorder.implementation.name

    def is_new(self, trial: Trial) -> bool:
        """Return True if a trial is of this study and of this run."""
        return trial.implementation == self.name and trial.number > self._resumed_number

    def result(self) -> ImplementationResult:
        screened = self.recorder.screened
        return ImplementationResult(
            implementation=self.name,
            valid=self.valid,
            measured=len(screened) - self.resumed,
            resumed=self.resumed,
            statuses=dict(Counter(trial.status for trial in screened.values())),
            best_screened=best_of(screened.values()),
        )


class Rotation:
    """Keeps ``room`` candidates in flight until a limit is reached, or every valid config of every study was tried.

    Args:
        started: ``time.monotonic()`` at which the budget began to run.
        ahead: what was submitted already, in order: the candidates that their studies ask for first.
        finalists: returns those of the race as they stand; None where too many are screened for that.
    """

    def __init__(
        self,
        studies: Sequence[ImplementationStudy],
        limits: Limits,
        started: float,
        observer: Observer,
        room: float,
        ahead: Sequence[Candidate] = (),
        finalists: Callable[[], Sequence[Candidate]] | None = None,
    ) -> None:
        self._studies = {study.name: study for study in studies}
        self._turns = deque(studies)
        self._executor = studies[0].recorder.executor
        self._limits, self._observer, self._room = limits, observer, room
        self._deadline = self._grace = math.inf
        self._ends = math.inf if limits.seconds is None else started + limits.seconds
        if limits.seconds is not None:
            self._deadline = self._grace = self._ends - limits.race_seconds
            if limits.seconds > limits.race_seconds:
                self._grace += START_UP_SECONDS
        known = [trial for study in studies for trial in study.recorder.screened.values()]
        self._reached = sum(reached_device(trial.outcome) for trial in known)
        self._has_verdict = bool(known)
        self.first_verdict: float | None = None  # ``time.monotonic()`` of this run's
        self._finalists = finalists
        self._verdicts = 0  # of this run
        for candidate in ahead:
            self._claim(candidate)

    @property
    def in_flight(self) -> int:
        return sum(study.in_flight for study in self._turns)

    def run(self) -> Ending:
        while True:
            self._fill()
            if self._is_over():
                return self._ending()
            self._expect_race()
            left = (self._deadline if self._has_verdict else self._grace) - time.monotonic()
            outcome = self._executor.collect(None if left == math.inf else left) if left > 0 else None
            if outcome is None:  # what is in flight was not acknowledged, and is asked again by the next run
                return Ending.SECONDS
            self._keep(outcome)

    def _expect_race(self) -> None:
        """Tell which would be raced now; the race is near once nothing is left to ask for, or little time."""
        if self._finalists is not None and self._reached >= EXPECTED:
            finalists = self._finalists()
            self._keep_time(len(finalists))
            is_near = self.in_flight < self._room or self._deadline - time.monotonic() < NEAR_SECONDS
            self._executor.expect_race(finalists, is_near=is_near)

    def _keep_time(self, finalists: int) -> None:
        """Let screening end in time for a race of long kernels, which its share may not hold, and a baseline.

        Not before this run has some verdicts: the first may be of kernels that are far slower than others.
        """
        screened = (trial for study in self._turns for trial in study.recorder.screened.values())
        best = best_of(screened)
        if best is None or best.timing is None or self._limits.seconds is None or self._verdicts < EXPECTED:
            return
        needed = RACE_LAUNCHES * (finalists + 1) * best.timing.median_us / 1e6
        kept = max(self._limits.race_seconds, min(needed, MOST_KEPT * self._limits.seconds))
        self._deadline = self._ends - kept

    def _claim(self, candidate: Candidate) -> None:
        """Count a candidate that was submitted already as asked for, which was its study's turn."""
        study = self._studies[candidate.implementation]
        asked = study.proposals.ask()
        assert asked == candidate.config, f"{study.name} asks for {asked} before {candidate.config}"
        study.in_flight += 1
        self._turns.remove(study)
        self._turns.append(study)

    def _fill(self) -> None:
        while self.in_flight < self._room and (study := self._next_in_turn()) is not None:
            if self._limits.converge and study.convergence.is_reached:
                study.ending = Ending.CONVERGED
            elif self._limits.trials is not None and self._reached + self.in_flight >= self._limits.trials:
                return  # until one of those in flight turns out not to count
            elif (config := study.proposals.ask()) is None:
                study.ending = Ending.EXHAUSTED
            else:
                self._executor.submit(study.recorder.candidate(config))
                study.in_flight += 1

    def _next_in_turn(self) -> ImplementationStudy | None:
        for _ in range(len(self._turns)):
            study = self._turns[0]
            self._turns.rotate(-1)
            if study.ending is None and study.in_flight < study.room:
                return study
        return None

    def _is_over(self) -> bool:
        """Return True if nothing is in flight, or nothing to wait for: a study that has converged does not wait."""
        if any(study.ending is None for study in self._turns):
            return self.in_flight == 0
        return all(study.in_flight == 0 or study.ending is Ending.CONVERGED for study in self._turns)

    def _ending(self) -> Ending:
        endings = {study.ending for study in self._turns}
        if None in endings:
            return Ending.TRIALS
        return Ending.CONVERGED if Ending.CONVERGED in endings else Ending.EXHAUSTED

    def _keep(self, outcome: Outcome) -> None:
        study = self._studies[outcome.implementation]
        study.in_flight -= 1
        self._reached += reached_device(outcome)
        self._has_verdict = True
        if self.first_verdict is None:
            self.first_verdict = time.monotonic()
        study.convergence.note(outcome)
        self._verdicts += 1
        for trial in study.recorder.keep_screened(outcome):
            self._observer.on_trial(trial)
        study.proposals.tell(outcome)


def reached_device(outcome: Outcome) -> bool:
    """Return True if a config was launched: only those count against a budget in trials."""
    refused = (Status.INVALID, Status.COMPILE_ERROR, Status.COMPILE_TIMEOUT, Status.OUT_OF_RESOURCES)
    return outcome.status not in refused


def best_of(screened: Iterable[Trial]) -> Trial | None:
    """Return the fastest trial by screening that was correct."""
    timed = (trial for trial in screened if trial.timing and trial.status is Status.OK)
    return min(timed, key=rank, default=None)
