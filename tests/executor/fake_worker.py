"""Stands in for ``autotune.executor.worker``: speaks its protocol without a GPU, and goes wrong as configs say.

The variable ``AUTOTUNE_TEST_WORKER`` names a file; what is written there makes it fail before it is asked anything. A
file of that name with the index of a GPU behind it, as in ``trouble.1``, is for the worker of that GPU alone.
"""

import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from autotune.device import NVIDIA_H200
from autotune.executor import BaselineResult, Race
from autotune.executor.child import send, take_standard_output
from autotune.executor.messages import (
    FromWorker,
    Identified,
    MachineFault,
    Opened,
    OpenProblem,
    RaceFailed,
    RunRace,
    Screen,
    Started,
    Unopened,
    WorkingOn,
    decode,
    encode,
)
from autotune.space import Config
from autotune.trial import Candidate, Conditions, Outcome, Status, Timing, Toolchain

TROUBLE = "AUTOTUNE_TEST_WORKER"
MEETING = "AUTOTUNE_TEST_MEETING"  # names a folder where the workers of two GPUs wait for each other
OTHER_KIND = replace(NVIDIA_H200, power_cap_watts=500)
BEST_US = 100.0


def timing(config: Config) -> Timing:
    """The same for all, but for the ``extra_us`` that a config may have."""
    median = BEST_US + (config.integer("extra_us") if "extra_us" in config else 0)
    return Timing(median, 0.999 * median, 1.001 * median, 20)


def answer(messages: BinaryIO, message: FromWorker) -> None:
    send(messages, encode(message))


def screen(candidate: Candidate, messages: BinaryIO) -> None:
    config = candidate.config
    outcome = Outcome(candidate=candidate, status=Status.OK, timing=timing(config), conditions=conditions())
    match config["run"]:
        case "meet":
            meet()
        case "hang":
            time.sleep(600)
        case "die":
            print("last words", file=sys.stderr, flush=True)
            os._exit(9)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "wrong":
            outcome = Outcome(candidate=candidate, status=Status.WRONG_RESULT, message="off by one", error=1.0)
        case "nan":
            outcome = Outcome(candidate=candidate, status=Status.NAN_RESULT, message="1 of 1 elements are NaN")
        case "illegal":
            outcome = Outcome(candidate=candidate, status=Status.ILLEGAL_ACCESS, message="an illegal memory access")
        case "trap":
            outcome = Outcome(candidate=candidate, status=Status.ILLEGAL_ACCESS, message="unspecified launch failure")
        case "print":
            print("noise on standard output", flush=True)
            os.write(1, b'{"outcome": "below Python"}\n')
        case "split":
            line = json.dumps(encode(outcome)).encode() + b"\n"
            messages.write(line[:20])
            time.sleep(0.05)
            messages.write(line[20:])
            return
        case "machine":
            answer(messages, MachineFault("OSError: no space left on device"))
            return
        case "slow_cases":
            answer(messages, WorkingOn(None))
            time.sleep(3.0)
            answer(messages, WorkingOn(0))
    answer(messages, outcome)
    if outcome.status is Status.ILLEGAL_ACCESS or config["run"] == "die_idle":
        os._exit(1)


def race(request: RunRace, messages: BinaryIO) -> None:
    answer(messages, WorkingOn(None))
    for place, candidate in enumerate(request.candidates):
        answer(messages, WorkingOn(place))
        match candidate.config["run"]:
            case "race_void" | "race_void_once" as run:
                answer(messages, WorkingOn(None))
                if run == "race_void" or request.baselines != "none":
                    os._exit(9)
            case "race_slow":
                time.sleep(0.8)
            case "race_die":
                os._exit(9)
            case "race_hang":
                time.sleep(600)
            case "race_illegal":
                answer(messages, RaceFailed(Status.ILLEGAL_ACCESS, "race_illegal"))
                os._exit(1)
            case "race_raise":
                return answer(messages, RaceFailed(Status.LAUNCH_ERROR, "race_raise"))
            case "race_unopened":
                return answer(messages, Unopened("the full shape does not fit"))
    outcomes = tuple(
        Outcome(candidate=candidate, status=Status.OK, timing=timing(candidate.config), conditions=conditions())
        for candidate in request.candidates
    )
    if request.baselines == "none":
        return answer(messages, Race(outcomes))
    names = [name for name in ("sdpa_flash", "sdpa_math") if name not in request.without]
    for name in names:
        answer(messages, WorkingOn(name))
        match request.candidates[-1].config["run"] if name == "sdpa_flash" else "fine":
            case "baseline_die":
                os._exit(9)
            case "baseline_hang":
                time.sleep(600)
            case "baseline_raise":
                return answer(messages, RaceFailed(Status.LAUNCH_ERROR, "refused"))
    results = tuple(BaselineResult(name, outcomes[0].timing) for name in names)
    return answer(messages, Race(outcomes, results))


def own_index() -> int:
    return int(json.loads(sys.argv[1])["index"])


def meet() -> None:
    """Wait until two GPUs have come here; they never wait again."""
    folder = Path(os.environ[MEETING])
    (folder / str(own_index())).touch()
    while len(list(folder.iterdir())) < 2:
        time.sleep(0.01)


def conditions() -> Conditions:
    match trouble():
        case "shared":
            return Conditions(contended=True)
        case "hot":
            return Conditions(throttle_reasons="power, thermal")
    return Conditions(throttle_reasons="power")


def trouble() -> str:
    path = os.environ.get(TROUBLE, "")
    paths = (Path(f"{path}.{own_index()}"), Path(path)) if path else ()
    return next((each.read_text() for each in paths if each.exists()), "")


def open_problem(request: OpenProblem, messages: BinaryIO) -> None:
    match trouble():
        case "die when opening":
            sys.exit("killed")
        case "hang when opening":
            time.sleep(600)
        case "refuse to open":
            return answer(messages, Unopened("out of memory", request.number))
    return answer(messages, Opened(request.number))


def main() -> None:
    messages = take_standard_output()
    if not sys.stdin.buffer.readline():
        return
    match trouble():
        case "die":
            sys.exit("the driver is gone")
        case "die once":
            Path(os.environ[TROUBLE]).unlink()
            sys.exit("killed for its memory")
        case "hang":
            time.sleep(600)
    device = OTHER_KIND if trouble() == "other kind" else NVIDIA_H200
    answer(messages, Identified(device, Toolchain("0", triton="3.6.0")))
    answer(messages, Started())
    is_open = False
    for line in sys.stdin.buffer:
        request = decode(json.loads(line))
        if isinstance(request, OpenProblem):
            open_problem(request, messages)
            is_open = True
            continue
        assert is_open, "asked before a problem was opened"
        if isinstance(request, Screen):
            screen(request.candidate, messages)
        else:
            assert isinstance(request, RunRace)
            race(request, messages)


if __name__ == "__main__":
    main()
