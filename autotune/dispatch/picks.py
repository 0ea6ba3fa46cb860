"""``get_kernel``: picks a kernel for a shape from the tables, once, and keeps the pick."""

import os
import warnings
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from functools import cache, lru_cache, wraps
from typing import Any, Final, Literal, ParamSpec, get_args

from autotune import platforms
from autotune.device import NVIDIA_H200, Device
from autotune.dispatch import table_reading
from autotune.dispatch.among import Among
from autotune.dispatch.answers import portfolio_of, stored_alternatives
from autotune.dispatch.arguments import check_arguments, not_a_name
from autotune.dispatch.batch_invariance import first_invariant, in_usual_batch, require_invariant
from autotune.dispatch.devices import known_or_here, stranger
from autotune.dispatch.events import Pick, note_pick
from autotune.dispatch.kernel import TunedKernel
from autotune.dispatch.nearest import nearest_configs
from autotune.dispatch.outlook import Outlook
from autotune.dispatch.pins import (
    DISABLE,
    Pin,
    Switches,
    make_pin,
    names_interpreted,
    pinned_implementation,
    read_switches,
    serve_pin,
)
from autotune.dispatch.places import did_you_mean, find_device
from autotune.dispatch.portfolio import choose, choose_all
from autotune.dispatch.table_reading import device_named, rows_of
from autotune.errors import NoTunedKernelError, UsageError
from autotune.implementation import Implementation
from autotune.process_lock import ProcessLock
from autotune.registry import get_operation, on_registered
from autotune.shape import Shape
from autotune.space import Config, Value
from autotune.workload import check_shape, operation_for

OnMiss = Literal["default", "error", "record"]
ON_MISS: Final = get_args(OnMiss)
CACHED_PICKS: Final = 4096

on_reload: Final[list[Callable[[], None]]] = []  # called after picks were forgotten: what keeps answers of its own

_generation = 0  # of the tables and the environment
_era = 0  # of picks, which end with the tables, and where an implementation is registered that they could not know
_picked: Final[set[str]] = set()  # operations that something was picked of
_lock: Final = ProcessLock()

# Picks by the identity of the shape that they were asked for, in half the time that its hash and its equality take;
# those of a GPU together. Each stands beside its shape: as long as it is here, no other object has that identity.
_Recent = dict[int, tuple[TunedKernel, Shape]]
_recent = defaultdict[Hashable, _Recent](dict)

_Asked = ParamSpec("_Asked")


def _recalling(pick: Callable[_Asked, TunedKernel]) -> Callable[_Asked, TunedKernel]:
    """Answer what names nothing but a shape that was picked for the GPU here, before any option gets its default."""

    @wraps(pick)
    def recall(*shape: _Asked.args, **options: _Asked.kwargs) -> TunedKernel:
        if not options:
            try:
                return _recent[platforms.current_index()][id(*shape)][0]
            except (KeyError, TypeError):  # not yet, or more than a shape
                pass
        return pick(*shape, **options)

    return recall


@_recalling
def get_kernel(
    shape: Shape,
    *,
    device: str | None = None,
    on_miss: OnMiss = "default",
    among: Among = "ours",
    operation: str | None = None,
    config: Mapping[str, Value] | None = None,
    implementation: str | None = None,
    batch_invariant: bool | None = None,
) -> TunedKernel:
    """Return the best known kernel for a shape; never measure, compile, lock, write or ask a network.

    The ladder:

    1. ``exact``: the row of this shape on this device.
    2. ``nearest``: the row of the nearest tuned shape of the same device whose config is valid here, at most 1 away: a
       factor of two in one size, all that is no size equal (``Shape.distance``, docs/dispatch.md).
    3. ``same model``: 1, then 2, among rows of the same model of device under another power cap.
    4. ``default``: what the portfolio of the device's architecture has for such shapes; without one, the default of the
       first admitted implementation that supports the shape.

    Of rung 2 and the portfolio's choice the one of the less expected regret is served, where both are known; of a row
    that ships and is more than 0.25 away, the choice. A row whose race lacked an implementation that was faster at
    recorded shapes like this one gives way to that one's.

    The user's table wins over the site's, that over those of installed packages, and these over the shipped one, where
    several have a row. Tables are read at the first call and kept until
    ``reload()``, and so are ``AUTOTUNE_CONFIG``, which pins configs for every call as ``config`` does for one
    (``flash_attention/triton:BLOCK_Q=64,num_warps=4``, several separated by ``;``), ``AUTOTUNE_DISABLE=1``, which
    serves defaults without tables, and ``AUTOTUNE_BATCH_INVARIANT=1``, as ``batch_invariant`` for each operation that
    has it.

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
        implementation: whose config it is, the first of ours by default; alone, serve what would be served among that
            implementation's, on its own rung, and nothing else where the toolchain refuses it.
        batch_invariant: serve one config for all batches and lengths, with which a sequence's results do not depend on
            what else is in the batch: of ``paged_decode`` and ``paged_prefill``. By the environment where it is None.

    Raises:
        InvalidConfigError: a pinned config that is not of the space, or invalid for the shape on the device, or not
            batch-invariant where that is asked for.
        NoTunedKernelError: no row of rungs 1 to 3, with ``on_miss="error"``.
        SealedError: the same after ``seal()``, on the GPU here, for a shape that was not picked before.
        MissingDependencyError: no ``device`` is named and there is no GPU.
        InvalidShapeError: no admitted implementation supports the shape; the message says why.
        UnknownNameError: no such operation, or no such implementation in ``among``.
        UsageError: a wrong argument; ``"cpu"`` and ``"cuda:0"`` are no names of GPUs.

    Example:
        >>> shape = AttentionShape(batch=16, heads=16, seq_q=1024, head_dim=128, causal=True)
        >>> get_kernel(shape, device="NVIDIA H200").provenance.rung
        'exact'
    """
    if device is not None and not isinstance(device, str):
        raise not_a_name(device)
    place = platforms.current_index() if device is None else device
    is_plain = device is None and operation is None and among == "ours" and config is None and implementation is None
    if batch_invariant is not None:
        is_plain = False
        if type(batch_invariant) is not bool:
            raise UsageError(f"batch_invariant={batch_invariant!r} is not allowed; expected True, False or None")
    recent = _recent[place] if is_plain else None  # before the era is read, see ``_forget_picks``
    try:
        pin = None if config is None and implementation is None else make_pin(config, implementation, among)
        rest = () if pin is None and batch_invariant is None else (pin, batch_invariant)
        kernel = _pick(shape, place, operation, among, _era, *rest)  # without these the key of ``pick_for_device``, too
    except TypeError:  # an argument that cannot be hashed is neither a shape nor a name
        check_arguments(shape, place, among)
        if operation is not None:
            get_operation(operation)
        raise
    if recent is not None:
        _keep(recent, shape, kernel)
    if on_miss == "default":
        return kernel
    if on_miss not in ON_MISS:
        raise UsageError(f"on_miss={on_miss!r} is not allowed; expected {', '.join(map(repr, ON_MISS))}")
    if kernel.is_untuned:
        _miss(kernel, on_miss)
    return kernel


def pick_for_device(shape: Shape, place: int | Device | None, operation: str, *, among: Among = "ours") -> TunedKernel:
    """Return the kernel of an operation for a device, for tensors on the GPU of that index, or on the CPU (None).

    Tensors on the CPU get the pick of an NVIDIA H200 among what Triton's interpreter can run, which then checks its
    numbers.
    """
    recent = _recent[place, operation, among]
    if (found := recent.get(id(shape))) is not None:
        return found[0]
    if place is None:
        interpreted = names_interpreted(_switches(_generation).pin(operation, among), operation, among)
        kernel = _pick(shape, NVIDIA_H200.name, operation, interpreted, _era)
    else:
        kernel = _pick(shape, place, operation, among, _era)
    _keep(recent, shape, kernel)
    return kernel


def pick_for_tuning(shape: Shape, device: Device, operation: str, among: tuple[str, ...]) -> TunedKernel:
    """Return what tables alone would serve for a shape, for a search to begin with.

    Neither ``AUTOTUNE_CONFIG`` nor ``AUTOTUNE_DISABLE`` counts, nothing is noted, and the seal does not hold.
    """
    found = stored_alternatives(get_operation(operation), shape, device, among, _generation, here=True)
    return TunedKernel(operation, shape, found)


def outlook_on(operation: str, device: Device, among: Among = "ours") -> Outlook:
    """Return what answers as ``pick_for_tuning`` does for many shapes; it keeps the tables as they are now."""
    return Outlook(operation, device, among, _generation)


def default_config(implementation: Implementation[Any], shape: Shape, device: Device) -> Config:
    """Return what tables alone serve for a shape that no row is for or near: the portfolio's choice, or the space's
    default. As with ``pick_for_tuning`` no switch counts."""
    choice = choose(portfolio_of(implementation, device, _generation), implementation, shape, device)
    return implementation.space.default(shape, device) if choice is None else choice.config


def portfolio_configs(implementation: Implementation[Any], shape: Shape, device: Device) -> list[Config]:
    """List the members of the portfolio that are for shapes like this one, the likeliest first: ``default_config`` is
    the first of them."""
    choices = choose_all(portfolio_of(implementation, device, _generation), implementation, shape, device)
    return [choice.config for choice in choices]


def neighbour_configs(
    implementation: Implementation[Any], shape: Shape, device: Device, *, count: int = 3, shipped: bool = True
) -> list[Config]:
    """List the configs of the nearest tuned shapes of a model of device, nearest first, for a search to begin with.

    ``shipped=False`` leaves out the rows that ship.
    """
    rows = rows_of(implementation.operation, (implementation.name,), device.slug, _generation)
    return nearest_configs(rows, implementation, shape, device, of_model=True, shipped=shipped)[:count]


def other_kinds_configs(
    implementation: Implementation[Any], shape: Shape, device: Device, *, count: int = 3, shipped: bool = True
) -> list[Config]:
    """List the configs of the nearest tuned shapes of other models of device that are valid on this one, nearest first.

    For a search to begin with: nothing else serves them on this device. ``shipped`` as in ``neighbour_configs``.
    """
    rows = rows_of(implementation.operation, (implementation.name,), "", _generation)
    found = nearest_configs(rows, implementation, shape, device, of_model=False, shipped=shipped)
    return [config for config in found if implementation.space.why_invalid(config, shape, device) is None][:count]


def device_by_name(name: str) -> Device | None:
    """Return the device that ``get_kernel`` takes a name for; None for one that nobody knows."""
    is_disabled = _switches(_generation).is_disabled
    return known_or_here(name) if is_disabled else device_named(name, _generation)


def reload() -> None:
    """Forget the tables, the environment's pins and every pick; the next call reads tables and environment again.

    Example:
        >>> autotune.reload()  # after another process has tuned
    """
    global _generation
    with _lock:
        _generation += 1
    table_reading.forget()
    _switches.cache_clear()
    _forget_picks()


def _forget_picks() -> None:
    global _era, _recent
    with _lock:
        _era += 1  # a thread that is still reading the old tables must not hand its pick to later calls
        _recent = defaultdict(dict)  # last: who finds this one finds the era, too, and keeps no older pick in it
        _picked.clear()
    _pick.cache_clear()
    for forget in on_reload:
        forget()


def _forget_if_picked(operation: str) -> None:
    """Forget picks that an implementation that is new, or defined again, could change; no table is read again."""
    if operation in _picked:
        _forget_picks()


on_registered.append(_forget_if_picked)


def _keep(recent: _Recent, shape: Shape, kernel: TunedKernel) -> None:
    """Keep a pick for the object that it was asked for; ``CACHED_PICKS`` of them at most."""
    if len(recent) >= CACHED_PICKS:
        recent.clear()
    recent[id(shape)] = (kernel, shape)


@lru_cache(maxsize=CACHED_PICKS)
def _pick(
    shape: Shape,
    place: int | str | Device,
    name: str | None,
    among: Among,
    era: int,
    pin: Pin | None = None,
    batch_invariant: bool | None = None,
) -> TunedKernel:
    """Pick by the tables and the switches, and note the pick."""
    check_arguments(shape, place, among)
    generation = _generation
    operation = operation_for(shape) if name is None else get_operation(name)
    _picked.add(operation.name)  # before its implementations are asked for
    check_shape(operation, shape)
    switches = _switches(generation)
    known = find_device(place, operation, among, switches, generation)
    device = known or stranger(str(place))
    no_rows, hint = _why_no_rows(place, known, switches, generation)
    if batch_invariant is None:
        batch_invariant = switches.is_batch_invariant and operation.usual_batch is not None
    picked_for = in_usual_batch(operation, shape) if batch_invariant else shape
    pin = pin or switches.pin(operation.name, among)
    if pin is not None and batch_invariant:
        pin = replace(pin, origin=f"{pin.origin} for the usual batch of batch-invariant picks")
    pinned = None if pin is None else pinned_implementation(pin, operation.name, picked_for, device)
    if pinned is not None:
        among = (pinned.name,)
    is_named = isinstance(place, str)
    found = stored_alternatives(
        operation, picked_for, device, among, generation, here=not is_named, no_rows=no_rows, hint=hint
    )
    if known is None:
        warnings.warn(f"device={place!r}: {found[0].provenance.reason}", RuntimeWarning, stacklevel=4)
    has_row = batch_invariant and any(each.provenance.rung != "default" for each in found)
    if batch_invariant:
        found = [first_invariant(found, operation.name, picked_for)]
    if pin is not None and pinned is not None:
        found = [serve_pin(pin, pinned, picked_for, device, found[0])]
        if batch_invariant:
            require_invariant(found[0], operation.name, picked_for, pin.origin)
    kernel = TunedKernel(operation.name, shape, found, picked_for, has_row=has_row)
    is_miss = kernel.is_untuned and isinstance(place, int) and not switches.is_disabled
    _note(kernel, device, is_miss)
    return kernel


def _why_no_rows(
    place: int | str | Device, known: Device | None, switches: Switches, generation: int
) -> tuple[str, str]:
    """Return the reason why no table is asked, or else "", and a hint to a name that was perhaps meant."""
    reason = f"{DISABLE}=1 switches the tables off" if switches.is_disabled else ""
    if known is not None:
        return reason, ""
    reason = f"{reason}, and no list" if reason else "no table"
    reason += f" knows the device {place}, taken for an {stranger(str(place)).arch}"
    return reason, did_you_mean(str(place), switches, generation)


def _note(kernel: TunedKernel, device: Device, is_miss: bool) -> None:
    why = kernel.provenance
    pick = Pick(kernel.operation, kernel.picked_for, device, kernel.candidate, why.rung, is_miss)
    note_pick(pick, why.reason, why.expectation)


@cache
def _switches(generation: int) -> Switches:
    """Read the environment, once a generation."""
    return read_switches(os.environ)


def _miss(kernel: TunedKernel, on_miss: OnMiss) -> None:
    if on_miss == "error":
        why = kernel.last_resort  # without the default, which is not served
        raise NoTunedKernelError(f"{kernel.operation}: {why.cause}{why.hint}; shape: {kernel.picked_for}")
    if _switches(_generation).is_disabled:
        return  # tables may know the shape
    if not table_reading.can_read_tables():
        return
    from autotune.table import record_miss

    record_miss(get_operation(kernel.operation), kernel.picked_for)
