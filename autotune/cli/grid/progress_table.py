"""The progress of a grid as sheets, as JSON, and as what a terminal draws again and again."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from autotune.errors import printable
from autotune.grid.progress import STATES, DeviceProgress, GridProgress, RunnerProgress
from autotune.sheets import Sheet, number, text
from autotune.units import duration_text, few_text

MAX_FAILURES: Final = 3


def progress_sheets(found: GridProgress, title: str) -> list[Sheet]:
    """Return the tables of a grid's progress: by what it runs on, and what is left by kind of device."""
    failures = [f"failed: {task}: {message}" for task, message in found.failures]
    notes = failures[:MAX_FAILURES] + [f"failed: {len(failures) - MAX_FAILURES} more; --json has all"] * (
        len(failures) > MAX_FAILURES
    )
    return [
        Sheet(
            f"{title}: {counts_text(found.states) or 'nothing begun'}",
            (
                *(text("device"), text("power cap"), text("toolchain"), number("hosts")),
                *(number(state) for state in STATES),
                *(number("GPU hours", ",.2f"), text("trials")),
            ),
            tuple(map(_runner_cells, found.runners)),
            tuple(notes),
        ),
        Sheet(
            "Left",
            (text("device"), number("tasks"), number("GPUs at work"), text("GPU time"), text("time")),
            tuple(map(_device_cells, found.devices)),
        ),
    ]


def sheet_lines(sheets: Iterable[Sheet]) -> Group:
    """Return sheets as what a terminal draws again and again."""
    parts: list[Text | Table] = []
    for sheet in sheets:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in sheet.columns:
            table.add_column(column.name, justify="left" if column.is_text else "right")
        for row in sheet.texts():
            table.add_row(*(Text(printable(cell)) for cell in row))
        parts += [Text(printable(sheet.title), style="bold"), table, *map(Text, map(printable, sheet.notes)), Text("")]
    return Group(*parts)


def progress_data(found: GridProgress) -> dict[str, Any]:
    """Return the progress as plain data for JSON."""
    return {
        "states": {state: found.states.get(state, 0) for state in STATES},
        "trials": dict(found.trials),
        "runners": [{**asdict(each), **each.runner._asdict()} for each in found.runners],
        "devices": [asdict(each) for each in found.devices],
        "failures": [{"task": task, "message": message} for task, message in found.failures],
        "is_whole": found.is_whole,
    }


def counts_text(counts: Mapping[Any, int]) -> str:
    """Return counts in a line: ``5 done, 1 lost``."""
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


def _runner_cells(each: RunnerProgress) -> tuple[Any, ...]:
    device, cap, toolchain, executor = each.runner
    name = f"{device or 'any'}{', replayed' if executor == 'replay' else ''}"
    said = f"{cap:g} W" if cap is not None else ""
    trials = few_text([f"{count:,} {status}" for status, count in each.trials.items()], limit=4)
    states = (each.states.get(state, 0) for state in STATES)
    hours = None if executor == "replay" else each.seconds / 3600  # recorded sweeps answer on no GPU
    return (name, said, toolchain, each.hosts, *states, hours, trials)


def _device_cells(each: DeviceProgress) -> tuple[Any, ...]:
    gpu, left = (
        "not known" if seconds is None else duration_text(seconds)
        for seconds in (each.gpu_seconds_left, each.seconds_left)
    )
    return (each.device or "any", each.left, each.running, gpu, left)
