"""``prune_configs_by`` as Triton's autotuner applies it, over the arguments of a shape."""

from collections.abc import Mapping, Sequence
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
        self._top = given.get("top_k", 1.0)
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
            found = list(self._early(list(configs), dict(named)))
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
