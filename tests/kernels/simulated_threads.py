"""Threads of a block on the CPU: one runs at a time, as a seed draws, so that a race that shows can be shown again."""

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


class HangError(AssertionError):
    """A wait that nothing ends."""


@dataclass(eq=False)
class _Pause:
    """A thread that waits for its turn."""

    until: Callable[[], bool] = lambda: True
    describe: Callable[[], str] = lambda: "a thread can go on"
    is_late: bool = False
    turn: threading.Event = field(default_factory=threading.Event)


class Threads:
    """Threads that run until they pause, and copies under way that complete while they do.

    Whenever a thread pauses, one that can go on, or a copy, is drawn with ``seed``: a run can be repeated, and a hang
    shows as soon as nothing can go on.
    """

    def __init__(self, seed: str) -> None:
        self._draws = random.Random(seed)
        self._paused: list[_Pause] = []
        self._copies: list[Callable[[], None]] = []
        self._failure: BaseException | None = None

    def run(self, works: Sequence[Callable[[], None]]) -> None:
        """Run each of ``works`` as a thread to its end, and raise the first error of any."""
        self._paused = [_Pause() for _ in works]
        threads = [
            threading.Thread(target=self._run_one, args=each, daemon=True)
            for each in zip(works, self._paused, strict=True)
        ]
        for thread in threads:
            thread.start()
        self._go_on()
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure

    def pause(self) -> None:
        """Let others run, if they are drawn."""
        self._wait(_Pause())

    def pause_until(self, condition: Callable[[], bool], describe: Callable[[], str]) -> None:
        """Let others run until a condition holds.

        Raises:
            HangError: Nothing can go on any more; the message has what ``describe`` returns for each that waits.
        """
        self._wait(_Pause(condition, describe))

    def pause_long(self) -> None:
        """Let others run, half of the times, as drawn, until none of them can go on."""
        self._wait(_Pause(is_late=self._draws.random() < 0.5))

    def complete_later(self, copy: Callable[[], None]) -> None:
        """Let a copy be under way: it is called while some thread pauses."""
        self._copies.append(copy)

    def _run_one(self, work: Callable[[], None], begin: _Pause) -> None:
        try:
            self._await_turn(begin)
            work()
            self._go_on()
        except BaseException as error:
            self._end_all(error)

    def _wait(self, pause: _Pause) -> None:
        self._paused.append(pause)
        self._go_on()
        self._await_turn(pause)

    def _await_turn(self, pause: _Pause) -> None:
        pause.turn.wait()
        if self._failure is not None:
            raise self._failure

    def _go_on(self) -> None:
        """Complete copies and let one thread go on, as they are drawn."""
        while self._paused:
            ready = [each for each in self._paused if each.until()]
            prompt = [each for each in ready if not each.is_late]
            choices: list[_Pause | Callable[[], None]] = [*prompt, *self._copies] or [*ready]
            if not choices:
                raise HangError("; ".join(each.describe() for each in self._paused))
            drawn = self._draws.choice(choices)
            if isinstance(drawn, _Pause):
                self._paused.remove(drawn)
                drawn.turn.set()
                return
            self._copies.remove(drawn)
            drawn()

    def _end_all(self, error: BaseException) -> None:
        """Let every thread raise the first error."""
        self._failure = self._failure or error
        for each in self._paused:
            each.turn.set()
        self._paused.clear()
