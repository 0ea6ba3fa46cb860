"""Configs and the spaces they come from, as data and pure functions."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from autotune.device import Backend, Device
from autotune.errors import InvalidConfigError
from autotune.shape import Shape

Value = int | str | None  # None: the parameter does not apply to this device
ShapeT = TypeVar("ShapeT", bound=Shape)


class Config(Mapping[str, Value]):
    """One value for each tunable parameter: immutable, hashable, ordered as its space declares.

    Example:
        >>> Config(BLOCK_Q=128, BLOCK_K=64, num_warps=8)["BLOCK_K"]
        64
    """

    __slots__ = ("_hash", "_values")

    def __init__(self, values: Mapping[str, Value] | None = None, /, **named: Value) -> None:
        self._values: dict[str, Value] = {**(values or {}), **named}
        self._hash = hash(frozenset(self._values.items()))

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type["Config"], tuple[dict[str, Value]]]:
        return (Config, (self._values,))  # hashes of strings differ between interpreters

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self._values.items() if value is not None)

    def integer(self, name: str) -> int:
        """The value of an integer parameter."""
        value = self._values[name]
        if not isinstance(value, int):
            raise InvalidConfigError(f"{name}={value!r} is not an integer")
        return value


@dataclass(frozen=True, slots=True)
class Parameter:
    """A tunable parameter: its values in order, and the only backend it exists on (None: all)."""

    name: str
    values: tuple[int | str, ...]
    backend: Backend | None = None

    @property
    def is_ordered(self) -> bool:
        """Whether a sampler should see the values as an ordered range rather than as categories."""
        return all(isinstance(value, int) for value in self.values)

    def choices(self, device: Device) -> tuple[Value, ...]:
        """The values on that device: a parameter of another backend has only None."""
        return self.values if self.backend in (None, device.backend) else (None,)


def _no_hints(config: Config, shape: Shape, device: Device) -> tuple[float, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class Space(Generic[ShapeT]):
    """Parameters, the rule that makes a config valid for a shape on a device, and the default.

    ``reject(config, shape, device)`` returns why a config is invalid, or None; it is the only statement of validity.
    ``default(shape, device)`` returns a valid config that needs no measurement. ``hints(config, shape, device)``
    returns quantities that the time is thought to depend on smoothly (the logarithm of the resident warps, say): a
    search learns from them beside the parameters.
    """

    parameters: tuple[Parameter, ...]
    reject: Callable[[Config, ShapeT, Device], str | None]
    default: Callable[[ShapeT, Device], Config]
    hints: Callable[[Config, ShapeT, Device], tuple[float, ...]] = _no_hints

    def size(self, device: Device) -> int:
        """The number of configs before validity."""
        return math.prod(len(parameter.choices(device)) for parameter in self.parameters)

    def configs(self, shape: ShapeT, device: Device) -> Iterator[Config]:
        """Every valid config, in parameter order."""
        names = [parameter.name for parameter in self.parameters]
        for values in itertools.product(*(parameter.choices(device) for parameter in self.parameters)):
            config = Config(dict(zip(names, values, strict=True)))
            if self.reject(config, shape, device) is None:
                yield config

    def why_invalid(self, config: Config, shape: ShapeT, device: Device) -> str | None:
        """Why a config may not run here, or None: names and values first, then the rule of the operation."""
        if list(config) != [parameter.name for parameter in self.parameters]:
            return f"parameters are {list(config)}, expected {[parameter.name for parameter in self.parameters]}"
        for parameter in self.parameters:
            if config[parameter.name] not in parameter.choices(device):
                return f"{parameter.name}={config[parameter.name]!r} is not one of {parameter.choices(device)}"
        return self.reject(config, shape, device)

    def order(self, config: Config) -> tuple[int, ...]:
        """Where a config stands in parameter order: the last resort that makes every choice deterministic."""
        return tuple(
            -1 if config[parameter.name] is None else parameter.values.index(config[parameter.name])
            for parameter in self.parameters
        )
