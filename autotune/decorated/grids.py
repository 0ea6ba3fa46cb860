"""The grid of a launch for every config: numbers, which other processes take where functions cannot go."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from autotune.decorated.configs import Configs
from autotune.decorated.recorded_call import Grid
from autotune.errors import UsageError, one_line

DIMENSIONS: Final = 3


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


def require_grid(name: str, grid: Any, kernel: Any, named: Mapping[str, Any], configs: Configs) -> None:
    """Validate the grid of the first config, for arguments whose tensors have no data; one that reads data passes.

    Raises:
        UsageError: it raised, or it is no one to three integers from 1.
    """
    first = configs.triton_config(configs.listed[0])
    try:
        found = _evaluate(grid, kernel, named, first)
    except RuntimeError:  # torch's, of a tensor on the device meta that is asked for its data
        return
    except Exception as error:  # of the user's function
        raise UsageError(f"{name}: grid= raised {one_line(error)} for {first}") from error
    is_grid = isinstance(found, tuple | list) and 1 <= len(found) <= DIMENSIONS
    if not is_grid or not all(isinstance(each, int) and each >= 1 for each in found):
        raise UsageError(f"{name}: grid= gives {found!r} for {first}; expected one to three integers from 1")


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
