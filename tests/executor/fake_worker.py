"""Stands in for ``autotune.executor.worker``: speaks its protocol without a GPU, and goes wrong as configs say.

The variable ``AUTOTUNE_TEST_WORKER`` makes it fail before it greets.
"""

import json
import os
import sys
import time
from dataclasses import asdict
from typing import Any, BinaryIO

from autotune.device import NVIDIA_H200
from autotune.executor import Baseline, Race
from autotune.executor.messages import die_with_parent, outcome_to_json, race_to_json, send, take_standard_output
from autotune.space import Config
from autotune.trial import Outcome, Status, Timing, Toolchain

START = "AUTOTUNE_TEST_WORKER"
TIMING = Timing(100.0, 99.0, 101.0, 20)


def screen(config: Config, messages: BinaryIO) -> None:
    outcome = Outcome(config=config, status=Status.OK, timing=TIMING)
    match config["run"]:
        case "hang":
            time.sleep(600)
        case "die":
            print("last words", file=sys.stderr, flush=True)
            os._exit(9)
        case "wrong":
            outcome = Outcome(config=config, status=Status.WRONG_RESULT, message="off by one", error=1.0)
        case "illegal":
            outcome = Outcome(config=config, status=Status.ILLEGAL_ACCESS, message="an illegal memory access")
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
    if config["run"] in ("illegal", "die_idle"):
        os._exit(1)


def race(configs: list[Config], messages: BinaryIO) -> None:
    runs = {config["run"] for config in configs}
    if "race_die" in runs:
        os._exit(9)
    if "race_hang" in runs:
        time.sleep(600)
    for run, status in (("race_illegal", Status.ILLEGAL_ACCESS), ("race_raise", Status.LAUNCH_ERROR)):
        if run in runs:
            send(messages, {"outcome": outcome_to_json(Outcome(config=configs[0], status=status, message=run))})
            if status is Status.ILLEGAL_ACCESS:
                os._exit(1)
            return
    outcomes = tuple(Outcome(config=config, status=Status.OK, timing=TIMING) for config in configs)
    send(messages, {"race": race_to_json(Race(outcomes, (Baseline("sdpa_flash", TIMING),)))})


def main() -> None:
    die_with_parent()
    messages = take_standard_output()
    match os.environ.get(START):
        case "die":
            sys.exit("the driver is gone")
        case "hang":
            time.sleep(600)
    send(messages, {"device": asdict(NVIDIA_H200), "toolchain": asdict(Toolchain("0", triton="3.6.0"))})
    problem: Any = None
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if request["do"] == "open":
            problem = request["problem"]
            continue
        assert problem is not None, "asked before a problem was opened"
        configs = [Config(config) for config in request["configs"]]
        if request["do"] == "screen":
            screen(configs[0], messages)
        else:
            race(configs, messages)


if __name__ == "__main__":
    main()
