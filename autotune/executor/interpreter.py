"""Checks a config's numbers without a GPU: Triton's interpreter on the kernel's small problems, in its own process.

The interpreter computes bf16 on raw bits, wrong without an error, so bf16 shapes are checked in fp16. Its times measure
Python and are never taken. Run as ``python -m autotune.executor.interpreter``; JSON on standard input and output.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, Final

from autotune.correctness import Verdict, check_config, make_cases
from autotune.executor.child import Child, ChildDiedError
from autotune.executor.messages import open_problem, problem_to_json, send, take_standard_output
from autotune.operation import Operation
from autotune.shape import Shape
from autotune.space import Config
from autotune.trial import Status

TIMEOUT_SECONDS: Final = 300.0
INTERPRETABLE: Final = {"bfloat16": "float16"}


def check_interpreted(operation: Operation[Any], config: Config, shape: Shape) -> tuple[Verdict, str]:
    """The correctness gate's verdict on a config, and the dtype it was reached in."""
    shape = replace(shape, **_interpretable(shape.as_dict()))
    dtype = str(shape.as_dict()["dtype"])
    problem = problem_to_json(operation, shape)
    child = Child("autotune.executor.interpreter", environment={"TRITON_INTERPRET": "1"})
    try:
        child.send({**problem, "config": {**config, **_interpretable(config)}})
        answer = child.receive(TIMEOUT_SECONDS)
    except ChildDiedError as error:
        return Verdict(Status.LAUNCH_ERROR, str(error)), dtype
    finally:
        child.kill()
    if answer is None:
        return Verdict(Status.HANG, f"the interpreter took longer than {TIMEOUT_SECONDS:.0f} s"), dtype
    return Verdict(**{**answer, "status": Status(answer["status"])}), dtype


def _interpretable(fields: Mapping[str, Any]) -> dict[str, str]:
    """What of a shape's or a config's fields names a type that the interpreter takes for another: a cache's, say."""
    return {name: INTERPRETABLE[value] for name, value in fields.items() if value in INTERPRETABLE}


def main() -> None:
    """Entry of the child: one request, one verdict."""
    messages = take_standard_output()
    request = json.loads(sys.stdin.buffer.readline())
    _, kernel, shape = open_problem(request)
    verdict = check_config(kernel, Config(request["config"]), make_cases(kernel, shape, device="cpu"))
    send(messages, asdict(verdict))


if __name__ == "__main__":
    main()
