"""Configs as Triton has them, and the space that they make: its members are listed, and pruned as Triton does."""

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from autotune.device import Device
from autotune.errors import InvalidConfigError, UsageError
from autotune.shape import Shape
from autotune.space import Config, Parameter, Space, Value

OPTIONS: Final = ("num_warps", "num_stages", "num_ctas", "maxnreg")
USUAL: Final[Mapping[str, Value]] = {"num_ctas": 1, "maxnreg": None}  # not worth a column where no config says else
ABSENT: Final = "-"  # of a config that does not have the parameter
MAX_CONFIGS: Final = 100_000


@dataclass(frozen=True, slots=True)
class ListedSpace(Space[Any]):
    """A space whose members are listed; the values of its parameters are those that some member has."""

    listed: tuple[Config, ...] = ()

    def combinations(self, device: Device) -> Iterator[Config]:
        """Yield every listed config, in the order of the list."""
        return iter(self.listed)

    def configs(self, shape: Shape, device: Device) -> Iterator[Config]:
        """Yield every valid config, in the order of the list."""
        return (config for config in self.listed if self.reject(config, shape, device) is None)


class Configs:
    """The configs of a decorated kernel: Triton's, by ours."""

    def __init__(self, given: Sequence[Any]) -> None:
        self.triton = list(given)
        options = [_options(each) for each in given]
        names = dict.fromkeys(name for each in options for name in each)
        plain = [
            name for name, usual in USUAL.items() if all(each.get(name, usual) == usual for each in options)
        ]  # everywhere as Triton has it by itself
        self.given = frozenset(names)  # of the kernel's parameters and options
        self.names = tuple(name for name in names if name not in plain)
        is_whole = {name: all(type(each.get(name)) is int for each in options) for name in self.names}
        self._ours: dict[Config, Any] = {}
        for each, values in zip(given, options, strict=True):
            ours = Config({name: _encode(values, name, is_whole=is_whole[name]) for name in self.names})
            first = self._ours.setdefault(ours, each)
            if first is not each and first.pre_hook is not each.pre_hook:
                raise UsageError(f"configs has {ours} twice, with another pre_hook each; leave one out")
        self.parameters = tuple(
            Parameter(name, tuple(dict.fromkeys(_value(each, name) for each in self._ours))) for name in self.names
        )
        self._by_identity = {id(each): ours for ours, each in self._ours.items()}

    @property
    def listed(self) -> tuple[Config, ...]:
        return tuple(self._ours)

    def triton_config(self, config: Config) -> Any:
        """Return Triton's config; InvalidConfigError where none of the list is that."""
        if (found := self._ours.get(config)) is None:
            raise InvalidConfigError(f"config={config} is none of the {len(self._ours)} listed")
        return found

    def ours(self, kept: Sequence[Any]) -> tuple[Config, ...]:
        """Return our configs of some of Triton's, each once; UsageError for others, which a pruning function made."""
        found = {}
        for each in kept:
            ours = self._by_identity.get(id(each)) or next(
                (key for key, old in self._ours.items() if old == each), None
            )
            if ours is None:
                raise UsageError(
                    f"prune_configs_by returned {each}, which is none of the configs; expected some of them"
                )
            found[ours] = each
        return tuple(found)


def _value(config: Config, name: str) -> int | str:
    value = config[name]
    assert value is not None  # ``_encode`` makes none
    return value


def _options(config: Any) -> dict[str, Any]:
    """Return the compile-time values of one of Triton's configs by name; UsageError for what is none."""
    values = getattr(config, "kwargs", None)
    if not isinstance(values, dict):
        raise UsageError(f"configs has {config!r}; expected triton.Config objects")
    if getattr(config, "ir_override", None) is not None:
        raise UsageError(f"configs has ir_override={config.ir_override!r}, which no table can hold; leave it out")
    options = {name: getattr(config, name, None) for name in OPTIONS}
    for name in ("num_warps", "num_ctas"):
        given = options[name]
        if given is not None and not _is_power_of_two(given):
            raise UsageError(f"configs has {name}={given!r}; expected a power of two")
    return {**values, **options}


def _is_power_of_two(given: Any) -> bool:
    try:
        count = operator.index(given)
    except TypeError:
        return False
    return count >= 1 and count.bit_count() == 1


def _encode(values: Mapping[str, Any], name: str, *, is_whole: bool) -> int | str:
    if is_whole:
        return int(values[name])
    return str(values[name]) if name in values else ABSENT


def make_configs(configs: Sequence[Any] | None, parameters: Mapping[str, Sequence[Any]] | None) -> Configs:
    """Make the configs of what the decorator was given.

    Raises:
        UsageError: both or none was given, or one is of a wrong form.
    """
    if (configs is None) == (parameters is None):
        raise UsageError("configs and parameters: expected one of them, a list of triton.Config or a dict of lists")
    if configs is not None:
        listed = list(configs)
        if not listed:
            raise UsageError("configs=[] is empty; expected at least one triton.Config")
        return Configs(listed)
    return Configs(_product(parameters or {}))


def _product(parameters: Mapping[str, Sequence[Any]]) -> list[Any]:
    """Return every combination of the values, as Triton's configs."""
    import triton

    count = 1
    for name, values in parameters.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise UsageError(f"parameters={{{name!r}: {values!r}}} is not allowed; expected a list of values")
        count *= len(values)
    if not parameters or count > MAX_CONFIGS:
        raise UsageError(f"parameters give {count if parameters else 0} configs; expected 1 to {MAX_CONFIGS}")
    found = []
    for values in itertools.product(*parameters.values()):
        named = dict(zip(parameters, values, strict=True))
        options = {name: named.pop(name) for name in OPTIONS if name in named}
        found.append(triton.Config(named, **options))
    return found


def make_space(configs: Configs, prune: Callable[[Shape], tuple[Config, ...]]) -> Space[Any]:
    """Make the space: valid is what is listed and not pruned for a shape, the default is the first of these."""

    listed = configs.listed
    known = frozenset(listed)

    def reject(config: Config, shape: Shape, device: Device) -> str | None:
        if config not in known:
            return f"it is none of the {len(listed)} configs listed"
        return None if config in prune(shape) else "prune_configs_by leaves it out"

    def default(shape: Shape, device: Device) -> Config:
        return prune(shape)[0]

    return ListedSpace(configs.parameters, reject, default, listed=listed)
