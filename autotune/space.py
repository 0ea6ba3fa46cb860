"""Configs and the spaces they come from, as data and pure functions."""

import json
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from autotune.device import Device, check_capability
from autotune.errors import InvalidConfigError
from autotune.shape import Shape

Value = int | str | None  # None: the parameter does not apply to this device, or to what another one has chosen
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

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Config):  # a tenth of the time that a mapping's comparison takes
            return self._hash == other._hash and self._values == other._values
        return super().__eq__(other)

    def __reduce__(self) -> tuple[type["Config"], tuple[dict[str, Value]]]:
        return (Config, (dict(self),))  # hashes of strings differ between interpreters

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}={value!r}' for name, value in self.items())})"

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.items() if value is not None)

    @classmethod
    def parse(cls, text: str) -> "Config":
        """Parse ``BLOCK_Q=128 num_warps=8``, with blanks or commas between, or a JSON object; else InvalidConfigError.

        Example:
            >>> Config.parse("BLOCK_Q=64,loads=pointer")
            Config(BLOCK_Q=64, loads='pointer')
        """
        return cls(_from_json(text) if text.lstrip().startswith("{") else _from_words(text))

    def integer(self, name: str) -> int:
        """Return the value of an integer parameter."""
        value = self[name]
        if not isinstance(value, int):
            raise InvalidConfigError(f"{name}={value!r} is not an integer")
        return value


def _from_words(text: str) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for word in text.replace(",", " ").split():
        name, sign, value = word.partition("=")
        if not (name and sign and value):
            raise InvalidConfigError(f"config={text!r} has {word!r}; expected NAME=VALUE ... or a JSON object")
        if name in values:
            raise InvalidConfigError(f"config={text!r} names {name} twice; expected each parameter once")
        values[name] = int(value) if re.fullmatch(r"-?\d{1,12}", value) else (None if value == "None" else value)
    return values


def _from_json(text: str) -> dict[str, Value]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidConfigError(f"config={text!r} is no JSON object: {error}") from None
    for name, value in found.items():
        if type(value) not in (int, str, type(None)):
            raise InvalidConfigError(f"config={text!r} has {name}={value!r}; expected an integer, a string or null")
    return dict(found)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A tunable parameter: its values in order, and the capability that a device needs to have it (None: all do).

    One with ``only=(name, value)`` exists only where that parameter, declared before it, has that value. A parameter
    that joins a space later says in ``absent`` which value the rows from before it had: so they stay rows of the space.

    Example:
        >>> Parameter("NUM_SPLITS", (1, 2, 4), only=("schedule", "split")).choices(NVIDIA_H200, {"schedule": "flat"})
        (None,)
    """

    name: str
    values: tuple[int | str, ...]
    needs: str | None = None
    only: tuple[str, int | str] | None = None
    absent: int | str | None = None

    def __post_init__(self) -> None:
        if self.needs is not None:
            check_capability(self.needs)

    @property
    def is_ordered(self) -> bool:
        """Return True if a sampler should see the values as an ordered range rather than as categories."""
        return all(isinstance(value, int) for value in self.values)

    def exists_on(self, device: Device) -> bool:
        """Return True if a device has the parameter."""
        return self.needs is None or device.has(self.needs)

    def choices(self, device: Device | None, chosen: Mapping[str, Value] | None = None) -> tuple[Value, ...]:
        """Return the values on a device beside those chosen of other parameters; ``(None,)`` if there is no choice.

        Without a device, the parameter exists wherever it has a value.
        """
        exists = bool(self.values) if device is None else self.exists_on(device)
        if self.only is not None and chosen is not None:
            exists = exists and chosen.get(self.only[0]) == self.only[1]
        return self.values if exists else (None,)


def combinations(parameters: Sequence[Parameter], device: Device | None = None) -> Iterator[Config]:
    """Yield every config over parameters, valid or not, in their order.

    Example:
        >>> list(combinations([Parameter("a", (1, 2)), Parameter("b", (3, 4), only=("a", 2))]))
        [Config(a=1, b=None), Config(a=2, b=3), Config(a=2, b=4)]
    """
    found: Iterable[dict[str, Value]] = [{}]
    for parameter in parameters:
        found = _extend(found, parameter, device)
    return map(Config, found)


def _extend(
    found: Iterable[dict[str, Value]], parameter: Parameter, device: Device | None
) -> Iterator[dict[str, Value]]:
    """Yield each of what was chosen so far with each value of one more parameter."""
    fixed = parameter.choices(device) if parameter.only is None else None
    for chosen in found:
        for value in fixed or parameter.choices(device, chosen):
            yield {**chosen, parameter.name: value}


class _Watched(Config):
    """A config that notes how many of the leading parameters hold what was read of it; it has no hash of its own."""

    __slots__ = ("_places", "needed")

    def __init__(self, values: dict[str, Value], places: Mapping[str, int]) -> None:
        self._values, self._places, self.needed = values, places, 0

    def __getitem__(self, name: str) -> Value:
        value = self._values[name]
        self.needed = max(self.needed, self._places[name] + 1)
        return value

    def __iter__(self) -> Iterator[str]:
        self.needed = len(self._places)
        return iter(self._values)

    def __hash__(self) -> int:
        return hash(Config(self))

    def __eq__(self, other: object) -> bool:
        return Config(self) == other


def _accepts_all(config: Config, shape: Shape, device: Device) -> str | None:
    return None


def _no_heuristics(shape: Shape, device: Device) -> tuple[Config, ...]:
    return ()


def _no_hints(config: Config, shape: Shape, device: Device) -> tuple[float, ...]:
    return ()


def _no_basis(device: Device) -> str:
    return ""


def _never(shape: Shape, device: Device) -> bool:
    return False


def _no_estimate(config: Config, shape: Shape, device: Device) -> float | None:
    return None


_FIRST_VALID: Any = None  # the default of a space without one, made of its parameters at construction


@dataclass(frozen=True, slots=True)
class Space(Generic[ShapeT]):
    """Parameters, the rule that makes a config valid for a shape on a device, and the default.

    ``reject(config, shape, device)`` returns why a config is invalid, or None, by nothing but its arguments; it is the
    only statement of validity, and without it all are valid. ``default(shape, device)`` returns a valid config that
    needs no measurement; without it that is the first valid one. ``hints(config, shape, device)`` returns quantities
    that the time is thought to depend on smoothly (the logarithm of the resident warps, say): a search learns from
    them beside the parameters. ``removed`` names parameters that the space had once, each with the value that the
    kernel has in their place now: stored rows with that value are still rows of the space.
    ``heuristics(shape, device)`` returns what people write by hand, for a search to measure beside; one that is not
    valid there is passed over. ``default_basis(device)`` returns what chose the default where no time did, such as
    ``"chosen by compiled resources"``; empty elsewhere. ``is_learned(shape, device)`` returns True where the default
    follows recordings, and no rule: neither tells what the other loses. ``is_preferred(shape, device)`` returns True
    where an implementation comes before others that no race compared it with. ``estimate(config, shape, device)``
    returns the time of a config, in a unit that all implementations share at one shape, or None where that is not
    known: of the implementations that a shipped portfolio has races of, the one of the least estimate is served before
    the others that estimate theirs (``autotune.dispatch.implementation_order``).
    """

    parameters: tuple[Parameter, ...]
    reject: Callable[[Config, ShapeT, Device], str | None] = _accepts_all
    default: Callable[[ShapeT, Device], Config] = _FIRST_VALID
    hints: Callable[[Config, ShapeT, Device], tuple[float, ...]] = _no_hints
    removed: Mapping[str, Value] = field(default_factory=dict, hash=False)
    heuristics: Callable[[ShapeT, Device], tuple[Config, ...]] = _no_heuristics
    default_basis: Callable[[Device], str] = _no_basis
    estimate: Callable[[Config, ShapeT, Device], float | None] = _no_estimate
    is_learned: Callable[[ShapeT, Device], bool] = _never
    is_preferred: Callable[[ShapeT, Device], bool] = _never

    def __post_init__(self) -> None:
        if self.default is _FIRST_VALID:
            object.__setattr__(self, "default", self._first_valid)

    def _first_valid(self, shape: ShapeT, device: Device) -> Config:
        found = next(self.configs(shape, device), None)
        if found is None:
            raise InvalidConfigError(f"no config of {[each.name for each in self.parameters]} is valid for {shape}")
        return found

    def size(self, device: Device) -> int:
        """Count the configs before validity."""
        return sum(1 for _ in self.combinations(device))

    def combinations(self, device: Device) -> Iterator[Config]:
        """Yield every config before validity, in parameter order."""
        return combinations(self.parameters, device)

    def configs(self, shape: ShapeT, device: Device) -> Iterator[Config]:
        """Yield every valid config, in parameter order.

        Where the leading parameters that ``reject`` read are alike, its answer is, so that those configs are passed
        over together: of the 126,000 combinations of ``paged_decode/triton`` about one in 30 is asked for.
        """
        places = {parameter.name: place for place, parameter in enumerate(self.parameters)}

        def extend(chosen: dict[str, Value], count: int) -> Generator[Config, None, int]:
            """Yield the valid configs that begin with ``count`` chosen values; return how many of these are needed for
            the last rejection to hold."""
            if count == len(self.parameters):
                watched = _Watched(chosen, places)
                if self.reject(watched, shape, device) is not None:
                    return watched.needed
                yield Config(chosen)
                return count
            parameter = self.parameters[count]
            for value in parameter.choices(device, chosen):
                needed = yield from extend({**chosen, parameter.name: value}, count + 1)
                if needed <= count:
                    return needed
            return count

        yield from extend({}, 0)

    def why_invalid(self, config: Config, shape: ShapeT, device: Device) -> str | None:
        """Return the reason why a config may not run here, or None: names and values first, then the space's rule."""
        return self.why_outside(config, device) or self.reject(config, shape, device)

    def why_outside(self, config: Config, device: Device) -> str | None:
        """Return the reason why a config is not one of this space on a device, by names and values alone, or None."""
        if list(config) != [parameter.name for parameter in self.parameters]:
            return f"parameters are {list(config)}, expected {[parameter.name for parameter in self.parameters]}"
        for parameter in self.parameters:
            choices = parameter.choices(device, config)
            if config[parameter.name] not in choices:
                return f"{parameter.name}={config[parameter.name]!r} is not one of {choices}"
        return None

    def order(self, config: Config) -> tuple[int, ...]:
        """Return a config's place in parameter order: the last resort that makes every choice deterministic."""
        return tuple(
            -1 if config[parameter.name] is None else parameter.values.index(config[parameter.name])
            for parameter in self.parameters
        )
