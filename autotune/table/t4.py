"""Trials in T4, the results format of the auto-tuning community (github.com/odgaard/TuningSchema, version 1.0.0)."""

from collections.abc import Sequence
from typing import Any, Final

from autotune.errors import UsageError
from autotune.trial import Outcome, Stage, Status, Timing, Trial

T4_VERSION: Final = "1.0.0"

INVALIDITY: Final = {
    Status.OK: "correct",
    Status.SLOW: "correct",
    Status.INVALID: "constraints",
    Status.COMPILE_ERROR: "compile",
    Status.COMPILE_TIMEOUT: "timeout",
    Status.HANG: "timeout",
    Status.OUT_OF_RESOURCES: "runtime",
    Status.LAUNCH_ERROR: "runtime",
    Status.ILLEGAL_ACCESS: "runtime",
    Status.OUT_OF_MEMORY: "runtime",
    Status.WORKER_DIED: "runtime",
    Status.WRONG_RESULT: "correctness",
    Status.NAN_RESULT: "correctness",
    Status.NONDETERMINISTIC: "correctness",
    Status.IMPLAUSIBLE: "correctness",
}


def to_t4(trials: Sequence[Trial]) -> dict[str, Any]:
    """Return a T4 document: one result for each trial of one shape on one device, all times in milliseconds.

    Where trials were screened and some raced, the screening stands: every config has it, and a race compares only its
    own. Parameters that do not apply to the device are left out.

    Raises:
        UsageError: the trials are of several implementations, shapes or devices, or there is none.
    """
    problems = list(
        dict.fromkeys(
            (f"{trial.operation}/{trial.implementation}", trial.shape, trial.device, trial.policy) for trial in trials
        )
    )
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
        },
        "results": [_result(trial) for trial in screened or trials],
    }


def _result(trial: Trial) -> dict[str, Any]:
    invalidity = INVALIDITY[trial.status]
    return {
        "timestamp": trial.started_at.isoformat(),
        "configuration": {name: value for name, value in trial.config.items() if value is not None},
        "objectives": ["time"],
        "times": _times(trial.outcome),
        "invalidity": invalidity,
        "correctness": 1 if invalidity == "correct" else 0,
        "measurements": _measurements(trial),
    }


def _times(outcome: Outcome) -> dict[str, Any]:
    compilation = _milliseconds(outcome.compile_seconds)
    return {
        "compilation_time": compilation,
        "compilation": compilation,  # the schema's name, and that of Kernel Tuner 1.5, which writes it so
        "benchmark": _milliseconds(outcome.judge_seconds),  # numbers and time together
        "validation": 0.0,
        "framework": 0.0,
        "search_algorithm": 0.0,
        "runtimes": [] if outcome.timing is None else [outcome.timing.median_us / 1000],
    }


def _measurements(trial: Trial) -> list[dict[str, Any]]:
    timing, resources = trial.timing, trial.outcome.resources
    found = {
        **_timing_measurements(timing),
        ("tflops", "TFLOP/s"): trial.tflops,
        ("gbps", "GB/s"): trial.gbps,
        ("max_error", ""): trial.outcome.error,
        ("shared_memory", "bytes"): resources.shared_bytes,
        ("registers", ""): resources.registers,
        ("spills", "bytes"): resources.spill_bytes,
        ("status", ""): trial.status.value,
    }
    return [{"name": name, "value": value, "unit": unit} for (name, unit), value in found.items() if value is not None]


def _timing_measurements(timing: Timing | None) -> dict[tuple[str, str], float | int | None]:
    if timing is None:
        return {}
    return {
        ("time", "ms"): timing.median_us / 1000,
        ("time_low", "ms"): timing.low_us / 1000,
        ("time_high", "ms"): timing.high_us / 1000,
        ("samples", ""): timing.samples,
    }


def _milliseconds(seconds: float | None) -> float:
    return 0.0 if seconds is None else 1000 * seconds
