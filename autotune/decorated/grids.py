"""The grid of a launch for every config: numbers, which other processes take where functions cannot go."""

from collections.abc import Callable, Mapping
from typing import Any

from autotune.decorated.configs import Configs
from autotune.decorated.recorded_call import Grid


def evaluate(grid: Any, kernel: Any, named: Mapping[str, Any], configs: Configs) -> tuple[Grid | None, ...]:
    """Return the grid of each listed config, for these arguments; None where the function raised.

    As at a launch, a function is given arguments, the config's parameters, and what heuristics below the decorator make
    of both.
    """
    heuristics = _heuristics(kernel)

    def of(config: Any) -> Grid | None:
        meta = {**named, **config.all_kwargs()}
        try:
            for name, function in heuristics.items():
                meta[name] = function(dict(meta))
            return tuple(int(each) for each in (grid(meta) if callable(grid) else grid))
        except Exception:  # of the user's functions: no launch of this config either
            return None

    return tuple(of(configs.triton_config(config)) for config in configs.listed)


def _heuristics(kernel: Any) -> dict[str, Callable[[Mapping[str, Any]], Any]]:
    found: dict[str, Callable[[Mapping[str, Any]], Any]] = {}
    while kernel is not None:
        values = getattr(kernel, "values", None)
        if isinstance(values, Mapping):
            found |= values
        kernel = getattr(kernel, "fn", None)
    return found
