"""The tasks of a running grid: a table that lives in the terminal, and elsewhere a line for each that ends."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from rich.console import Console, Group
from rich.live import Live

from autotune import platforms
from autotune.cli.grid.progress_table import counts_text, sheet_lines
from autotune.grid import GridTask
from autotune.grid.ray_engine import TaskState
from autotune.sheets import Sheet, number, text

SHOWN: Final[dict[TaskState, str]] = {"submitted": "running", "moved": "waiting"}  # others by their own names
COLUMNS: Final = ("waiting", "running", "done", "skipped", "failed", "interrupted", "superseded")


class LiveTasks:
    """Implements ``TaskObserver``: counts tasks by state, and prints how they ended and why they moved.

    Example:
        >>> with LiveTasks(make_console(), tasks, title="llama.toml") as observer:
        ...     run_on_ray(tasks, place, observer=observer)
    """

    def __init__(self, console: Console, tasks: Iterable[GridTask], *, title: str) -> None:
        self._console, self._title = console, title
        self._states = {task.key: (task.device, "waiting") for task in tasks}
        self._missing: dict[str, int] = {}
        is_live = console.is_terminal
        self._live = Live(console=console, get_renderable=self._draw, refresh_per_second=1) if is_live else None

    def __enter__(self) -> "LiveTasks":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def on_task(self, task: GridTask, state: TaskState, message: str = "") -> None:
        """Count a task; print a line, but for what was only handed over or left out, and for what the table says."""
        self._states[task.key] = task.device, SHOWN.get(state, state)
        if state == "submitted":
            self._missing.pop(task.device, None)
        is_told = self._live is not None and state == "done" and not message
        if state not in ("submitted", "skipped") and not is_told:
            why = f": {message}" if message else ""
            left = sum(shown in ("waiting", "running") for _, shown in self._states.values())
            self._console.print(f"{state:<12}{task}{why} ({left} left)", markup=False)

    def on_missing(self, device: str, waiting: int) -> None:
        """Print that tasks wait for nodes, once as long as nothing changes."""
        if self._missing.get(device) != waiting:
            self._missing[device] = waiting
            unknown = bool(device) and platforms.known_device(device) is None
            tasks = f"{waiting} tasks: no node of Ray carries the label {device!r}"
            tasks += platforms.did_you_mean(device, platforms.known_devices()) if unknown else ""
            self._console.print(f"waiting     {tasks}", markup=False)

    def _draw(self) -> Group:
        return sheet_lines([self._sheet()])

    def _sheet(self) -> Sheet:
        found: dict[str, Counter[str]] = {}
        # A copy: the thread that draws is not the one that counts.
        for device, state in list(self._states.values()):
            found.setdefault(device, Counter())[state] += 1
        total = sum(found.values(), Counter[str]())
        rows = [(device or "any", *(each[state] for state in COLUMNS)) for device, each in sorted(found.items())]
        title = counts_text({state: total[state] for state in COLUMNS if total[state]})
        return Sheet(f"{self._title}: {title}", (text("device"), *map(number, COLUMNS)), tuple(rows))
