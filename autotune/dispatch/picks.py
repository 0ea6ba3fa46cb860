"""``get_kernel``: picks a kernel for a shape from the tables, once, and keeps the pick."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache, wraps
from typing import Final, Literal, ParamSpec, get_args

from autotune import platforms
from autotune.device import NVIDIA_H200, Device
from autotune.dispatch import table_reading
from autotune.dispatch.among import Among
from autotune.dispatch.arguments import check_arguments, not_a_name
from autotune.dispatch.generation import begin_generation, current_generation, switches_of
from autotune.dispatch.kernel import TunedKernel
from autotune.dispatch.picking import make_pick
from autotune.dispatch.pins import Pin, make_pin, names_interpreted
from autotune.errors import NoTunedKernelError, UsageError
from autotune.process_lock import ProcessLock
from autotune.registry import get_operation, on_registered
from autotune.shape import Shape
from autotune.space import Value
from autotune.workload import check_shape, operation_for

OnMiss = Literal["default", "error", "record"]
ON_MISS: Final = get_args(OnMiss)
CACHED_PICKS: Final = 4096

on_reload: Final[list[Callable[[], None]]] = []  # called after picks were forgotten: what keeps answers of its own

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
        interpreted = names_interpreted(switches_of(current_generation()).pin(operation, among), operation, among)
        kernel = _pick(shape, NVIDIA_H200.name, operation, interpreted, _era)
    else:
        kernel = _pick(shape, place, operation, among, _era)
    _keep(recent, shape, kernel)
    return kernel


def reload() -> None:
    """Forget the tables, the environment's pins and every pick; the next call reads tables and environment again.

    Example:
        >>> autotune.reload()  # after another process has tuned
    """
    begin_generation()
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
    """Pick once in an era, and note which operation has picks to forget."""
    check_arguments(shape, place, among)
    operation = operation_for(shape) if name is None else get_operation(name)
    _picked.add(operation.name)  # before its implementations are asked for
    check_shape(operation, shape)
    return make_pick(operation, shape, place, among, pin, batch_invariant)


def _miss(kernel: TunedKernel, on_miss: OnMiss) -> None:
    if on_miss == "error":
        why = kernel.last_resort  # without the default, which is not served
        raise NoTunedKernelError(f"{kernel.operation}: {why.cause}{why.hint}; shape: {kernel.picked_for}")
    if switches_of(current_generation()).is_disabled:
        return  # tables may know the shape
    if not table_reading.can_read_tables():
        return
    from autotune.table import record_miss

    record_miss(get_operation(kernel.operation), kernel.picked_for)
