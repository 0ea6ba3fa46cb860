"""The progress of a grid as sheets, as JSON, and as a table that lives in the terminal while a grid runs."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from autotune.errors import printable
from autotune.grid.attempt import Attempt, AttemptEnd
from autotune.grid.grid_task import GridTask
from autotune.grid.progress import STATES, DeviceProgress, GridProgress, Ledger, RunnerProgress
from autotune.sheets import Sheet, number, text
from autotune.units import duration_text, few_text

MAX_FAILURES: Final = 3


class LiveProgress:
    """Implements ``GridObserver`` as a table on a terminal; elsewhere each study that ends is a line.

    Example:
        >>> with LiveProgress(console, tasks, title="llama") as observer:
        ...     run_on_ray(tasks, place, observer=observer)
    """

    def __init__(self, console: Console, tasks: list[GridTask], *, title: str) -> None:
        self._console, self._title, self._ledger = console, title, Ledger(tasks)
        is_live = console.is_terminal
        self._live = Live(console=console, get_renderable=self._draw, refresh_per_second=1) if is_live else None

    def __enter__(self) -> "LiveProgress":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def on_begun(self, task: GridTask, attempt: Attempt) -> None:
        self._ledger.add([attempt], [])

    def on_ended(self, task: GridTask, ending: AttemptEnd) -> None:
        self._ledger.add([], [ending])
        if self._live is None:
            reason = f": {ending.message}" if ending.message else ""
            self._console.print(f"{ending.state:9} {task}, {duration_text(ending.seconds)}{reason}")

    def _draw(self) -> Group:
        return progress_lines(self._ledger.progress(datetime.now(UTC)), self._title)


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
            (text("device"), number("studies"), number("GPUs at work"), text("GPU time"), text("time")),
            tuple(map(_device_cells, found.devices)),
        ),
    ]


def progress_lines(found: GridProgress, title: str) -> Group:
    """Return the same for a terminal that is drawn again and again."""
    parts: list[Text | Table] = []
    for sheet in progress_sheets(found, title):
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
    device, cap, toolchain = each.runner
    said = f"{cap:g} W" if cap is not None else ""
    trials = few_text([f"{count:,} {status}" for status, count in each.trials.items()], limit=4)
    states = (each.states.get(state, 0) for state in STATES)
    return (device or "any", said, toolchain, each.hosts, *states, each.seconds / 3600, trials)


def _device_cells(each: DeviceProgress) -> tuple[Any, ...]:
    gpu, left = (
        "not known" if seconds is None else duration_text(seconds)
        for seconds in (each.gpu_seconds_left, each.seconds_left)
    )
    return (each.device or "any", each.left, each.running, gpu, left)
