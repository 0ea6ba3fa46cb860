"""Kill searches at random moments and count what is lost: ``python -m benchmarks.kill_storm --kills 1000``.

A victim is a forked process that searches by replay of a shipped sweep into a store in a temporary folder, and says
every trial that was acknowledged before it goes on. It is killed at any time of its start, screening, race or
compaction, or at any change of the disk; then its store is read with the checks of every reader. The exit code is 1 if
anything is lost, unreadable or measured again.
"""

import argparse
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import cycle
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple

from autotune.errors import TableError
from autotune.executor.replay import ReplayExecutor
from autotune.registry import get_operation
from autotune.search import Limits, Observer, Sampler, search
from autotune.space import Config
from autotune.table import Store, shipped_sweeps
from autotune.trial import Stage, Trial

SEARCHES: Final[tuple[Sampler, ...]] = ("gp", "tpe", "random")
SWEEP: Final[Sampler] = "exhaustive"
SAMPLERS: Final = (*SEARCHES, SWEEP)
LANES_PER_CORE: Final = 2  # a victim often waits for the disk
OPERATION: Final = get_operation("flash_attention")
RECORDED: Final = min((sweep.trials() for sweep in shipped_sweeps(OPERATION.name, implementation="triton")), key=len)
# Trials of a life of a quarter of a second.
TRIALS: Final[dict[Sampler, int]] = {"gp": 14, "tpe": 14, "random": 24, "exhaustive": 24}
CHANGES: Final = ("mkdir", "write", "fsync", "replace", "unlink")  # the calls by which a store changes the disk
FORK: Final = multiprocessing.get_context("fork")  # everything is imported once


class Phase(StrEnum):
    START = "start"
    SCREENING = "screening"
    RACE = "race"
    COMPACTION = "compaction"


def act_before(owner: Any, name: str, act: Callable[..., object]) -> None:
    """Replace a function of a module or an object by one that first calls ``act`` with the same arguments."""
    original = getattr(owner, name)

    def call(*arguments: Any, **named: Any) -> Any:
        act(*arguments, **named)
        return original(*arguments, **named)

    setattr(owner, name, call)


def live(folder: Path, sampler: Sampler, seed: int, last_change: int, pipe: "Connection[Any, Any]") -> None:
    """Live the whole life of a victim; it kills itself before the change of the disk of number ``last_change``."""
    changes = 0

    def say(word: str, what: Any) -> None:
        pipe.send((word, what))

    def count_change(*_: Any, **__: Any) -> None:
        nonlocal changes
        changes += 1
        if changes == last_change:
            os.kill(os.getpid(), signal.SIGKILL)

    executor, store, observer = ReplayExecutor(RECORDED[0].device, RECORDED), Store(folder), Observer()
    act_before(executor, "submit", lambda candidate: say("asked", candidate.config))
    act_before(store, "compact", lambda *_: say("phase", Phase.COMPACTION))
    act_before(observer, "on_start", lambda *_, **__: say("phase", Phase.SCREENING))
    act_before(observer, "on_trial", lambda trial: say("kept", trial))
    act_before(observer, "on_race", lambda _: say("phase", Phase.RACE))
    for name in CHANGES:
        act_before(os, name, count_change)
    limits = Limits(trials=TRIALS[sampler])
    shape = RECORDED[0].shape
    result = search(OPERATION, shape, executor, store, limits=limits, seed=seed, sampler=sampler, observer=observer)
    say("changes", changes)
    say("winner", result.winner)


@dataclass
class Life:
    """Output of a victim before it ended or was killed."""

    phase: Phase = Phase.START
    asked: list[Config] = field(default_factory=list)
    kept: list[Trial] = field(default_factory=list)
    winner: Trial | None = None
    changes: int = 0
    began: dict[Phase, float] = field(default_factory=lambda: {Phase.START: time.monotonic()})
    ended: float = 0.0
    killed: bool = False

    def seconds(self, phase: Phase) -> float:
        begun = self.began[phase]
        return min(end for end in (*self.began.values(), self.ended) if end > begun) - begun

    def hear(self, word: str, what: Any) -> None:
        if word in ("asked", "kept"):
            getattr(self, word).append(what)
            return
        setattr(self, word, what)
        if word == "phase":
            self.began[what] = time.monotonic()


class After(NamedTuple):
    """A moment to kill: so many seconds after a phase began."""

    phase: Phase
    seconds: float


class Before(NamedTuple):
    """A moment to kill: before the change of the disk of that number."""

    change: int


Moment = After | Before


def run_life(folder: Path, sampler: Sampler, seed: int, moment: Moment | None) -> Life:
    """Run one life, to its end or to the moment, and hear all messages until then; raise RuntimeError if it failed."""
    receiver, sender = FORK.Pipe(duplex=False)
    last_change = moment.change if isinstance(moment, Before) else 0
    victim = FORK.Process(target=live, args=(folder, sampler, seed, last_change, sender))
    victim.start()
    sender.close()
    life = Life()
    with receiver, suppress(EOFError, OSError):  # OSError: it died in the middle of a message
        while True:
            if isinstance(moment, After) and moment.phase in life.began:
                left = life.began[moment.phase] + moment.seconds - time.monotonic()
                if left <= 0 or not receiver.poll(left):
                    victim.kill()
                    moment = None
            life.hear(*receiver.recv())
    victim.join()
    life.ended = time.monotonic()
    life.killed = victim.exitcode == -signal.SIGKILL
    if not life.killed and victim.exitcode != 0:
        raise RuntimeError(f"a victim ended by itself with exit status {victim.exitcode}")
    return life


# Uniform in time, next to no kill would fall into a race by replay: it lasts milliseconds.
WEIGHTS: Final = {Phase.START: 1, Phase.SCREENING: 5, Phase.RACE: 2, Phase.COMPACTION: 4}

Lives = dict[Sampler, Life]


@dataclass
class Tally:
    """Observations. Every one of the ``defects`` is a reason to fail."""

    kills: Counter[Phase] = field(default_factory=Counter)
    trials: Counter[str] = field(default_factory=Counter)  # acknowledged, and repeated since they were in flight
    finished: int = 0
    defects: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Tally") -> None:
        self.kills.update(other.kills)
        self.trials.update(other.trials)
        self.finished += other.finished
        self.defects.update(other.defects)

    def __str__(self) -> str:
        phases = ", ".join(f"{self.kills[phase]} in {phase}" for phase in Phase)
        defects = ", ".join(f"{count} {defect}" for defect, count in self.defects.items())
        acknowledged, repeated = self.trials["acknowledged"], self.trials["repeated"]
        return (
            f"{self.kills.total()} kills: {phases}; {self.finished} studies finished\n"
            f"{acknowledged} trials acknowledged, {repeated} that were in flight repeated; {defects}"
        )


class Victims:
    """One folder, everything that was ever acknowledged in it, and the checks after each life."""

    def __init__(self, sampler: Sampler, seed: int, tally: Tally) -> None:
        self.sampler: Final = sampler
        self._seed = seed
        self._tally = tally
        self._folder = tempfile.TemporaryDirectory(prefix="kill-storm-")
        self.close = self._folder.cleanup
        self._kept: set[Trial] = set()
        self._asked: set[Config] = set()
        self._screened: set[Config] = set()

    def live(self, moment: Moment | None) -> Life:
        life = run_life(Path(self._folder.name), self.sampler, self._seed, moment)
        damaged: list[TableError] = []
        stored = Store(Path(self._folder.name)).trials(OPERATION.name, on_damaged=damaged.append)
        screened = [trial.config for trial in stored if trial.stage is Stage.SCREEN]
        acknowledged = {*life.kept, *([life.winner] if life.winner else [])}
        known_and_asked, twice = self._screened.intersection(life.asked), len(screened) - len(set(screened))
        self._kept |= acknowledged
        tally = self._tally
        tally.kills[life.phase] += life.killed
        tally.finished += life.winner is not None
        tally.trials.update(acknowledged=len(acknowledged), repeated=len(self._asked.intersection(life.asked)))
        tally.defects.update(
            {
                "lost": len(self._kept.difference(stored)),
                "unreadable": len(damaged),
                "measured again though kept": len(known_and_asked) + twice,
                "in flight beyond one": max(0, len(set(life.asked).difference(screened)) - 1),
            }
        )
        self._asked.update(life.asked)
        self._screened = set(screened)
        return life


class Lane:
    """Kills one victim after another: of searches, of sweeps, and of studies that are resumed until they end."""

    def __init__(self, seed: int, whole: Lives) -> None:
        self._random = random.Random(seed)
        self._whole = whole
        self._tally = Tally()

    def kill(self, kills: int) -> Tally:
        """Kill so many victims; studies that are resumed are brought to their end."""
        resumed = self._begin(SWEEP)
        kinds = cycle((SWEEP, None, *SEARCHES, None))
        while self._tally.kills.total() < kills:
            sampler = next(kinds)
            if sampler is not None:
                study = self._begin(sampler)
                self._live(study, self._moment(study))
                study.close()
            elif self._live(resumed, self._moment(resumed)):
                resumed.close()
                resumed = self._begin(self._random.choice(SAMPLERS))
        self._live(resumed, None)
        resumed.close()
        return self._tally

    def _begin(self, sampler: Sampler) -> Victims:
        return Victims(sampler, self._random.randrange(2**32), self._tally)

    def _moment(self, study: Victims) -> Moment:
        """Choose a moment in time, or a change of the disk: between those is next to no time, and all the danger."""
        whole = self._whole[study.sampler]
        if self._random.random() < 0.5:
            return Before(self._random.randint(1, whole.changes))
        phase = self._random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        return After(phase, self._random.uniform(0.0, whole.seconds(phase)))

    def _live(self, study: Victims, moment: Moment | None) -> bool:
        """Run one life; return True if the study came to its end, which for a sweep is always the same."""
        winner, expected = study.live(moment).winner, self._whole[study.sampler].winner
        if winner is None or expected is None:
            return False
        other = study.sampler == SWEEP and (winner.config, winner.timing) != (expected.config, expected.timing)
        self._tally.defects["another winner"] += other
        return True


def learn(sampler: Sampler) -> Life:
    """Run a life without a kill, for the seconds of its phases and its winner."""
    with closing(Victims(sampler, 0, Tally())) as study:
        return study.live(None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    started = time.monotonic()
    lanes = min(arguments.kills, LANES_PER_CORE * (os.cpu_count() or 1))
    shares = [len(range(lane, arguments.kills, lanes)) for lane in range(lanes)]
    whole = {sampler: learn(sampler) for sampler in SAMPLERS}
    prepared = [Lane(arguments.seed * lanes + lane, whole) for lane in range(lanes)]
    tally = Tally()
    with ProcessPoolExecutor(lanes, mp_context=FORK) as pool:
        for found in pool.map(Lane.kill, prepared, shares):
            tally.add(found)
    print(f"{tally}\nin {time.monotonic() - started:.0f} s")
    sys.exit(tally.defects.total() > 0)


if __name__ == "__main__":
    main()
