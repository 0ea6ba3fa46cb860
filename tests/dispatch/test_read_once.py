"""One thread reads, the others wait for it and get the same; errors are not kept."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from autotune import table
from autotune.dispatch import get_kernel
from autotune.dispatch.read_once import ReadOnce
from tests import sample
from tests.dispatch.tables import H200, Tables


def test_threads_that_ask_at_once_wait_for_one_that_reads() -> None:
    calls: list[int] = []

    @ReadOnce
    def read(number: int) -> list[int]:
        calls.append(number)
        time.sleep(0.05)  # all others ask meanwhile
        return [number]

    together = threading.Barrier(8)

    def ask(number: int) -> list[int]:
        together.wait(10)
        return read(number % 2)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(8)))
    assert sorted(calls) == [0, 1]
    assert found == [[0], [1]] * 4
    assert found[0] is read(0)


def test_a_result_is_kept_until_it_is_forgotten_even_none() -> None:
    calls: list[str] = []

    @ReadOnce
    def read(name: str) -> None:
        """Read nothing."""
        calls.append(name)

    for _ in range(2):
        read("a")
    assert calls == ["a"]
    read.forget()
    read("a")
    assert calls == ["a", "a"]
    assert read.__doc__ == "Read nothing."


def test_an_error_is_raised_and_the_next_call_tries_again() -> None:
    outcomes = iter([OSError("no such folder"), "rows"])

    @ReadOnce
    def read() -> object:
        if isinstance(outcome := next(outcomes), OSError):
            raise outcome
        return outcome

    with pytest.raises(OSError, match="no such folder"):
        read()
    assert read() == "rows"


def test_a_read_may_ask_for_another_as_a_warning_s_handler_does() -> None:
    @ReadOnce
    def read(number: int) -> int:
        return number + (read(number - 1) if number else 0)

    assert read(3) == 6


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_that_is_forked_during_a_read_reads_by_itself() -> None:
    reads, may_end = threading.Event(), threading.Event()
    parent = os.getpid()

    @ReadOnce
    def read() -> int:
        reads.set()
        if os.getpid() == parent:
            may_end.wait(10)
        return os.getpid()

    reader = threading.Thread(target=read)
    reader.start()
    assert reads.wait(10)
    if (child := os.fork()) == 0:
        signal.alarm(20)  # where it waits for a thread that it does not have
        os._exit(0 if read() == os.getpid() else 1)
    may_end.set()
    reader.join()
    assert os.waitpid(child, 0)[1] == 0


def test_after_a_reload_threads_read_each_table_once(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    tables.ship(sample.trial())
    names: list[object] = []
    stored_winners = table.stored_winners

    def read_slowly(*arguments: object, **options: object) -> object:
        names.append((arguments, str(options["slug"]), options["implementations"]))
        time.sleep(0.02)
        return stored_winners(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(table, "stored_winners", read_slowly)
    together = threading.Barrier(16)

    def look_up(_: int) -> object:
        together.wait(10)
        return get_kernel(sample.shape(), device=H200).config

    with ThreadPoolExecutor(16) as pool:
        found = set(pool.map(look_up, range(16)))
    assert found == {sample.FAST}
    assert len(names) == len(set(names)) > 0
