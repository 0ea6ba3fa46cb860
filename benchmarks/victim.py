"""Searches that say what was acknowledged, and are killed at a chosen moment: what a kill storm is made of."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from autotune.device import Device
from autotune.executor.replay import ReplayExecutor
from autotune.operation import Operation
from autotune.registry import get_operation
from autotune.search import Limits, Observer, Sampler, search
from autotune.shape import Shape
from autotune.space import Config
from autotune.table import Store, shipped_sweeps
from autotune.trial import Candidate, Trial

OPERATION: Final = get_operation("flash_attention")
RECORDED: Final = min((sweep.trials() for sweep in shipped_sweeps(OPERATION.name, implementation="triton")), key=len)
TRIALS: Final[dict[Sampler, int]] = {
    "gp": 14,
    "tpe": 14,
    "random": 24,
    "exhaustive": 24,
}  # lives of a quarter of a second
CHANGES: Final = ("mkdir", "write", "fsync", "replace", "unlink")  # what a store asks of the disk
FORK: Final = multiprocessing.get_context("fork")  # everything is imported once

Say = Callable[[str, Any], None]


class Phase(StrEnum):
    """Where a victim is."""

    START = "start"
    SCREENING = "screening"
    RACE = "race"
    COMPACTION = "compaction"


class TalkativeExecutor(ReplayExecutor):
    """Says which configs it was asked to measure."""

    def __init__(self, say: Say) -> None:
        super().__init__(RECORDED[0].device, RECORDED)
        self._say = say

    def submit(self, candidate: Candidate) -> None:
        self._say("asked", candidate.config)
        super().submit(candidate)


class TalkativeStore(Store):
    """Says when it is being compacted."""

    def __init__(self, root: Path, say: Say) -> None:
        super().__init__(root)
        self._say = say

    def compact(self, operation: str, device: Device) -> None:
        self._say("phase", Phase.COMPACTION)
        super().compact(operation, device)


class Talkative(Observer):
    """Says which trials were acknowledged, and how far the search is."""

    def __init__(self, say: Say) -> None:
        self._say = say

    def on_start(
        self, operation: Operation[Any], shape: Shape, *, valid: Mapping[str, int], resumed: int, best: Trial | None
    ) -> None:
        self._say("phase", Phase.SCREENING)

    def on_trial(self, trial: Trial) -> None:
        self._say("kept", trial)

    def on_race(self, candidates: Sequence[Candidate]) -> None:
        self._say("phase", Phase.RACE)


def count_changes(last: int) -> Callable[[], int]:
    """Kill this process as it is about to change the disk for so many-th time; returns how many changes there were."""
    changes = 0

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def change(*arguments: Any, **named: Any) -> Any:
            nonlocal changes
            changes += 1
            if changes == last:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*arguments, **named)

        return change

    for name in CHANGES:
        setattr(os, name, counted(getattr(os, name)))
    return lambda: changes


def live(folder: Path, sampler: Sampler, seed: int, last_change: int, pipe: "Connection[Any, Any]") -> None:
    """The whole life of a victim."""

    def say(word: str, what: Any) -> None:
        pipe.send((word, what))

    changes = count_changes(last_change)
    result = search(
        OPERATION,
        RECORDED[0].shape,
        TalkativeExecutor(say),
        TalkativeStore(folder, say),
        limits=Limits(trials=TRIALS[sampler]),
        seed=seed,
        sampler=sampler,
        observer=Talkative(say),
    )
    say("changes", changes())
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
        """How long a phase lasted."""
        begun = self.began[phase]
        return min(end for end in (*self.began.values(), self.ended) if end > begun) - begun

    def hear(self, word: str, what: Any) -> None:
        """Note one thing that was said."""
        match word:
            case "phase":
                self.phase = what
                self.began[what] = time.monotonic()
            case "asked":
                self.asked.append(what)
            case "kept":
                self.kept.append(what)
            case "changes":
                self.changes = what
            case "winner":
                self.winner = what


@dataclass(frozen=True)
class After:
    """A moment to kill: so many seconds after a phase began."""

    phase: Phase
    seconds: float


@dataclass(frozen=True)
class Before:
    """A moment to kill: as the disk is about to be changed for so many-th time."""

    change: int


Moment = After | Before


def run(folder: Path, sampler: Sampler, seed: int, moment: Moment | None) -> Life:
    """One life, to its end or to the moment; what was said until then is heard to the last word."""
    receiver, sender = FORK.Pipe(duplex=False)
    last_change = moment.change if isinstance(moment, Before) else 0
    victim = FORK.Process(target=live, args=(folder, sampler, seed, last_change, sender))
    victim.start()
    sender.close()
    life = Life()
    with receiver, suppress(EOFError, OSError):  # OSError: it died in the middle of a word
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
