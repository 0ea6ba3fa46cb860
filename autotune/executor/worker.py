"""The process that owns a GPU: checks, screens and races configs as its parent asks, one JSON line each.

It imports everything, then waits to be told ``start`` before it touches the GPU, so that it can stand by. A kernel that
corrupts its CUDA context takes this process with it and nothing else. Run by ``WorkerKeeper``:
``python -m autotune.executor.worker``.
"""

import json
import os
import sys
from dataclasses import asdict
from typing import Any, BinaryIO

import torch

from autotune import hardware
from autotune.errors import one_line
from autotune.executor.compiler import settle_cache_keys
from autotune.executor.messages import open_problem, outcome_to_json, race_to_json, send, take_standard_output
from autotune.executor.problem import Problem, UnopenedError, classify, refusal
from autotune.space import Config
from autotune.trial import Policy, Status


def open_requested(request: dict[str, Any], policy: Policy, own_pid: int | None, messages: BinaryIO) -> Problem | None:
    """Open a problem and say that it is open, or why it is not: that is no verdict on a config."""
    torch.cuda.empty_cache()
    try:
        problem = Problem(*open_problem(request["problem"]), policy, own_pid)
    except Exception as error:
        reason = str(error) if isinstance(error, UnopenedError) else one_line(error)
        send(messages, {"unopened": reason, "number": request["number"]})
        return None
    send(messages, {"opened": True, "number": request["number"]})
    return problem


def screen(problem: Problem, request: dict[str, Any], messages: BinaryIO) -> None:
    """Answer with a verdict; an exception is one too, and one that broke the context ends the process."""
    config = Config(request["configs"][0])
    try:
        outcome = problem.screen(config, early_stop=request["early_stop"])
    except Exception as error:
        outcome = refusal(config, error)
    send(messages, {"outcome": outcome_to_json(outcome)})
    if outcome.status is Status.ILLEGAL_ACCESS:
        os._exit(1)


def race(problem: Problem, request: dict[str, Any], messages: BinaryIO) -> None:
    """Say before each step whom it works on, so that the parent knows who ended it; then answer with the race."""
    configs = [Config(config) for config in request["configs"]]
    try:
        found = problem.race(
            configs,
            seconds=request["seconds"],
            baselines=request["baselines"],
            without=request["without"],
            announce=lambda turn: send(messages, {"working_on": turn}),
        )
    except UnopenedError as error:
        send(messages, {"unopened": str(error)})
    except Exception as error:
        status = classify(error)
        send(messages, {"status": status, "message": one_line(error)})
        if status is Status.ILLEGAL_ACCESS:
            os._exit(1)
    else:
        send(messages, {"race": race_to_json(found)})


def main() -> None:
    """Entry of the child: once told to start, says who it is, then answers until its input ends."""
    policy = Policy(**json.loads(sys.argv[1]))
    messages = take_standard_output()
    settle_cache_keys()
    tools = hardware.toolchain()  # asks the assembler, so before there is haste
    if not sys.stdin.buffer.readline():
        return  # it was never needed
    own_pid = hardware.open_context()
    send(messages, {"device": asdict(hardware.current_device()), "toolchain": asdict(tools)})
    problem: Problem | None = None
    with torch.no_grad():
        for line in sys.stdin.buffer:
            request = json.loads(line)
            if request["do"] == "open":
                problem = None  # frees the last problem's inputs before the next are made
                problem = open_requested(request, policy, own_pid, messages)
                continue
            assert problem is not None
            (screen if request["do"] == "screen" else race)(problem, request, messages)


if __name__ == "__main__":
    main()
