"""Checks a config's numbers without a GPU: Triton's interpreter on the kernel's small problems, in its own process.

The interpreter computes bf16 on raw bits, wrong without an error, so bf16 shapes are checked in fp16. Its times measure
Python and are never taken. Run as ``python -m autotune.executor.interpreter``; JSON on standard input and output.
"""

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from autotune import registry
from autotune.correctness import Verdict, check_config, make_cases
from autotune.errors import MissingDependencyError, one_line
from autotune.executor.child import Child, ChildDiedError, send, take_standard_output
from autotune.executor.messages import FromInterpreter, Interpret, MachineFault, decode, encode, refer_to_problem
from autotune.implementation import Implementation
from autotune.roofline import product_dtype
from autotune.shape import Shape
from autotune.space import Config
from autotune.trial import Candidate, Status

TIMEOUT_SECONDS: Final = 300.0
TRIES: Final = 2  # by interpreters that another process killed
INTERPRETABLE: Final = {"bfloat16": "float16"}


def check_interpreted(
    implementation: Implementation[Any], config: Config, shape: Shape, *, timeout: float = TIMEOUT_SECONDS
) -> tuple[Verdict, str]:
    """Return the verdict of the correctness gate on all outputs of a config, and the type that it was reached in.

    The type is the shape's ``dtype``; empty where it has none.

    Raises:
        MissingDependencyError: this machine could not check it, which says nothing of the config: there was no answer
            within ``timeout`` seconds, or another process killed the interpreter twice.
    """
    shape = replace(shape, **_interpretable(shape.as_dict()))
    candidate = Candidate(implementation.name, Config({**config, **_interpretable(config)}))
    operation = registry.get_operation(implementation.operation)
    request = Interpret(refer_to_problem(operation, shape), candidate)
    deadline = time.monotonic() + timeout
    answer: FromInterpreter = MachineFault("")
    for _ in range(TRIES):
        try:
            answer = _ask(request, deadline - time.monotonic())
            break
        except ChildDiedError as error:
            if not error.is_from_outside:
                answer = Verdict(Status.LAUNCH_ERROR, str(error))
                break
            answer = MachineFault(f"it was killed from outside ({error})")
    if isinstance(answer, Verdict):
        return answer, str(getattr(shape, "dtype", ""))
    raise MissingDependencyError(f"Triton's interpreter cannot check numbers on this machine: {answer.reason}")


def _ask(request: Interpret, timeout: float) -> FromInterpreter:
    child = Child("autotune.executor.interpreter", environment={"TRITON_INTERPRET": "1"})
    try:
        child.send(encode(request))
        message = child.receive(max(0.0, timeout))
    finally:
        child.kill()
    if message is None:
        return MachineFault(f"it took longer than the {timeout:.0f} s that were left")
    answer = decode(message)
    assert isinstance(answer, Verdict | MachineFault)
    return answer


def _interpretable(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return replacements for the fields of a shape or config that name a type which the interpreter mistakes."""
    # Several types stand in one field with a "+" between them.
    words = {name: value.split("+") for name, value in fields.items() if isinstance(value, str)}
    replaced = {name: "+".join(INTERPRETABLE.get(word, word) for word in value) for name, value in words.items()}
    return {name: value for name, value in replaced.items() if set(words[name]) & INTERPRETABLE.keys()}


def check(request: Interpret) -> Verdict:
    """In the child: check all outputs of a candidate on its implementation's small problems."""
    operation, shape = request.problem.resolve()
    name = request.candidate.implementation
    definition, kernel = registry.load_definition(operation.name), registry.load_kernel(operation.name, name)
    shapes = (registry.get_implementation(operation.name, name).check_shapes or definition.check_shapes)(shape)
    cases = make_cases(definition, shapes, device="cpu", products=product_dtype(operation, shape))
    return check_config(kernel, request.candidate.config, cases, every_output=True)


def main() -> None:
    messages = take_standard_output()
    request = decode(json.loads(sys.stdin.buffer.readline()))
    assert isinstance(request, Interpret)
    try:
        answer: FromInterpreter = check(request)
    except (OSError, MemoryError) as error:
        answer = MachineFault(one_line(error))
    send(messages, encode(answer))


if __name__ == "__main__":
    main()
