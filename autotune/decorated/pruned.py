"""``prune_configs_by`` as Triton's autotuner applies it, over the arguments of a shape."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from autotune.errors import UsageError

KEYS: Final = ("early_config_prune", "perf_model", "top_k")


class Pruning:
    """The functions of ``prune_configs_by``."""

    def __init__(self, given: Mapping[str, Any] | None, names: Sequence[str]) -> None:
        given = given or {}
        if unknown := [name for name in given if name not in KEYS]:
            raise UsageError(f"prune_configs_by has {unknown[0]!r}; expected {', '.join(KEYS)}")
        self._early, self._model = given.get("early_config_prune"), given.get("perf_model")
        self._top = 1.0 if given.get("top_k") is None else given["top_k"]
        self._names = frozenset(names)
        for name in KEYS[:2]:
            if given.get(name) is not None and not callable(given[name]):
                raise UsageError(f"prune_configs_by[{name!r}]={given[name]!r} is not allowed; expected a function")
        is_share = isinstance(self._top, float) and 0 < self._top <= 1
        if not is_share and not (type(self._top) is int and self._top >= 1):
            raise UsageError(f"prune_configs_by['top_k']={self._top!r} is not allowed; expected a share or a count")

    @property
    def is_empty(self) -> bool:
        return self._early is None and self._model is None

    def kept(self, configs: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        """Return those of Triton's configs that are left for arguments, the likeliest first where a model says so.

        Raises:
            UsageError: none is left, or one of the functions raised.
        """
        try:
            return self._kept(configs, named)
        except UsageError:
            raise
        except Exception as error:
            raise UsageError(f"prune_configs_by raised {type(error).__name__}: {error}") from error

    def _kept(self, configs: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        found = list(configs)
        if self._early is not None:
            found = list(self._early(list(configs), dict(named), **_taken_by_name(self._early, named)))
            if not found:
                raise UsageError("prune_configs_by['early_config_prune'] left no config; expected at least one")
        if self._model is None:
            return found
        count = max(1, int(len(configs) * self._top)) if isinstance(self._top, float) else self._top
        if len(found) > count:
            times = [self._model(**named, **each.all_kwargs()) for each in found]
            order = sorted(range(len(found)), key=times.__getitem__)
            found = [found[place] for place in order[:count]]
        return found


def _taken_by_name(function: Callable[..., Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that a pruning function takes beside the configs and the arguments.

    Triton gives it those that a launch passes by name, which is a matter of the launch: here it is given all.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # of a function in C
        return {}
    others = [each.name for each in parameters[2:] if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        first = {each.name for each in parameters[:2] if each.kind is not each.VAR_KEYWORD}
        return {name: value for name, value in named.items() if name not in first}
    return {name: named[name] for name in others if name in named}
