"""Pins: a config that a caller or the environment serves in place of what tables know; and the switches.

``AUTOTUNE_CONFIG`` is a list of ``OPERATION/IMPLEMENTATION:NAME=VALUE,...``, separated by semicolons;
``AUTOTUNE_DISABLE`` is 1 to serve defaults alone, ``AUTOTUNE_BATCH_INVARIANT`` 1 to serve one config to all batches.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from autotune.device import Device
from autotune.dispatch.among import Among, named
from autotune.dispatch.batch_invariance import VARIABLE as BATCH_INVARIANT
from autotune.dispatch.provenance import Alternative, Provenance
from autotune.errors import InvalidConfigError, InvalidShapeError, UnknownNameError, UsageError
from autotune.implementation import Implementation
from autotune.registry import get_implementation, get_operation, our_implementations, require_implementation
from autotune.shape import Shape
from autotune.space import Config, Value
from autotune.trial import Candidate

CONFIG: Final = "AUTOTUNE_CONFIG"
DISABLE: Final = "AUTOTUNE_DISABLE"
GRAMMAR: Final = "OPERATION/IMPLEMENTATION:NAME=VALUE,NAME=VALUE, several separated by ;"


@dataclass(frozen=True, slots=True)
class Pin:
    """A config to serve, or a part of one, which is completed from what would be served otherwise.

    Attributes:
        implementation: whose config it is; None for the first of ours that the operation has.
        values: its parameters, or some of them.
        origin: the argument or variable that pins, with its value, for messages.
    """

    implementation: str | None
    values: Config
    origin: str


@dataclass(frozen=True, slots=True)
class Switches:
    """The pins of the environment by operation, if tables are switched off, and if picks are batch-invariant."""

    pins: Mapping[str, Pin]
    is_disabled: bool
    is_batch_invariant: bool

    def pin(self, operation: str, among: str | tuple[str, ...]) -> Pin | None:
        """Return the pin of an operation; None without one, or where its implementation is not among those named."""
        found = self.pins.get(operation)
        is_excluded = found is not None and isinstance(among, tuple) and found.implementation not in among
        return None if is_excluded else found


def read_switches(environment: Mapping[str, str]) -> Switches:
    """Read the variables; UsageError, by the variable's name, for a value that is not allowed."""
    pins: dict[str, Pin] = {}
    for part in filter(None, map(str.strip, environment.get(CONFIG, "").split(";"))):
        operation, pin = _parse_pin(part)
        if operation in pins:
            raise UsageError(f"{CONFIG}={environment[CONFIG]!r} pins {operation} twice; expected each operation once")
        pins[operation] = pin
    return Switches(
        pins,
        is_disabled=_is_on(environment, DISABLE, "to serve defaults without tables"),
        is_batch_invariant=_is_on(environment, BATCH_INVARIANT, "for one config for all batches"),
    )


def _is_on(environment: Mapping[str, str], name: str, meaning: str) -> bool:
    flag = environment.get(name, "")
    if flag not in ("", "0", "1"):
        raise UsageError(f"{name}={flag!r} is not allowed; expected 1, {meaning}, or 0")
    return flag == "1"


def _parse_pin(text: str) -> tuple[str, Pin]:
    origin = f"{CONFIG}={text!r}"
    title, _, values = text.partition(":")
    operation, slash, implementation = (word.strip() for word in title.partition("/"))
    if not (operation and slash and implementation):
        raise UsageError(f"{origin} is not allowed; expected {GRAMMAR}")
    try:
        require_implementation(operation, implementation)
        config = Config.parse(values)
    except UnknownNameError as error:
        raise UnknownNameError(f"{origin}: {error}") from None
    except InvalidConfigError as error:
        raise InvalidConfigError(f"{origin}: {error}") from None
    return operation, Pin(implementation, config, origin)


def make_pin(config: Mapping[str, Value] | None, implementation: str | None, among: object) -> Pin:
    """Make the pin of these arguments of ``get_kernel``, of which one is given; UsageError for a wrong one."""
    if config is not None and not isinstance(config, Mapping):
        kind = type(config).__name__
        raise UsageError(f"config={config!r} is of type {kind}; expected a Config, or a dict of parameters")
    given = f"implementation={implementation!r}" if config is None else f"config={dict(config)!r}"
    if implementation is not None and not isinstance(implementation, str):
        raise UsageError(f"implementation={implementation!r} is no name; expected one such as 'triton'")
    if among != "ours":
        raise UsageError(f"{given} and among={among!r} exclude each other; implementation= says whose config it is")
    for name, value in (config or {}).items():
        if type(value) not in (int, str, type(None)):
            raise InvalidConfigError(f"{given} has {name}={value!r}; expected an integer, a string or None")
    return Pin(implementation, Config(config), given)


def pinned_implementation(pin: Pin, operation: str, shape: Shape, device: Device) -> Implementation[Any]:
    """Return the implementation of a pin; UsageError for one that does not exist, or cannot compute the shape."""
    if pin.implementation is None:
        found = our_implementations(operation)[0]
    else:
        found = get_implementation(operation, pin.implementation)
    if (reason := found.supports(shape, device)) is not None:
        raise InvalidShapeError(f"{pin.origin}: {reason}")
    return found


def names_interpreted(pin: Pin | None, operation: str, among: Among) -> Among:
    """Narrow what may be served to what Triton's interpreter can run; what is pinned stays, or is refused."""
    if pin is None or pin.implementation is None:
        found = named(get_operation(operation), among)
        return tuple(each.name for each in found if each.can_interpret) or among
    pinned = get_implementation(operation, pin.implementation)
    if pinned.is_ours and not pinned.can_interpret:
        raise UsageError(f"{pin.origin}: Triton's interpreter cannot run {pinned.title}, and tensors are on the CPU")
    return among


def serve_pin(
    pin: Pin, implementation: Implementation[Any], shape: Shape, device: Device, served: Alternative
) -> Alternative:
    """Return a pin as the one candidate that may be served; parameters that it leaves open are those ``served``.

    A pin of an implementation alone is what is served of it, on its own rung and with its row.

    Raises:
        InvalidConfigError: a parameter or a value is not of the space, or the config is invalid for the shape.
    """
    if not pin.values:
        why = replace(served.provenance, cause=f"named by {pin.origin}: {served.provenance.cause}")
        return Alternative(served.candidate, why)
    config = _complete(pin, implementation, shape, device, served.candidate.config)
    if (reason := implementation.space.why_invalid(config, shape, device)) is not None:
        raise InvalidConfigError(f"{pin.origin}: {config} is invalid for {shape} on {device.name}: {reason}")
    reason = f"named by {pin.origin}"
    open_names = [name for name, value in config.items() if name not in pin.values and value is not None]
    if open_names:
        reason += f"; {', '.join(open_names)} as {served.provenance.rung}: {served.provenance.reason}"
    return Alternative(Candidate(implementation.name, config), Provenance("pinned", reason))


def _complete(pin: Pin, implementation: Implementation[Any], shape: Shape, device: Device, served: Config) -> Config:
    """Fill in the parameters that a pin leaves open: as served, else by default, where that is a choice beside it."""
    space, values = implementation.space, dict[str, Value]()
    names = [parameter.name for parameter in space.parameters]
    for name in pin.values:
        if name not in names:
            allowed = f"those of {implementation.title}: {', '.join(names)}"
            raise InvalidConfigError(f"{pin.origin}: {name} is no parameter; allowed: {allowed}")
    default = space.default(shape, device)
    for parameter in space.parameters:
        name, choices = parameter.name, parameter.choices(device, values)
        wanted = (pin.values[name],) if name in pin.values else (served[name], default[name], None)
        found = [value for value in wanted if value in choices]
        if not found:
            problem = f"{name}={pin.values[name]!r} is not allowed" if name in pin.values else f"{name} is missing"
            beside = ", ".join(f"{other}={value}" for other, value in values.items() if value is not None)
            place = f" beside {beside}" if beside else ""
            allowed = ", ".join(map(str, choices))
            raise InvalidConfigError(f"{pin.origin}: {problem}{place} on {device.name}; allowed: {allowed}")
        values[name] = found[0]
    return Config(values)
