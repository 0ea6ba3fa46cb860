"""Trials for other programs: ``json``, ``csv`` and what kernels are given as text; T4 documents as plain data.

T4 is the results format of the auto-tuning community (github.com/odgaard/TuningSchema, version 1.0.0).
"""

import csv
import io
import json
from collections.abc import Sequence
from typing import Any, Final

from autotune.errors import UnknownNameError, UsageError, printable
from autotune.registry import get_implementation, implementations_of, operation_names
from autotune.table.rows import moment_of, to_columns
from autotune.table.schema import table_schema
from autotune.trial import Stage, Status, Timing, Trial

FORMS: Final = ("csv", "json", "triton", "kernel_options")
# Triton takes these beside the dictionary of a config; all others, AMD's included, are entries of it.
LAUNCH_OPTIONS: Final = ("num_warps", "num_stages", "num_ctas", "maxnreg")
FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r")
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


def export(trials: Sequence[Trial], form: str) -> str:
    """Return winners of one implementation as text: ``csv``, ``json``, ``triton`` or ``kernel_options``.

    ``csv`` and ``json`` have the columns of the tables; ``started_at`` is in ISO 8601. In ``csv`` what is no visible
    character is a question mark, and a text that a spreadsheet would compute stands behind a quote.
    ``triton`` is Python source that needs only triton: ``CONFIGS``, one ``triton.Config`` for each distinct config,
    below a comment for each winner that has it; parameters that do not apply are left out. ``kernel_options`` is a JSON
    list of the winners of ``flex``, torch's FlexAttention: each has its ``shape``, ``device``, ``power_cap_watts`` and
    ``torch``, the medians ``median_us`` and ``default_us`` of one race, and the ``kernel_options`` to pass to torch's
    function of that name.

    Raises:
        UnknownNameError: no such form.
        UsageError: the trials are of several implementations, there is none, one has no time, or the form is not
            theirs.
        TableError: a trial holds an impossible value.
    """
    if form not in FORMS:
        raise UnknownNameError(f"form={form!r} is unknown; allowed: {', '.join(FORMS)}")
    owners = {(trial.operation, trial.implementation) for trial in trials}
    if len(owners) != 1:
        found = ", ".join(sorted(map("/".join, owners))) or "no trials"
        raise UsageError(f"an export is of one implementation, got {found}")
    if form == "triton":
        return _triton_source(trials)
    if form == "kernel_options":
        return _kernel_options_text(trials)
    schema = table_schema(get_implementation(*owners.pop()))
    columns = to_columns(schema, trials, "export")
    columns["started_at"] = [moment_of(microseconds).isoformat() for microseconds in columns["started_at"]]
    rows = list(zip(*columns.values(), strict=True))
    if form == "json":
        named = [dict(zip(columns, row, strict=True)) for row in rows]
        return json.dumps({**schema.metadata, "rows": named}, indent=2) + "\n"
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n").writerows(
        [tuple(columns), *(map(_cell, row) for row in rows)]
    )
    return text.getvalue()


def _cell(value: Any) -> Any:
    """Return a value as a cell of CSV: of a text that a spreadsheet would compute or send, the same behind a quote."""
    if not isinstance(value, str):
        return value
    return f"'{printable(value)}" if value.startswith(FORMULA_STARTS) else printable(value)


def _triton_source(trials: Sequence[Trial]) -> str:
    owner = printable(f"{trials[0].operation}/{trials[0].implementation}")
    title = f"# Winners of {owner}, written by `autotune export`: shape; device; median; source."
    lines = [title, "import triton", "", "CONFIGS = ["]
    for config in dict.fromkeys(trial.config for trial in trials):
        lines += [f"    # {_comment(trial)}" for trial in trials if trial.config == config]
        given = {name: value for name, value in config.items() if value is not None}
        options = "".join(f", {name}={given.pop(name)!r}" for name in LAUNCH_OPTIONS if name in given)
        lines.append(f"    triton.Config({given!r}{options}),")
    return "\n".join([*lines, "]", ""])


def _kernel_options_text(trials: Sequence[Trial]) -> str:
    own = get_implementation(trials[0].operation, trials[0].implementation)
    if (options_of := own.export_options) is None:
        every = (each for name in operation_names() for each in implementations_of(name))
        takers = " or ".join(each.title for each in every if each.export_options is not None)
        raise UsageError(f"form='kernel_options' is for {takers}, whose kernel takes them; got {own.title}")
    winners = [
        {
            "shape": trial.shape.as_dict(),
            "device": trial.device.name,
            "power_cap_watts": trial.device.power_cap_watts,
            "torch": trial.toolchain.torch,
            "median_us": _timing(trial).median_us,
            "default_us": None if trial.default_timing is None else trial.default_timing.median_us,
            "kernel_options": options_of(trial.config),
        }
        for trial in trials
    ]
    return json.dumps(winners, indent=2) + "\n"


def _timing(trial: Trial) -> Timing:
    if trial.timing is None:
        raise UsageError(f"config={trial.config} has no time: only winners are exported as what kernels are given")
    return trial.timing


def _comment(trial: Trial) -> str:
    device = trial.device
    cap = "" if device.power_cap_watts is None else f" at {device.power_cap_watts} W"
    source = f"{trial.executor} race {trial.race_id} of {trial.started_at:%Y-%m-%d}, triton {trial.toolchain.triton}"
    median = f"{_timing(trial).median_us:.4g} us"
    return printable(f"{trial.shape}; {device.name}{cap}; {median}; {source}, source {trial.source_hash[:12]}")


def to_t4(trials: Sequence[Trial]) -> dict[str, Any]:
    """Return a T4 document: one result for each trial of one shape on one device, all times in milliseconds.

    Where trials were screened and some raced, the screening stands: every config has it, and a race compares only its
    own. Parameters that do not apply to the device are left out.

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
        },
        "results": [_result(trial) for trial in screened or trials],
    }


def _result(trial: Trial) -> dict[str, Any]:
    outcome, timing = trial.outcome, trial.timing
    invalidity = INVALIDITY[trial.status]
    compilation = 1000 * (outcome.compile_seconds or 0.0)
    return {
        "timestamp": trial.started_at.isoformat(),
        "configuration": {name: value for name, value in trial.config.items() if value is not None},
        "objectives": ["time"],
        "times": {
            "compilation_time": compilation,
            "compilation": compilation,  # the schema's name, and that of Kernel Tuner 1.5, which writes it so
            "benchmark": 1000 * (outcome.judge_seconds or 0.0),  # numbers and time together
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


def _measured(trial: Trial) -> list[tuple[str, float | int | str | None, str]]:
    """Return names, values and units; None where a value is unknown."""
    outcome, timing = trial.outcome, trial.timing
    times = () if timing is None else (timing.median_us, timing.low_us, timing.high_us)
    return [
        *((name, time / 1000, "ms") for name, time in zip(("time", "time_low", "time_high"), times, strict=False)),
        ("samples", None if timing is None else timing.samples, ""),
        ("tflops", trial.tflops, "TFLOP/s"),
        ("gbps", trial.gbps, "GB/s"),
        ("max_error", outcome.error, ""),
        ("shared_memory", outcome.resources.shared_bytes, "bytes"),
        ("registers", outcome.resources.registers, ""),
        ("spills", outcome.resources.spill_bytes, "bytes"),
        ("status", trial.status.value, ""),
    ]
