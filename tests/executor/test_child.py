"""A child's messages arrive whole and in order, and its death is told from its silence."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import autotune.executor.child
from autotune.executor.child import ChildDiedError
from tests.executor.conftest import StartChild
from tests.executor.processes import Processes

ECHO = """
    for line in sys.stdin:
        print(line, end="", flush=True)
"""


def test_messages_come_back_in_order(start: StartChild) -> None:
    child = start(ECHO)
    messages = [{"number": number, "text": "ü\n" * number} for number in range(5)]
    for message in messages:
        child.send(message)
    assert [child.receive(20.0) for _ in messages] == messages
    assert not child.has_message


def test_a_message_in_pieces_is_put_together(start: StartChild) -> None:
    child = start("""
        for piece in ('{"nu', 'mber":', ' 1', '}', '\\n{"number": 2}\\n{"num', 'ber": 3}\\n'):
            os.write(1, piece.encode())
            sys.stdin.readline()
    """)
    for _ in range(4):
        assert child.receive(0.05) is None
        child.send({})
    assert child.receive(20.0) == {"number": 1}
    assert child.receive(20.0) == {"number": 2}
    assert child.receive(0.0) is None
    child.send({})
    assert child.receive(20.0) == {"number": 3}


def test_lines_of_one_read_wait_for_their_turn(start: StartChild) -> None:
    child = start('os.write(1, b\'{"number": 1}\\n{"number": 2}\\n{"number": 3}\\n\')')
    assert child.receive(20.0) == {"number": 1}
    assert child.has_message
    assert [child.receive(0.0), child.receive(0.0)] == [{"number": 2}, {"number": 3}]
    assert not child.has_message
    with pytest.raises(ChildDiedError):
        child.receive(20.0)


def test_a_message_larger_than_a_pipe_arrives(start: StartChild) -> None:
    child = start("print(json.dumps({'text': 'x' * 1_000_000}), flush=True)")
    message = child.receive(20.0)
    assert message is not None
    assert len(message["text"]) == 1_000_000


def test_a_silent_child_is_waited_for_no_longer_than_asked(start: StartChild) -> None:
    assert start("sys.stdin.read()").receive(0.01) is None


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("sys.exit('no more')", "exit status 1: no more"),
        ("raise KeyError('missing')", "exit status 1: KeyError: 'missing'"),
        ("os._exit(7)", "exit status 7"),
        ("os.kill(os.getpid(), 11)", "exit status -11"),
        ("print(1 / 0)", "exit status 1: ZeroDivisionError: division by zero"),
        ("os.write(2, b'\\xff' * 1000); os._exit(1)", f"exit status 1: {'�' * 500}"),
    ],
)
def test_a_death_is_reported_with_its_last_words(start: StartChild, code: str, words: str) -> None:
    with pytest.raises(ChildDiedError) as caught:
        start(code).receive(20.0)
    assert str(caught.value) == words


def test_an_answer_before_death_is_still_received(start: StartChild) -> None:
    child = start("os.write(1, b'{\"number\": 1}\\n'); os._exit(3)")
    assert child.receive(20.0) == {"number": 1}
    with pytest.raises(ChildDiedError, match="exit status 3"):
        child.receive(20.0)


def test_sending_to_a_dead_child_says_how_it_died(start: StartChild) -> None:
    child = start("sys.exit('gone')")
    with pytest.raises(ChildDiedError):
        child.receive(20.0)
    for _ in range(2):
        with pytest.raises(ChildDiedError, match="exit status 1: gone"):
            child.send({})


def test_a_killed_child_neither_takes_nor_gives(start: StartChild, processes: Processes) -> None:
    child = start(ECHO)
    child.kill()
    child.kill()
    child.close()
    with pytest.raises(ChildDiedError, match="exit status -9"):
        child.send({})
    with pytest.raises(ChildDiedError, match="exit status -9"):
        child.receive(20.0)
    assert processes.wait_for(0) == set()


@pytest.mark.parametrize("end", ["kill", "close"])
def test_grandchildren_end_with_their_parent(start: StartChild, processes: Processes, end: str) -> None:
    child = start("""
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        os.write(1, b'{}\\n')
        sys.stdin.read()
        os._exit(0)
    """)
    assert child.receive(20.0) == {}
    assert child.pid in processes.wait_for(2)
    getattr(child, end)()
    processes.wait_for(0)


def test_closing_lets_a_child_finish(start: StartChild) -> None:
    child = start("sys.stdin.read(); os._exit(5)")
    child.close()
    with pytest.raises(ChildDiedError, match="exit status 5"):
        child.send({})


def test_a_child_that_ignores_its_closing_is_killed(start: StartChild, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.executor.child.GRACE_SECONDS", 0.05)
    child = start("time.sleep(600)")
    child.close()
    with pytest.raises(ChildDiedError, match="exit status -9"):
        child.send({})


def test_a_child_that_does_not_end_when_it_is_killed_is_left_behind(
    start: StartChild, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.executor.child.KILL_SECONDS", 0.05)
    monkeypatch.setattr("autotune.executor.child.GRACE_SECONDS", 0.05)
    child = start("time.sleep(600)")
    with monkeypatch.context() as patch:
        patch.setattr(os, "killpg", lambda group, number: None)
        with pytest.warns(RuntimeWarning, match=rf"process {child.pid} was killed and did not end in 0.05 s"):
            child.kill()
    child.kill()  # which neither waits nor warns again
    child.close()
    with pytest.raises(ChildDiedError, match="exit status none yet"):
        child.receive(20.0)
    (reaper,) = (each for each in threading.enumerate() if each.name == f"reaper of {child.pid}")
    os.kill(child.pid, signal.SIGKILL)
    processes.wait_for(0)
    reaper.join(20.0)
    assert child._process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("ends_by_itself", [True, False])
def test_a_group_is_killed_while_its_number_is_still_the_childs(
    start: StartChild, monkeypatch: pytest.MonkeyPatch, ends_by_itself: bool
) -> None:
    """A number that was reaped may be another group's."""
    is_own: list[bool] = []
    kill_group = os.killpg

    def note(group: int, number: int) -> None:
        is_own.append(Path(f"/proc/{group}").exists())
        kill_group(group, number)

    monkeypatch.setattr(os, "killpg", note)
    child = start("sys.exit('gone')" if ends_by_itself else "sys.stdin.read()")
    if ends_by_itself:
        with pytest.raises(ChildDiedError, match="exit status 1: gone"):
            child.receive(20.0)
        child.kill()
    child.close()
    child.kill()
    assert is_own == [True]
    assert not Path(f"/proc/{child.pid}").exists()  # reaped


def test_a_parent_that_ignores_the_ends_of_its_children_hears_of_them(start: StartChild) -> None:
    """Nobody is left to be reaped there, and no status is known."""
    child = start("""
        import signal
        from autotune.executor.child import Child, ChildDiedError
        if "AUTOTUNE_TEST_CHILD" in os.environ:
            sys.exit("gone")
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        child = Child("child_of_a_test", environment={"AUTOTUNE_TEST_CHILD": "1"})
        try:
            child.receive(20.0)
        except ChildDiedError as error:
            child.close()
            os.write(1, json.dumps({"heard": str(error)}).encode() + b"\\n")
    """)
    assert child.receive(20.0) == {"heard": "exit status 0: gone"}


def test_what_a_child_prints_is_no_message(start: StartChild) -> None:
    """Neither Python's output nor that of libraries below it nor of programs that it starts."""
    child = start("""
        channel = child.take_standard_output()
        print("not a message", flush=True)
        os.write(1, b"not a message\\n")
        subprocess.run(["echo", "not a message"], check=True)
        child.send(channel, {"number": 1})
        print("last words", flush=True)
        os._exit(2)
    """)
    assert child.receive(20.0) == {"number": 1}
    with pytest.raises(ChildDiedError, match="exit status 2: last words"):
        child.receive(20.0)


def test_a_child_ends_with_its_parent_however_that_ends(start: StartChild, processes: Processes) -> None:
    child = start("""
        from autotune.executor.child import Child
        if "AUTOTUNE_TEST_CHILD" in os.environ:
            os.write(1, b'{}\\n')
            time.sleep(600)
        child = Child("child_of_a_test", environment={"AUTOTUNE_TEST_CHILD": "1"})
        child.receive(20.0)
        os.write(1, json.dumps({"pid": child.pid}).encode() + b"\\n")
        os.kill(os.getpid(), 9)
    """)
    message = child.receive(20.0)
    assert message is not None
    processes.wait_until(lambda living: message["pid"] not in living)


@pytest.mark.parametrize("is_parent", [True, False])
def test_a_child_whose_parent_is_gone_before_it_starts_runs_nothing(tmp_path: Path, is_parent: bool) -> None:
    (tmp_path / "child_of_a_test.py").write_text("import sys; print(*sys.argv[1:]); sys.exit(3)")
    parent = os.getpid() if is_parent else os.getppid()
    command = [sys.executable, "-P", "-m", "autotune.executor.child", str(parent), "child_of_a_test", "first", "second"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=20.0)
    assert (ended.returncode, ended.stdout) == ((3, "first second\n") if is_parent else (1, ""))


PLANTED = ("json", "selectors", "numpy", "torch", "triton")


def test_modules_of_the_current_folder_are_not_libraries(
    start: StartChild, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor where the parent itself has the current folder in its path, whose own modules are found."""
    here = tmp_path / "here"
    here.mkdir()
    for name in PLANTED:
        (here / f"{name}.py").write_text("import sys; sys.exit('a planted module was run')")
    (here / "module_of_a_user.py").write_text("HERE = True")
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend("")
    child = start(f"""
        import importlib, module_of_a_user
        for name in {PLANTED}:
            importlib.import_module(name)
        os.write(1, json.dumps({{"path": sys.path}}).encode() + b"\\n")
    """)
    answer = child.receive(60.0)
    assert answer is not None
    assert answer["path"].count(str(here)) == 1
    assert "" not in answer["path"]


def test_a_child_imports_the_package_that_its_parent_imported(
    start: StartChild, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it lies in the current folder, as in a clone."""
    monkeypatch.chdir(Path(autotune.__file__).parents[1])
    child = start('os.write(1, json.dumps({"file": child.__file__}).encode() + b"\\n")')
    answer = child.receive(20.0)
    assert answer is not None
    assert answer["file"] == autotune.executor.child.__file__


def test_a_removed_current_folder_is_no_obstacle(
    start: StartChild, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert start("os.write(1, b'{}\\n')").receive(20.0) == {}
