"""T4 documents of trials: the results format of the auto-tuning community (github.com/odgaard/TuningSchema, 1.0.0)."""

import math
import sys
from collections.abc import Sequence
from typing import Any, Final

from autotune.errors import UsageError
from autotune.table.exchange import INFINITE, KEY, to_document
from autotune.trial import Stage, Status, Trial

T4_VERSION: Final = "1.0.0"
_STATUSES: Final = {
    "correct": (Status.OK, Status.SLOW),
    "constraints": (Status.INVALID,),
    "compile": (Status.COMPILE_ERROR,),
    "timeout": (Status.COMPILE_TIMEOUT, Status.HANG),
    "runtime": (
        *(Status.OUT_OF_RESOURCES, Status.LAUNCH_ERROR, Status.ILLEGAL_ACCESS),
        *(Status.OUT_OF_MEMORY, Status.WORKER_DIED),
    ),
    "correctness": (Status.WRONG_RESULT, Status.NAN_RESULT, Status.NONDETERMINISTIC, Status.IMPLAUSIBLE),
}
INVALIDITY: Final = {status: name for name, statuses in _STATUSES.items() for status in statuses}


def to_t4(trials: Sequence[Trial]) -> dict[str, Any]:
    """Return a T4 document: one result for each trial of one shape on one device, all times in milliseconds.

    Where trials were screened and some raced, the screening stands: every config has it, and a race compares only its
    own. Parameters that do not apply to the device are left out. All rows stand once more in ``metadata``, under
    ``autotune``, as ``to_document`` has them, for ``from_json`` to read back.

    Raises:
        UsageError: the trials are of several implementations, shapes or devices, or there is none.
    """
    problems = [*{(f"{t.operation}/{t.implementation}", t.shape, t.device, t.policy): None for t in trials}]
    if len(problems) != 1:
        found = "; ".join(f"{name} {shape} on {device.name}" for name, shape, device, _ in problems) or "no trials"
        raise UsageError(f"a T4 document is of one implementation and one shape on one device, got {found}")
    kernel, shape, device, _ = problems[0]
    screened = [trial for trial in trials if trial.stage is Stage.SCREEN]
    return {
        "schema_version": T4_VERSION,
        "metadata": {
            "timeunit": "milliseconds",
            "kernel": kernel,
            "problem": str(shape),
            "device": device.name,
            "tool": f"attention-autotune {trials[0].toolchain.tool}",
            KEY: to_document(trials),
        },
        "results": [_result(trial) for trial in screened or trials],
    }


def _result(trial: Trial) -> dict[str, Any]:
    outcome, timing = trial.outcome, trial.timing
    invalidity = INVALIDITY[trial.status]
    compilation = _milliseconds(outcome.compile_seconds)
    return {
        "timestamp": trial.started_at.isoformat(),
        "configuration": {name: value for name, value in trial.config.items() if value is not None},
        "objectives": ["time"],
        "times": {
            "compilation_time": compilation,
            "compilation": compilation,  # the schema's name, and that of Kernel Tuner 1.5, which writes it so
            "benchmark": _milliseconds(outcome.judge_seconds),  # numbers and time together
            "validation": 0.0,
            "framework": 0.0,
            "search_algorithm": 0.0,
            "runtimes": [] if timing is None else [timing.median_us / 1000],
        },
        "invalidity": invalidity,
        "correctness": 1 if invalidity == "correct" else 0,
        "measurements": [
            {"name": name, "value": value, "unit": unit} for name, value, unit in _measured(trial) if value is not None
        ],
    }


def _milliseconds(seconds: float | None) -> float:
    return min(1000 * (seconds or 0.0), sys.float_info.max)  # JSON has no infinity


def _measured(trial: Trial) -> list[tuple[str, float | int | str | None, str]]:
    """Return names, values and units; None where a value is unknown."""
    outcome, timing = trial.outcome, trial.timing
    times = () if timing is None else (timing.median_us, timing.low_us, timing.high_us)
    return [
        *((name, time / 1000, "ms") for name, time in zip(("time", "time_low", "time_high"), times, strict=False)),
        ("samples", None if timing is None else timing.samples, ""),
        ("tflops", trial.tflops, "TFLOP/s"),
        ("gbps", trial.gbps, "GB/s"),
        ("max_error", INFINITE if outcome.error == math.inf else outcome.error, ""),
        ("shared_memory", outcome.resources.shared_bytes, "bytes"),
        ("registers", outcome.resources.registers, ""),
        ("spills", outcome.resources.spill_bytes, "bytes"),
        ("status", trial.status.value, ""),
    ]
