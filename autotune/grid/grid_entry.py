"""Entries of a grid file: the keys of a table, the values that each takes, and the table as plain data."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, get_args

from autotune.console.options import parse_seconds
from autotune.console.shape_options import DECLARATIONS, parse_sizes
from autotune.errors import UsageError
from autotune.search import DEFAULT_SAMPLER, Sampler
from autotune.search.result import MIN_RACE_SECONDS
from autotune.trial import LARGEST_SEED

# Lists may be given as a single value, under either name.
PLURALS: Final = {
    "device": "devices",
    "model": "models",
    "operation": "operations",
    "length": "lengths",
    "batch": "batches",
    "dtype": "dtypes",
    "shape": "shapes",
    "implementation": "implementations",
}
NO_LIMIT: Final = "none"  # of a budget; no other key has a value of this meaning
# The options of `autotune search` that have their name in a grid, one value or a list of them.
OPTIONS: Final = tuple(name for name in DECLARATIONS if name not in (*PLURALS, "kernel", "seq", "context"))
EXPECTED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("models", "operations", "dtypes", "shapes"), "a text or a list of texts"),
    **dict.fromkeys(("lengths", "batches"), 'sizes such as 1024, [512, 1024] or "512,...,16384"'),
    **dict.fromkeys(("implementations", "devices", "import"), "a text or a list of texts"),
    "budget": f'more than {MIN_RACE_SECONDS:g} seconds, which are for its race, "90s", "2m" or "{NO_LIMIT}"',
    "trials": "an integer from 1",
    "sampler": " or ".join(map(repr, get_args(Sampler))),
    "seed": f"an integer from 0 to {LARGEST_SEED}",
    "priority": "an integer",
    **dict.fromkeys(OPTIONS, "a value of this option of autotune search, or a list of them"),
}
_KEYS: Final = {**PLURALS, "seq": "lengths", "context": "lengths"}  # of the options that errors name


@dataclass(frozen=True, slots=True, kw_only=True)
class GridEntry:
    """One table of a grid, checked: each list a tuple, sizes as text, the other shape options by name."""

    models: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()
    lengths: str | None = None
    batches: str | None = None
    dtypes: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()
    options: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    implementations: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    budget: float | None = 60.0
    trials: int | None = None
    sampler: Sampler = DEFAULT_SAMPLER
    seed: int = 0
    priority: int = 0

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> "GridEntry":
        """Make the entry of a table whose values ``check_value`` has returned."""
        own = {name: value for name, value in table.items() if name not in (*OPTIONS, "import")}
        return cls(**own, options={name: table[name] for name in OPTIONS if name in table})


def check_value(key: str, value: Any, where: str, *, typed: str) -> Any:
    """Return a value in the form of ``GridEntry``; UsageError, with the key as ``typed``, for another."""
    with naming(where, typed):
        found = _check_of(key)(value)
    if found is None and (key, value) != ("budget", NO_LIMIT):
        raise UsageError(f"{where}: {typed}={value!r} is not allowed; expected {EXPECTED[key]}")
    return found


@contextmanager
def naming(where: str, key: str = "") -> Iterator[None]:
    """Say in errors where in a file they come from; an option is named by its key: ``--seq=5`` is ``lengths=5``."""
    try:
        yield
    except UsageError as error:
        said = re.sub(
            r"(?<![\w.])(?:--)?(no-)?([a-z][a-z_-]*)=",
            lambda match: f"{match[1] or ''}{_KEYS.get(match[2], match[2].replace('-', '_'))}=",
            str(error),
        )
        prefix = f"{key}: " if key and not said.startswith(f"{key}=") else ""
        raise UsageError(f"{where}: {prefix}{said}") from error


def _texts(value: Any) -> tuple[str, ...] | None:
    values = value if isinstance(value, list) else [value]
    return tuple(values) if values and all(isinstance(each, str) and each for each in values) else None


def _sizes(name: str) -> Callable[[Any], str | None]:
    def check(value: Any) -> str | None:
        values = value if isinstance(value, list) else [value]
        if not values or not all(type(each) in (int, str) for each in values):
            return None
        text = ",".join(map(str, values))
        parse_sizes(text, name)
        return text

    return check


def _budget(value: Any) -> float | None:
    if value == NO_LIMIT:
        return None
    seconds = parse_seconds(value) if isinstance(value, str) else value
    return float(seconds) if type(seconds) in (int, float) and MIN_RACE_SECONDS < seconds < 1e9 else None


def _integer(low: float = -math.inf, high: float = math.inf) -> Callable[[Any], int | None]:
    return lambda value: value if type(value) is int and low <= value <= high else None


def _sampler(value: Any) -> str | None:
    return value if value in get_args(Sampler) else None


def _option(value: Any) -> tuple[Any, ...] | None:
    values = value if isinstance(value, list) else [value]
    return tuple(values) if values and all(type(each) in (int, str, bool) for each in values) else None


def _check_of(key: str) -> Callable[[Any], Any]:
    return _CHECKS.get(key, _option)


_CHECKS: Final[Mapping[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(("models", "operations", "dtypes", "shapes", "implementations", "devices", "import"), _texts),
    "lengths": _sizes("lengths"),
    "batches": _sizes("batches"),
    "budget": _budget,
    "trials": _integer(1),
    "sampler": _sampler,
    "seed": _integer(0, LARGEST_SEED),
    "priority": _integer(),
}
