"""Searches that report every acknowledged trial and are killed at a chosen moment, for ``benchmarks.kill_storm``."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from autotune.executor.replay import ReplayExecutor
from autotune.registry import get_operation
from autotune.search import Limits, Observer, Sampler, search
from autotune.space import Config
from autotune.table import Store, shipped_sweeps
from autotune.trial import Trial

OPERATION: Final = get_operation("flash_attention")
RECORDED: Final = min((sweep.trials() for sweep in shipped_sweeps(OPERATION.name, implementation="triton")), key=len)
# Trials of a life of a quarter of a second.
TRIALS: Final[dict[Sampler, int]] = {"gp": 14, "tpe": 14, "random": 24, "exhaustive": 24}
CHANGES: Final = ("mkdir", "write", "fsync", "replace", "unlink")  # the calls by which a store changes the disk
FORK: Final = multiprocessing.get_context("fork")  # everything is imported once


class Phase(StrEnum):
    """Phases of a victim's life."""

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
        """Return the seconds that a phase lasted."""
        begun = self.began[phase]
        return min(end for end in (*self.began.values(), self.ended) if end > begun) - begun

    def hear(self, word: str, what: Any) -> None:
        """Note one message."""
        if word in ("asked", "kept"):
            getattr(self, word).append(what)
            return
        setattr(self, word, what)
        if word == "phase":
            self.began[what] = time.monotonic()


@dataclass(frozen=True)
class After:
    """A moment to kill: so many seconds after a phase began."""

    phase: Phase
    seconds: float


@dataclass(frozen=True)
class Before:
    """A moment to kill: before the change of the disk of that number."""

    change: int


Moment = After | Before


def run(folder: Path, sampler: Sampler, seed: int, moment: Moment | None) -> Life:
    """Run one life, to its end or to the moment; every message that was sent until then is heard.

    Raises:
        RuntimeError: the victim failed.
    """
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
