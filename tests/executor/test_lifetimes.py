"""Children live as long as the process that started them: neither shorter, as its threads do, nor longer."""

import multiprocessing
import os
import signal
import threading
import time
from contextlib import closing
from multiprocessing.connection import Connection

import pytest

from autotune.executor.child import Child
from autotune.executor.gpu import GpuExecutor
from tests.executor.conftest import StartChild
from tests.executor.driving import assert_works, replace_gpu, start_executor
from tests.executor.faulty import OPERATION, SHAPE
from tests.executor.processes import Processes

ENDED_SECONDS = 0.3  # the kernel's signal takes less
# Starts a child in a forked process, from a thread that ends; then either sleeps or is killed.
ACTOR = """
    import threading
    from autotune.executor.child import Child
    if "AUTOTUNE_TEST_CHILD" in os.environ:
        os.write(1, b'{}\\n')
        time.sleep(600)
    def start():
        child = Child("child_of_a_test", environment={"AUTOTUNE_TEST_CHILD": "1"})
        child.receive(20.0)
        os.write(1, json.dumps({"actor": os.getpid(), "child": child.pid}).encode() + b"\\n")
    Child("json.tool").close()  # so that the process that is forked has a starter of its own
    if os.fork() == 0:
        os.setsid()
        thread = threading.Thread(target=start)
        thread.start()
        thread.join()
    time.sleep(600)
"""


def in_a_thread(work: object) -> None:
    """Run it in a thread that has ended when this returns; raises what it raises."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()  # type: ignore[operator]
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    for error in errors:
        raise error


@pytest.mark.slow
def test_an_executor_outlives_the_thread_that_opened_it(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_gpu(monkeypatch)
    opened: list[GpuExecutor] = []

    def use() -> None:
        opened.append(start_executor())
        opened[0].open(OPERATION, SHAPE)
        assert_works(opened[0])

    in_a_thread(use)
    with closing(opened[0]) as executor:
        living = processes.living()
        time.sleep(ENDED_SECONDS)
        assert living == processes.living()
        assert len(living) == 3  # the worker, the standby and the compile server
        in_a_thread(lambda: assert_works(executor))
        assert_works(executor)
        assert living == processes.living()


def test_children_of_a_forked_process_end_with_it_and_not_with_its_thread(
    start: StartChild, processes: Processes
) -> None:
    """As a Ray actor: the process is a fork, and its methods run in threads."""
    parent = start(ACTOR)
    message = parent.receive(20.0)
    assert message is not None
    time.sleep(ENDED_SECONDS)
    assert {message["actor"], message["child"]} <= processes.living()
    os.kill(message["actor"], signal.SIGKILL)
    processes.wait_until(lambda living: message["child"] not in living)
    parent.kill()


def _start_child(answers: Connection) -> None:
    child = Child("tests.executor.sleeps")
    answers.send(child.pid)
    time.sleep(600)


def test_children_of_a_process_of_multiprocessing_end_with_it(processes: Processes) -> None:
    context = multiprocessing.get_context("fork")
    answers, other = context.Pipe()
    actor = context.Process(target=_start_child, args=(other,))
    actor.start()
    assert answers.poll(20.0)
    child = answers.recv()
    time.sleep(ENDED_SECONDS)
    assert child in processes.living()
    actor.kill()
    actor.join()
    processes.wait_until(lambda living: child not in living)
