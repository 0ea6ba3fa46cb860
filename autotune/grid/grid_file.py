"""Grid files: TOML that lists what is to be tuned, as the product of a few lists.

::

    devices = ["NVIDIA H200"]
    budget = "60s"
    [[grid]]
    models = ["llama-3.1-8b", "qwen2.5-7b"]
    lengths = "512,...,16384"

What stands above the first ``[[grid]]`` holds in each that does not say otherwise. docs/fleets.md lists the keys.
"""

import difflib
import itertools
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from autotune import platforms
from autotune.console.command import import_module
from autotune.errors import UsageError
from autotune.grid.grid_entry import EXPECTED, PLURALS, GridEntry, check_value, naming
from autotune.grid.grid_problems import problems_of
from autotune.grid.grid_task import GridTask
from autotune.operation import Operation
from autotune.shape import Shape

TABLE: Final = "grid"
IMPORT: Final = "import"
DEFAULT_TRIALS: Final = 120


class Grid(NamedTuple):
    """The tasks of a file, those of a higher priority first, and notes on what they leave out."""

    tasks: list[GridTask]
    notes: tuple[str, ...]


def read_grid(path: Path) -> list[GridTask]:
    """Return the tasks of a grid file, each once, those of a higher priority first.

    Modules that the file names by ``import`` are imported, which runs their code.

    Raises:
        UsageError: the file cannot be read, or is no grid; the message names the table, the key, the value and what is
            allowed.
    """
    return read_grid_file(path).tasks


def read_grid_file(path: Path) -> Grid:
    """Return what ``read_grid`` does, with notes."""
    given = _read_toml(path)
    tables = given.pop(TABLE, None)
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise UsageError(f"{path}: has no [[{TABLE}]]; expected one or more, with models, operations or shapes")
    _check_keys(given, f"{path}: above the first [[{TABLE}]]")
    found: dict[str, GridTask] = {}
    notes: dict[str, None] = {}
    for number, table in enumerate(tables, start=1):
        where = f"{path}: [[{TABLE}]] {number}"
        _check_keys(table, where)
        for name in (name for each in (given, table) for name in each.get(IMPORT, ())):
            with naming(where, IMPORT):
                import_module(name, f"{IMPORT}={name!r}")
        with naming(where):
            entry = GridEntry.of({**given, **table})
            problems, noted = problems_of(entry)
            notes |= dict.fromkeys(noted)
            for task in _tasks(entry, problems):
                known = found.setdefault(task.key, task)
                if task.priority > known.priority:
                    found[task.key] = task
    return Grid(sorted(found.values(), key=lambda task: -task.priority), tuple(notes))


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}; expected a grid as TOML") from None
    except (ValueError, RecursionError) as error:  # of the syntax, or of the encoding
        raise UsageError(f"{path}: is not TOML: {error}") from None


def _check_keys(table: dict[str, Any], where: str) -> None:
    """Refuse a key or value that no grid has, and give the keys their one name: ``operation`` is ``operations``."""
    for key in list(table):
        name = PLURALS.get(key, key)
        if name not in EXPECTED:
            near = difflib.get_close_matches(key, [*EXPECTED, *PLURALS], n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UsageError(f"{where}: {key}={table[key]!r} is not a key{hint}; allowed: {', '.join(EXPECTED)}")
        if name != key and name in table:
            raise UsageError(f"{where}: {key}={table[key]!r} and {name} are one key; leave one out")
        table[name] = check_value(name, table.pop(key), where, typed=key)


def _tasks(entry: GridEntry, problems: Iterable[tuple[Operation[Any], Shape]]) -> Iterator[GridTask]:
    """Yield a task for each problem on each device; one without a device may run on any."""
    devices = [_device_name(name) for name in entry.devices] or [""]
    trials = DEFAULT_TRIALS if entry.trials is None and entry.sampler != "exhaustive" else entry.trials
    for device, (operation, shape) in itertools.product(devices, problems):
        yield GridTask(
            operation=operation.name,
            shape=shape,
            device=device,
            implementations=entry.implementations,
            budget=entry.budget,
            trials=trials,
            sampler=entry.sampler,
            seed=entry.seed,
            priority=entry.priority,
        )


def _device_name(name: str) -> str:
    """Return the whole name of a known device, so that two spellings are one kind; another name stays as it is."""
    known = platforms.known_device(name)
    return name if known is None else known.name
