"""Runs functions of tests in a child process in which Triton interprets: ``TRITON_INTERPRET`` is read when it loads."""

import atexit
import base64
import os
import pickle
import sys
import traceback
from collections.abc import Callable
from functools import cache
from typing import Any, Final, ParamSpec, TypeVar

from autotune.executor.child import Child, die_with_parent, send, take_standard_output

ANSWER_SECONDS: Final = 120

P = ParamSpec("P")
T = TypeVar("T")


def interpret(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Call a function of a module there, and return what it returns; the child lives as long as pytest's worker."""
    child = _child()
    child.send({"call": _encode((function, arguments, named))})
    reply = child.receive(ANSWER_SECONDS)
    assert reply is not None, f"no answer within {ANSWER_SECONDS} s"
    assert "raised" not in reply, reply.get("raised")
    answer: T = _decode(reply["answer"])
    return answer


@cache
def _child() -> Child:
    child = Child("tests.contract.interpreting", environment={"TRITON_INTERPRET": "1"})
    atexit.register(child.close)
    return child


def _encode(value: object) -> str:
    return base64.b64encode(pickle.dumps(value)).decode()


def _decode(text: str) -> Any:
    return pickle.loads(base64.b64decode(text))


def main() -> None:
    """Answer until standard input ends."""
    import json

    import torch

    from tests.contract.patching_once import patch_once_a_launch

    assert os.environ["TRITON_INTERPRET"] == "1"
    die_with_parent(os.getppid())
    messages = take_standard_output()
    torch.set_num_threads(1)  # pytest's workers take the cores
    patch_once_a_launch()
    for line in sys.stdin:
        try:
            function, arguments, named = _decode(json.loads(line)["call"])
            send(messages, {"answer": _encode(function(*arguments, **named))})
        except Exception:
            send(messages, {"raised": traceback.format_exc()})


if __name__ == "__main__":
    main()
