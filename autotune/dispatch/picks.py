"""``get_kernel``: picks a kernel for a shape from the tables, once, and keeps the pick."""

import math
import os
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from autotune import platforms
from autotune.device import NVIDIA_H200, Device
from autotune.dispatch.alternatives import alternatives_for
from autotune.dispatch.devices import device_here, find_named, is_torch_device, stranger
from autotune.dispatch.events import Pick, note_pick
from autotune.dispatch.kernel import Alternative, TunedKernel, why_unserved
from autotune.dispatch.ladder import SERVES_DEFAULT
from autotune.dispatch.pins import DISABLE, Pin, Switches, make_pin, pinned_implementation, read_switches, serve_pin
from autotune.dispatch.portfolio import choose
from autotune.errors import InvalidShapeError, MissingDependencyError, NoTunedKernelError, UnknownNameError, UsageError
from autotune.implementation import Implementation
from autotune.operation import Operation
from autotune.registry import (
    check_shape,
    get_implementation,
    get_operation,
    implementation_names,
    implementations_of,
    on_registered,
    operation_for,
    operation_names,
)
from autotune.shape import Shape
from autotune.space import Config, Value

if TYPE_CHECKING:
    from autotune.table import Assignment, Served

OnMiss = Literal["default", "error", "record"]
ON_MISS: Final = get_args(OnMiss)
Among = Literal["ours", "fastest"] | tuple[str, ...]

CACHED_PICKS: Final = 4096

_generation = 0
_lock = threading.Lock()


def get_kernel(
    shape: Shape,
    *,
    device: str | None = None,
    on_miss: OnMiss = "default",
    among: Among = "ours",
    operation: str | None = None,
    config: Mapping[str, Value] | None = None,
    implementation: str | None = None,
) -> TunedKernel:
    """Return the best known kernel for a shape; never measure, compile, lock, write or ask a network.

    The ladder:

    1. ``exact``: the row of this shape on this device.
    2. ``nearest``: the row of the nearest tuned shape of the same device whose config is valid here, at most 1 away: a
       factor of two in one size, all that is no size equal (``Shape.distance``, docs/dispatch.md).
    3. ``same model``: 1, then 2, among rows of the same model of device under another power cap.
    4. ``default``: what the portfolio of the device's architecture has for such shapes; without one, the default of the
       first admitted implementation that supports the shape.

    Of rung 2 and the portfolio's choice the one of the less expected regret is served, where both are known.

    The user's table wins over the shipped one where both have a row. Tables are read at the first call and kept until
    ``reload()``, and so are ``AUTOTUNE_CONFIG``, which pins configs for every call as ``config`` does for one
    (``flash_attention/triton:BLOCK_Q=64,num_warps=4``, several separated by ``;``), and ``AUTOTUNE_DISABLE=1``, which
    serves defaults without tables.

    Args:
        shape: the problem to compute.
        device: a GPU's name for asking off-GPU, such as ``"NVIDIA H200"``, ``"A100"`` or ``"RTX 4090"``, in any case
            (the highest power cap of that name), or an architecture's, such as ``"sm_80"``; the current GPU by default.
            A name that is none of these gets the default and a RuntimeWarning, which suggests the name that it may be
            a misspelling of.
        on_miss: without a row of rungs 1 to 3, serve the default, raise, or also note the shape for
            ``search --from-misses``.
        among: which implementations may be served: ``"ours"``, those that are compiled from our sources or yours;
            a tuple of names, such as ``("triton", "flex")``; or ``"fastest"``, all of them and the baseline that won
            the stored race (cuDNN, FlashAttention 3), which ``provenance.baseline`` then names.
        operation: the operation's name, where several take such shapes; the first that supports it by default.
        config: serve this config and no other, on the rung ``pinned``: nothing gives way where the toolchain refuses
            it. Parameters that it leaves out are those that would be served otherwise.
        implementation: whose config it is, the first of ours by default; alone, pin the config that would be served
            among that implementation's.

    Raises:
        InvalidConfigError: a pinned config that is not of the space, or invalid for the shape on the device.
        NoTunedKernelError: no row of rungs 1 to 3, with ``on_miss="error"``.
        SealedError: the same after ``seal()``, for a shape that was not picked before it.
        MissingDependencyError: no ``device`` is named and there is no GPU.
        InvalidShapeError: no admitted implementation supports the shape; the message says why.
        UnknownNameError: no such operation, or no such implementation in ``among``.
        UsageError: a wrong argument; ``"cpu"`` and ``"cuda:0"`` are no names of GPUs.

    Example:
        >>> shape = AttentionShape(batch=16, heads=16, seq_q=1024, head_dim=128, causal=True)
        >>> get_kernel(shape, device="NVIDIA H200").provenance.rung
        'exact'
    """
    pin = None if config is None and implementation is None else make_pin(config, implementation, among)
    kernel = _checked_pick(shape, device, operation, among, pin)
    if on_miss not in ON_MISS:
        raise UsageError(f"on_miss={on_miss!r} is not allowed; expected {', '.join(map(repr, ON_MISS))}")
    if kernel.is_untuned and on_miss != "default":
        _miss(kernel, on_miss)
    return kernel


def pick_for_device(shape: Shape, place: int | Device | None, operation: str, *, among: Among = "ours") -> TunedKernel:
    """Return the kernel of an operation for a device, for tensors on the GPU of that index, or on the CPU (None).

    Tensors on the CPU get the pick of an NVIDIA H200, whose numbers Triton's interpreter then checks.
    """
    return _pick(shape, NVIDIA_H200.name if place is None else place, operation, among, _generation)


def default_config(implementation: Implementation[Any], shape: Shape, device: Device) -> Config:
    """Return what is served for a shape that no row is for or near: the portfolio's choice, or the space's default."""
    rows = _portfolios(implementation.operation, implementation.name, _generation)
    choice = choose([row for row in rows if row.device.arch == device.arch], implementation, shape, device)
    return implementation.space.default(shape, device) if choice is None else choice.config


def neighbour_configs(
    implementation: Implementation[Any], shape: Shape, device: Device, *, count: int = 3, shipped: bool = True
) -> list[Config]:
    """List the configs of the nearest tuned shapes of a model of device, nearest first, for a search to begin with.

    ``shipped=False`` leaves out the rows that ship.
    """
    rows = [
        row.trial
        for row in _rows(implementation.operation, _generation)
        if row.trial.implementation == implementation.name
        and (shipped or row.origin == "user")
        and row.trial.device.model == device.model
    ]
    near = sorted(rows, key=lambda trial: (shape.distance(trial.shape), repr(trial.shape)))
    return list(dict.fromkeys(trial.config for trial in near if shape.distance(trial.shape) < math.inf))[:count]


def device_by_name(name: str) -> Device | None:
    """Return the device that ``get_kernel`` takes a name for; None for one that nobody knows."""
    return _device_named(name, (), _generation)


def reload() -> None:
    """Forget the tables, the environment's pins and every pick; the next call reads tables and environment again."""
    global _generation
    with _lock:
        _generation += 1  # a thread that is still reading the old tables must not hand its pick to later calls
    _pick.cache_clear()
    _rows.cache_clear()
    _portfolios.cache_clear()
    _switches.cache_clear()


on_registered.append(reload)


@cache
def _rows(operation: str, generation: int) -> "tuple[Served, ...]":
    """Read the winners that may be served, once a generation; of one shape the best implementation comes first."""
    from autotune.table import served_winners, warn_damaged  # pyarrow takes 0.1 s to import

    return tuple(served_winners(operation, on_damaged=warn_damaged))


@cache
def _portfolios(operation: str, implementation: str, generation: int) -> "tuple[Assignment, ...]":
    """Read the portfolios of an implementation on all architectures, once a generation."""
    from autotune.table import shipped_portfolios, warn_damaged

    return tuple(shipped_portfolios(operation, implementation=implementation, on_damaged=warn_damaged))


def _checked_pick(
    shape: Shape, device: str | None, operation: str | None, among: Among, pin: Pin | None
) -> TunedKernel:
    if device is not None and not isinstance(device, str):
        raise _not_a_name(device)
    place = platforms.current_index() if device is None else device
    try:
        if pin is None:  # the key of ``pick_for_device``, too
            return _pick(shape, place, operation, among, _generation)
        return _pick(shape, place, operation, among, _generation, pin)
    except TypeError:  # an argument that cannot be hashed is neither a shape nor a name
        _check_arguments(shape, place, among)
        raise


def _check_arguments(shape: object, device: object, among: object) -> None:
    if not isinstance(shape, Shape):
        classes = sorted({get_operation(name).shape_class.__name__ for name in operation_names()})
        raise UsageError(f"shape={shape!r} is of type {type(shape).__name__}; expected {' or '.join(classes)}")
    is_name = isinstance(device, str) and device.strip() and not is_torch_device(device)
    if not is_name and not isinstance(device, int | Device):
        raise _not_a_name(device)
    if among not in ("ours", "fastest") and not (
        isinstance(among, tuple) and among and all(isinstance(name, str) for name in among)
    ):
        is_name = any(among in implementation_names(name) for name in operation_names())
        example = (among,) if is_name else ("triton",)
        raise UsageError(
            f"among={among!r} is not allowed; expected 'ours', 'fastest' or a tuple of names such as {example}"
        )


def _not_a_name(device: object) -> UsageError:
    return UsageError(
        f"device={device!r} is not the name of a GPU; expected one such as {NVIDIA_H200.name!r}, or None for the "
        "GPU here"
    )


@lru_cache(maxsize=CACHED_PICKS)
def _pick(
    shape: Shape, place: int | str | Device, name: str | None, among: Among, generation: int, pin: Pin | None = None
) -> TunedKernel:
    _check_arguments(shape, place, among)
    operation = operation_for(shape) if name is None else get_operation(name)
    check_shape(operation, shape)
    switches = _switches(generation)
    rows = () if switches.is_disabled else _rows(operation.name, generation)
    known: Device | None
    if isinstance(place, str):
        known = _device_named(place, rows, generation)
    else:
        known = place if isinstance(place, Device) else platforms.current_device(place)
    device = known or stranger(str(place))
    if (pin := pin or switches.pin(operation.name, among)) is not None:
        among = (pinned_implementation(pin, operation.name, shape, device).name,)
    admitted = _admitted(operation, shape, device, among)
    rows = tuple(row for row in rows if row.trial.implementation in {each.name for each in admitted})
    no_rows = f"{DISABLE}=1 switches the tables off" if switches.is_disabled else ""
    if known is None:
        no_rows = f"no table knows the device {device.name}"
    arch = "" if no_rows else device.arch  # of a name that nothing knows the architecture is assumed
    portfolio = [
        row
        for each in admitted
        for row in _portfolios(operation.name, each.name, generation)
        if row.device.arch == arch
    ]
    found = alternatives_for(
        shape,
        device,
        rows,
        admitted,
        portfolio=portfolio,
        with_baselines=among == "fastest",
        can_serve=lambda each: _can_serve(each, operation.name, shape, here=not isinstance(place, str)),
        no_rows=no_rows,
        hint=_similar_names(device.name, generation) if known is None else "",
    )
    if known is None:
        warnings.warn(f"device={place!r}: {found[0].provenance.reason}", RuntimeWarning, stacklevel=4)
    if pin is not None:
        found = [serve_pin(pin, admitted[0], shape, device, found[0])]
    kernel = TunedKernel(operation.name, shape, found)
    why, is_miss = kernel.provenance, kernel.is_untuned and not switches.is_disabled
    note_pick(
        Pick(operation.name, shape, device, kernel.candidate, why.rung, is_miss), f"{why.reason}; {why.expectation}"
    )
    return kernel


@cache
def _switches(generation: int) -> Switches:
    """Read the environment, once a generation."""
    return read_switches(os.environ)


def _can_serve(alternative: Alternative, operation: str, shape: Shape, *, here: bool) -> bool:
    """Return False for a baseline that cannot be served: here, or, of a named device, where its library is."""
    name = alternative.provenance.baseline
    try:
        return not name or why_unserved(operation, shape, name, here=here) is None
    except MissingDependencyError:  # torch, which is not needed to ask about a named device
        return not here


def _admitted(operation: Operation[Any], shape: Shape, device: Device, among: Among) -> list[Implementation[Any]]:
    """List the implementations that may be served for a shape on a device, ours first."""
    if (problem := operation.unsupported(shape)) is not None:
        raise InvalidShapeError(problem)
    if isinstance(among, tuple):
        known = implementation_names(operation.name)
        for name in among:
            if name not in known:
                allowed = f"ours, fastest, or implementations of {operation.name}: {', '.join(known) or 'none'}"
                raise UnknownNameError(f"among={name!r} is unknown; allowed: {allowed}")
        found = [get_implementation(operation.name, name) for name in dict.fromkeys(among)]
    else:
        found = [each for each in implementations_of(operation.name) if each.is_ours or among == "fastest"]
    if not found:
        raise UnknownNameError(f"operation={operation.name!r} has no implementation that among={among!r} admits")
    reasons = [each.supports(shape, device) for each in found]
    admitted = [each for each, reason in zip(found, reasons, strict=True) if reason is None]
    if not admitted:
        raise InvalidShapeError("; ".join(reason for reason in reasons if reason))
    return admitted


def _device_named(name: str, rows: "tuple[Served, ...]", generation: int) -> Device | None:
    """Find the device that a name means: in these rows, or else in any table, with the highest power cap; the GPU here;
    or a known one, of which nothing is recorded."""
    found = find_named(name, _devices(rows)) or find_named(name, _devices(_all_rows(generation)))
    return found or find_named(name, filter(None, [device_here()])) or platforms.known_device(name)


def _all_rows(generation: int) -> "Iterator[Served]":
    return (row for name in operation_names() for row in _rows(name, generation))


def _devices(rows: "Iterable[Served]") -> list[Device]:
    """List each device once, in the order of the rows: the same in every process."""
    return list(dict.fromkeys(row.trial.device for row in rows))


def _similar_names(name: str, generation: int) -> str:
    return platforms.did_you_mean(name, [*platforms.known_devices(), *_devices(_all_rows(generation))])


def _miss(kernel: TunedKernel, on_miss: OnMiss) -> None:
    if on_miss == "error":
        reason = kernel.last_resort.reason.replace(SERVES_DEFAULT, "")  # which is not served
        raise NoTunedKernelError(f"{kernel.operation}: {reason}; shape: {kernel.shape}")
    if _switches(_generation).is_disabled:
        return  # tables may know the shape
    from autotune.table import record_miss

    record_miss(get_operation(kernel.operation), kernel.shape)
