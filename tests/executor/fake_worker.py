"""Stands in for ``autotune.executor.worker``: speaks its protocol without a GPU, and goes wrong as configs say.

The variable ``AUTOTUNE_TEST_WORKER`` names a file; what is written there makes it fail before it is asked anything.
"""

import json
import os
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from autotune.device import NVIDIA_H200
from autotune.executor import BaselineResult, Baselines, Race
from autotune.executor.messages import outcome_to_json, race_to_json, send, take_standard_output
from autotune.space import Config
from autotune.trial import Outcome, Status, Timing, Toolchain

TROUBLE = "AUTOTUNE_TEST_WORKER"
BEST_US = 100.0


def timing(config: Config) -> Timing:
    """The same for all, but for the ``extra_us`` that a config may have."""
    median = BEST_US + (config.integer("extra_us") if "extra_us" in config else 0)
    return Timing(median, 0.999 * median, 1.001 * median, 20)


def screen(config: Config, messages: BinaryIO) -> None:
    outcome = Outcome(config=config, status=Status.OK, timing=timing(config))
    match config["run"]:
        case "hang":
            time.sleep(600)
        case "die":
            print("last words", file=sys.stderr, flush=True)
            os._exit(9)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "wrong":
            outcome = Outcome(config=config, status=Status.WRONG_RESULT, message="off by one", error=1.0)
        case "nan":
            outcome = Outcome(config=config, status=Status.NAN_RESULT, message="1 of 1 elements are NaN")
        case "illegal":
            outcome = Outcome(config=config, status=Status.ILLEGAL_ACCESS, message="an illegal memory access")
        case "trap":
            outcome = Outcome(config=config, status=Status.ILLEGAL_ACCESS, message="unspecified launch failure")
        case "print":
            print("noise on standard output", flush=True)
            os.write(1, b'{"outcome": "below Python"}\n')
        case "split":
            line = json.dumps({"outcome": outcome_to_json(outcome)}).encode() + b"\n"
            messages.write(line[:20])
            time.sleep(0.05)
            messages.write(line[20:])
            return
    send(messages, {"outcome": outcome_to_json(outcome)})
    if outcome.status is Status.ILLEGAL_ACCESS or config["run"] == "die_idle":
        os._exit(1)


def race(configs: list[Config], baselines: Baselines, without: list[str], messages: BinaryIO) -> None:
    send(messages, {"working_on": None})
    for place, config in enumerate(configs):
        send(messages, {"working_on": place})
        match config["run"]:
            case "race_void" | "race_void_once" as run:
                send(messages, {"working_on": None})
                if run == "race_void" or baselines != "none":
                    os._exit(9)
            case "race_slow":
                time.sleep(0.8)
            case "race_die":
                os._exit(9)
            case "race_hang":
                time.sleep(600)
            case "race_illegal":
                send(messages, {"status": Status.ILLEGAL_ACCESS, "message": "race_illegal"})
                os._exit(1)
            case "race_raise":
                return send(messages, {"status": Status.LAUNCH_ERROR, "message": "race_raise"})
            case "race_unopened":
                return send(messages, {"unopened": "the full shape does not fit"})
    outcomes = tuple(Outcome(config=config, status=Status.OK, timing=timing(config)) for config in configs)
    if baselines == "none":
        return send(messages, {"race": race_to_json(Race(outcomes))})
    names = [name for name in ("sdpa_flash", "sdpa_math") if name not in without]
    for name in names:
        send(messages, {"working_on": name})
        match configs[-1]["run"] if name == "sdpa_flash" else "fine":
            case "baseline_die":
                os._exit(9)
            case "baseline_hang":
                time.sleep(600)
            case "baseline_raise":
                return send(messages, {"status": Status.LAUNCH_ERROR, "message": "refused"})
    results = tuple(BaselineResult(name, outcomes[0].timing) for name in names)
    return send(messages, {"race": race_to_json(Race(outcomes, results))})


def trouble() -> str:
    path = os.environ.get(TROUBLE)
    return Path(path).read_text() if path and Path(path).exists() else ""


def open_problem(request: dict[str, Any], messages: BinaryIO) -> None:
    match trouble():
        case "die when opening":
            sys.exit("killed")
        case "hang when opening":
            time.sleep(600)
        case "refuse to open":
            return send(messages, {"unopened": "out of memory", "number": request["number"]})
    return send(messages, {"opened": True, "number": request["number"]})


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
    send(messages, {"device": asdict(NVIDIA_H200), "toolchain": asdict(Toolchain("0", triton="3.6.0"))})
    is_open = False
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if request["do"] == "open":
            open_problem(request, messages)
            is_open = True
            continue
        assert is_open, "asked before a problem was opened"
        configs = [Config(config) for config in request["configs"]]
        if request["do"] == "screen":
            screen(configs[0], messages)
        else:
            race(configs, request["baselines"], request["without"], messages)


if __name__ == "__main__":
    main()
