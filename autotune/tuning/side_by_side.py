"""Searches side by side, one on each GPU of this host; where few are left, a GPU without one screens for another's.

::

              a search is left                  its end
    waiting -------------------> searching ----------------> waiting
      |  ^                           |
      |  | the other races           | the GPU fails, or its times are disturbed: the search
      |  |                           v goes back to the head of those that are left
      |  +---- lent <---+         dropped
      |                 |            ^
      +-----------------+            | the same, while it was lent
      |  none is left, another screens
      v
     ended: no search is left, and none runs

While they search, what the next searches begin with is compiled, about as many as there are GPUs.

A thread drives each GPU. What it tells an observer is put in one queue and told by the thread that called ``tune``, one
call at a time. Ctrl-C reaches that thread: it interrupts the others, and tells what they still have to say.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from queue import SimpleQueue
from typing import Final

from autotune.errors import AutotuneError, MissingDependencyError, UnusableGpuError
from autotune.executor.gpu import GpuExecutor
from autotune.executor.several_gpus import SeveralGpus, no_gpu_left
from autotune.search import Observer
from autotune.tuning.workloads import Answer

LOOK_SECONDS: Final = 0.2  # between two looks of a waiting GPU for something to do

Event = Callable[[], object]
# Searches an answer on a GPU, telling an observer; the last argument is True for the first on that GPU.
SearchOne = Callable[[GpuExecutor, Answer, Observer, bool], None]
Expect = Callable[[GpuExecutor, Answer], None]


@dataclass
class SideBySide:
    """Searches answers on several GPUs at once.

    Args:
        gpus: which; it is closed by the caller.
        search: searches one answer, in the thread of its GPU.
        expect: is told before a search, in the same thread, of an answer that is searched later; raises nothing.
        observer: is told in the thread that calls ``run``.
    """

    gpus: SeveralGpus
    search: SearchOne
    expect: Expect
    observer: Observer
    _left: deque[Answer] = field(default_factory=deque)
    _later: deque[Answer] = field(default_factory=deque)  # of those left, which no GPU was told to expect
    _running: dict[int, Answer] = field(default_factory=dict)
    _refused: set[tuple[int, tuple[object, ...]]] = field(default_factory=set)  # GPUs that cannot open a problem
    _changed: threading.Condition = field(default_factory=threading.Condition)  # of what stands above
    _events: "SimpleQueue[Event | None]" = field(default_factory=SimpleQueue)  # None: a thread has ended

    def run(self, answers: Iterable[Answer]) -> None:
        """Search them all; return once every thread has ended.

        Raises:
            MissingDependencyError: every GPU was dropped.
            KeyboardInterrupt: by Ctrl-C; what was found until then was told.
        """
        self._left.extend(answers)
        self._later.extend(islice(self._left, len(self.gpus.executors), None))  # the others are searched at once
        self.gpus.begin()
        for index, reason in self.gpus.dropped.items():
            self.observer.on_gpu_dropped(index, reason)
        threads = [
            threading.Thread(target=self._serve, args=(index,), name=f"searches on GPU {index}", daemon=True)
            for index in self.gpus.executors
        ]
        for thread in threads:
            thread.start()
        running = len(threads)
        try:
            while running:
                running -= self._tell()
        except BaseException:
            self.gpus.interrupt()
            while running:
                running -= self._tell(quietly=True)  # the first error stands
            raise
        if self._left:
            raise MissingDependencyError(no_gpu_left(self.gpus.dropped))

    def _tell(self, *, quietly: bool = False) -> int:
        """Wait for the next event and tell it; return the number of threads that ended with it.

        With ``quietly`` errors of threads are passed over, their KeyboardInterrupt too; Ctrl-C ends the waiting.
        """
        event = self._events.get()
        if event is None:
            return 1
        with contextlib.suppress(BaseException) if quietly else contextlib.nullcontext():
            event()
        return 0

    def _serve(self, index: int) -> None:
        """Drive one GPU until nothing is left to do, or it is dropped."""
        posting = Posting(self.observer.of_gpu(index), self._events.put)
        is_first = True
        try:
            while not self.gpus.is_interrupted:
                answer = self._take(index)
                if answer is not None:
                    self._search(index, answer, posting, is_first)
                    is_first = False
                elif not self._help(index):
                    return
        except UnusableGpuError as error:
            self.gpus.drop(index, str(error))
            self._events.put(partial(self.observer.on_gpu_dropped, index, str(error)))
        except BaseException as error:  # raised in the thread that called ``tune``
            self._events.put(partial(_raise, error))
        finally:
            self._events.put(None)

    def _take(self, index: int) -> Answer | None:
        with self._changed:
            if self._left:
                self._running[index] = self._left.popleft()
            return self._running.get(index)

    def _take_later(self) -> Answer | None:
        with self._changed:
            return self._later.popleft() if self._later else None

    def _search(self, index: int, answer: Answer, posting: Observer, is_first: bool) -> None:
        """Search an answer; one that the GPU leaves unfinished goes to another, which continues with its trials."""
        executor, is_finished = self.gpus.executors[index], True
        try:
            if (later := self._take_later()) is not None:
                self.expect(executor, later)
            self.search(executor, answer, posting, is_first)
        except UnusableGpuError:
            is_finished = False
            raise
        finally:
            executor.screeners.give_back_lent()
            with self._changed:
                del self._running[index]
                if not is_finished:
                    self._left.appendleft(answer)
                self._changed.notify_all()

    def _help(self, index: int) -> bool:
        """Screen for another's search, or wait until there is one or a search is left; False once all is done."""
        returned: SimpleQueue[AutotuneError | None] = SimpleQueue()
        with self._changed:
            if self._left:
                return True
            if not self._running:
                return False
            hosts = [
                (self.gpus.executors[each], answer)
                for each, answer in self._running.items()
                if (index, answer.key) not in self._refused
            ]
        for host, answer in sorted(hosts, key=lambda each: each[0].screeners.lent_count):
            if host.screeners.lend(self.gpus.executors[index].screeners.own, returned.put):
                error = returned.get()
                if isinstance(error, MissingDependencyError):
                    raise UnusableGpuError(str(error))
                if error is not None:
                    with self._changed:
                        self._refused.add((index, answer.key))
                return True
        with self._changed:
            if not self._left:
                self._changed.wait(LOOK_SECONDS)
        return True


def _raise(error: BaseException) -> None:
    raise error


class Posting(Observer):
    """Posts each call to be made on an observer, rather than making it."""

    def __init__(self, observer: Observer, post: Callable[[Event], None]) -> None:
        for name in dir(Observer):
            if name.startswith("on_"):
                setattr(self, name, partial(_post, post, getattr(observer, name)))


def _post(post: Callable[[Event], None], call: Callable[..., object], *arguments: object, **named: object) -> None:
    post(partial(call, *arguments, **named))
