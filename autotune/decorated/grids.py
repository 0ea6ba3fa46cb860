"""The grid of a launch for every config: numbers, which other processes take where functions cannot go."""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from autotune.decorated.configs import Configs
from autotune.decorated.recorded_call import Grid
from autotune.errors import UsageError, suggestion
from autotune.space import Config

DIMENSIONS: Final = 3
CHECKED: Final = 256  # configs at most, of which a list has some dozens


def evaluate(grid: Any, kernel: Any, named: Mapping[str, Any], configs: Configs) -> tuple[Grid | None, ...]:
    """Return the grid of each listed config, for these arguments; None where the function raised.

    As at a launch, a function is given arguments, the config's parameters, and what heuristics below the decorator make
    of both.
    """

    def of(config: Any) -> Grid | None:
        try:
            return tuple(int(each) for each in _evaluate(grid, kernel, named, config))
        except Exception:  # of the user's functions: no launch of this config either
            return None

    return tuple(of(configs.triton_config(config)) for config in configs.listed)


def require_grid(
    name: str,
    grid: Any,
    kernel: Any,
    named: Mapping[str, Any],
    configs: Configs,
    kept: Sequence[Config],
    *,
    first: bool,
) -> None:
    """Validate the grids of these configs as far as they can be known, for arguments whose tensors have no data.

    Args:
        first: the first config must launch, as it is what others are compared with.

    Raises:
        UsageError: a grid reads what is no parameter, is no one to three integers, or each launches nothing.
    """
    found = [_numbers(name, grid, kernel, named, configs.triton_config(each), each) for each in kept[:CHECKED]]
    is_empty = [each is not None and min(each) < 1 for each in found]
    if all(is_empty) or (first and is_empty[0]):
        raise UsageError(f"{name}: grid= gives {found[0]} for {kept[0]}; expected integers from 1")


def _numbers(
    name: str, grid: Any, kernel: Any, named: Mapping[str, Any], chosen: Any, config: Config
) -> tuple[int, ...] | None:
    """Return a grid's numbers; None where it needs a tensor's data, or raises for more than a misspelt name."""
    try:
        found = _evaluate(grid, kernel, named, chosen)
    except KeyError as error:
        wanted = error.args[0] if error.args else None
        if not isinstance(wanted, str) or wanted in named or wanted in chosen.all_kwargs():
            return None
        known = (*named, *config)
        expected = f"expected some of {', '.join(known)}"
        raise UsageError(f"{name}: grid= reads {wanted!r}{suggestion(wanted, known)}; {expected}") from None
    except Exception:  # of the user's function: a launch has tensors with data, and a failure there is a row
        return None
    if not isinstance(found, tuple | list) or not 1 <= len(found) <= DIMENSIONS:
        raise UsageError(f"{name}: grid= gives {found!r} for {config}; expected one to three integers")
    if any(isinstance(each, float) for each in found):
        raise UsageError(f"{name}: grid= gives {found!r} for {config}; expected integers")
    try:
        return tuple(map(operator.index, found))
    except Exception:  # of a tensor without data
        return None


def _evaluate(grid: Any, kernel: Any, named: Mapping[str, Any], config: Any) -> Any:
    meta = {**named, **config.all_kwargs()}
    for name, function in _heuristics(kernel).items():
        meta[name] = function(dict(meta))
    return grid(meta) if callable(grid) else grid


def _heuristics(kernel: Any) -> dict[str, Callable[[Mapping[str, Any]], Any]]:
    found: dict[str, Callable[[Mapping[str, Any]], Any]] = {}
    while kernel is not None:
        values = getattr(kernel, "values", None)
        if isinstance(values, Mapping):
            found |= values
        kernel = getattr(kernel, "fn", None)
    return found
