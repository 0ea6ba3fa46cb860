"""What is served: ``get_kernel(shape)`` reads the tables once and answers in microseconds."""

import difflib
import importlib.metadata
import math
import re
import threading
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from autotune.device import NVIDIA_H200, Device
from autotune.errors import AutotuneError, MissingDependencyError, NoTunedKernelError, UsageError
from autotune.hardware import current_device
from autotune.operation import Operation
from autotune.registry import get_operation, load_kernel, operation_for, operation_names
from autotune.shape import Shape
from autotune.space import Config
from autotune.trial import Policy, Trial

if TYPE_CHECKING:
    from autotune.table import Served

Rung = Literal["exact", "nearest", "same model", "default"]
OnMiss = Literal["default", "error", "record"]
ON_MISS: Final = get_args(OnMiss)

MAX_DISTANCE: Final = 1.0  # log2 units: a factor of two in one size; until transfer regret has been measured
CACHED_PICKS: Final = 4096
TORCH_DEVICE: Final = r"(cpu|cuda|hip|hpu|mps|xpu)(:\d+)?"  # what torch calls devices, which names none
TYPO_RATIO: Final = 0.9  # difflib's, of names with a letter missing, doubled or swapped


@dataclass(frozen=True, slots=True)
class Provenance:
    """Why a kernel has its config: the rung of the ladder, the row it came from, and what differs from here.

    ``row`` and ``distance`` are None on the rung ``default``. ``origin`` says whose table the row stands in.
    ``distance`` is the shapes' (``Shape.distance``): 1 for a factor of two in one size, 0 for the very shape. ``notes``
    name differences in toolchain and source that were accepted.
    """

    rung: Rung
    reason: str
    row: Trial | None = None
    origin: Literal["user", "shipped", ""] = ""
    distance: float | None = None
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.reason


class TunedKernel:
    """A kernel bound to one config; call it with the operation's tensors.

    Attributes:
        operation: the operation's name.
        shape: the shape it was picked for; a call checks that its tensors fit.
        config: the launch parameters.
        provenance: where the config comes from and why.
    """

    __slots__ = ("_alternatives", "_call", "config", "operation", "provenance", "shape")

    def __init__(
        self,
        operation: str,
        shape: Shape,
        config: Config,
        provenance: Provenance,
        alternatives: tuple[tuple[Config, Provenance], ...] = (),
    ) -> None:
        self.operation = operation
        self.shape = shape
        self.config = config
        self.provenance = provenance
        self._alternatives = alternatives
        self._call: Any = None

    def __call__(self, *tensors: Any, **options: Any) -> Any:
        """Compute; the first call loads torch and triton, and compiles unless the binary is cached.

        A config that this toolchain refuses to compile or launch is replaced, with one warning, by the next stored one
        and at last by the default.
        """
        while True:
            config, call = self.config, self._call
            if call is None:
                call = load_kernel(self.operation).bind(config, self.shape)
                if self.config == config:  # another thread may have turned to the next one
                    self._call = call
            try:
                return call(*tensors, **options)
            except Exception as error:  # not only of the first call: other strides or options are other binaries
                if not _is_refusal(error) or not self._fall_back(config, error):
                    raise

    def _fall_back(self, refused: Config, error: Exception) -> bool:
        """Turn to the next config, unless another thread has already; False where none is left."""
        global _refused
        with _lock:
            if self.config != refused:
                return True
            if not self._alternatives:
                return False
            (self.config, self.provenance), *rest = self._alternatives
            self._alternatives = tuple(rest)
            self._call = None
            _refused += 1
        warnings.warn(
            f"{self.operation}: this toolchain refuses {refused} ({type(error).__name__}); "
            f"using {self.config} instead, {self.provenance.reason}",
            RuntimeWarning,
            stacklevel=4,
        )
        return True

    def __repr__(self) -> str:
        return f"<{self.operation} kernel for {self.shape}: {self.config} ({self.provenance.rung})>"


def get_kernel(
    shape: Shape, *, device: str | None = None, on_miss: OnMiss = "default", operation: str | None = None
) -> TunedKernel:
    """The best known kernel for a shape, without measuring, compiling, locking, writing or asking a network.

    The ladder:

    1. ``exact``: the row of this shape on this device.
    2. ``nearest``: the row of the nearest tuned shape of the same device whose config is valid here, at most 1 away: a
       factor of two in one size, all that is no size equal (``Shape.distance``, docs/dispatch.md).
    3. ``same model``: 1, then 2, among rows of the same model of device under another power cap.
    4. Another device of the same architecture: never, until its transfer has been verified.
    5. ``default``: the space's default.

    The user's table wins over the shipped one where both have a row. Tables are read at the first call and kept until
    ``reload()``.

    Args:
        shape: what will be computed.
        device: a GPU's name for asking off-GPU, such as ``"NVIDIA H200"``, in any case (the highest power cap of that
            name); the current GPU by default. A name that no table knows and that is not of the GPU here gets the
            default and a RuntimeWarning, which tells a name that it may be a misspelling of.
        operation: the name of one of your own that takes the same shapes; ours by default.
        on_miss: what rung 5 does: serve the default, raise, or also note the shape for ``search --from-misses``.

    Raises:
        NoTunedKernelError: rung 5 with ``on_miss="error"``.
        MissingDependencyError: no ``device`` is named and there is no GPU.
        UsageError: a wrong argument; ``"cpu"`` and ``"cuda:0"`` are no names of GPUs.

    Example:
        >>> shape = AttentionShape(batch=16, heads=16, seq_q=1024, head_dim=128, causal=True)
        >>> get_kernel(shape, device="NVIDIA H200").provenance.rung
        'exact'
    """
    try:
        kernel = _pick(shape, device, operation, _generation)
    except TypeError:  # what cannot be hashed is neither a shape nor a name
        _check_arguments(shape, device)
        raise
    if on_miss not in ON_MISS:
        raise UsageError(f"on_miss={on_miss!r} is not allowed; expected {', '.join(map(repr, ON_MISS))}")
    if kernel.provenance.rung == "default" and on_miss != "default":
        _miss(kernel, on_miss)
    return kernel


def neighbour_configs(
    operation: Operation[Any], shape: Shape, device: Device, *, count: int = 3, shipped: bool = True
) -> list[Config]:
    """Configs of the nearest tuned shapes of a model of device, nearest first: where a search should begin.

    ``shipped=False`` leaves out the rows that ship.
    """
    served = [row for row in _rows(operation.name, _generation) if shipped or row.origin == "user"]
    rows = [row.trial for row in served if row.trial.device.model == device.model]
    near = sorted(rows, key=lambda trial: (shape.distance(trial.shape), repr(trial.shape)))
    return list(dict.fromkeys(trial.config for trial in near if shape.distance(trial.shape) < math.inf))[:count]


def reload() -> None:
    """Forget the tables and every pick made from them; the next call reads the tables again."""
    global _generation
    with _lock:
        _generation += 1  # a thread that is still reading the old tables must not hand its pick to later calls
    _pick.cache_clear()
    _rows.cache_clear()


def refusals() -> int:
    """How many stored configs this process's toolchain has refused."""
    return _refused


_refused = 0
_generation = 0
_lock = threading.Lock()


@cache
def _rows(operation: str, generation: int) -> "tuple[Served, ...]":
    """The winners that may be served, read once a generation."""
    from autotune.table import served_winners, warn_damaged  # pyarrow takes 0.1 s to import

    return tuple(served_winners(operation, on_damaged=warn_damaged))


def _check_arguments(shape: object, device: object) -> None:
    """Refuse what is no question."""
    if not isinstance(shape, Shape):
        classes = sorted({get_operation(name).shape_class.__name__ for name in operation_names()})
        raise UsageError(f"shape={shape!r} is of type {type(shape).__name__}; expected {' or '.join(classes)}")
    if device is not None and (not isinstance(device, str) or not device.strip()):
        raise UsageError(
            f"device={device!r} is not allowed; expected a name such as {NVIDIA_H200.name!r}, or None for the GPU here"
        )
    if device is not None and re.fullmatch(TORCH_DEVICE, _plain(device)):
        raise UsageError(
            f"device={device!r} is not the name of a GPU; expected one such as {NVIDIA_H200.name!r}, or None for the "
            "GPU here"
        )


@lru_cache(maxsize=CACHED_PICKS)
def _pick(shape: Shape, device_name: str | None, name: str | None, generation: int) -> TunedKernel:
    _check_arguments(shape, device_name)
    operation = operation_for(shape) if name is None else get_operation(name)
    if not isinstance(shape, operation.shape_class):
        expected = operation.shape_class.__name__
        raise UsageError(f"shape={shape!r} is of type {type(shape).__name__}; operation={name!r} takes {expected}")
    rows = _rows(operation.name, generation)
    known = current_device() if device_name is None else _device_named(device_name, rows, generation)
    device = known or _stranger(str(device_name))
    default = operation.space.default(shape, device)  # refuses a shape that the operation does not support
    candidates = list(_climb(operation, shape, device, rows))
    if known is None:
        reason = _why_unknown(device.name, generation)
        warnings.warn(f"device={device_name!r}: {reason}", RuntimeWarning, stacklevel=3)
    elif candidates:
        reason = "what was tuned for this shape or near it is refused: the space's default"
    else:
        reason = _why_default(operation, shape, device, rows)
    candidates.append((default, Provenance("default", reason)))
    best: dict[Config, Provenance] = {}  # a config that was refused once is not tried again for another row
    for config, provenance in candidates:
        best.setdefault(config, provenance)
    (config, provenance), *alternatives = best.items()
    return TunedKernel(operation.name, shape, config, provenance, tuple(alternatives))


def _climb(
    operation: Operation[Any], shape: Shape, device: Device, rows: "Iterable[Served]"
) -> Iterator[tuple[Config, Provenance]]:
    """What rungs 1 to 3 have to offer, best first."""
    near = [
        (distance, row)
        for row in rows
        if row.trial.device.model == device.model and (distance := shape.distance(row.trial.shape)) <= MAX_DISTANCE
    ]
    near.sort(key=lambda item: _remoteness(item[0], item[1], device))
    for distance, row in near:
        trial = row.trial
        if operation.space.why_invalid(trial.config, shape, device) is not None:
            continue
        rung: Rung = "exact" if distance == 0.0 else "nearest"
        reason = f"tuned for this shape on {trial.device.name}"
        if distance > 0.0:
            reason = f"tuned for the nearest shape ({trial.shape}; {distance:.2f} away) on {trial.device.name}"
        if trial.device != device:
            rung = "same model"
            reason += f" at {trial.device.power_cap_watts} W, not the {device.power_cap_watts} W here"
        yield trial.config, Provenance(rung, reason, trial, row.origin, distance, _notes(operation, trial))


def _remoteness(distance: float, row: "Served", device: Device) -> tuple[Any, ...]:
    """Rows of the same power cap first, then of the nearest cap; of one shape the row of the usual policy."""
    found = row.trial
    gap = abs((found.device.power_cap_watts or 0) - (device.power_cap_watts or 0))
    return (found.device != device, gap, distance, found.policy != Policy(), repr(found.shape))


def find_named(name: str, devices: "Iterable[Device]") -> Device | None:
    """The device of that name, in any case, with the highest power cap; None if there is none."""
    named = [device for device in devices if _plain(device.name) == _plain(name)]
    return max(named, key=lambda device: device.power_cap_watts or 0, default=None)


def _device_named(name: str, rows: "tuple[Served, ...]", generation: int) -> Device | None:
    """The device of that name with the highest power cap, in an operation's tables or else in any; or the GPU here."""
    found = find_named(name, _devices(rows)) or find_named(name, [*_devices(_all_rows(generation)), NVIDIA_H200])
    if found is not None:
        return found
    here = _device_here()
    return None if here is None else find_named(name, [here])


def _stranger(name: str) -> Device:
    """A device that no table knows: one that only defaults fit."""
    here = _device_here()
    return Device(name=name, arch="sm_80" if here is None else here.arch, sm_count=1, memory_mib=1)


def _device_here() -> Device | None:
    try:
        return current_device()
    except MissingDependencyError:
        return None


def _all_rows(generation: int) -> "Iterator[Served]":
    """The winners of all operations."""
    return (row for name in operation_names() for row in _rows(name, generation))


def _devices(rows: "Iterable[Served]") -> list[Device]:
    """Each once, in the order of the rows: the same in every process."""
    return list(dict.fromkeys(row.trial.device for row in rows))


def _why_default(operation: Operation[Any], shape: Shape, device: Device, rows: "Iterable[Served]") -> str:
    """That nothing tuned is served, and in what the nearest that was tuned differs."""
    where = f"no tuned shape of {operation.name} on {device.name}"
    tuned = [row.trial.shape for row in rows if row.trial.device.model == device.model]
    if not tuned:
        return f"{where}: the space's default"
    distance, near = min(((shape.distance(other), other) for other in tuned), key=lambda item: item[0])
    if distance == math.inf:
        near = min(tuned, key=lambda other: _unlikeness(shape, other))
        text = f"{where} is like it; the nearest, {near}, differs in {shape.differences(near)}"
    elif distance > MAX_DISTANCE:
        bound = f"within a distance of {MAX_DISTANCE:g} (a factor of two in one size)"
        text = f"{where} is {bound}; the nearest, {near}, is {distance:.2f} away"
    else:
        text = f"{where} has a config that is valid here; the nearest, {near}, is {distance:.2f} away"
    return f"{text}: the space's default"


def _unlikeness(shape: Shape, other: Shape) -> tuple[int, float]:
    """An order of shapes of other families: in how many of its fields they differ, then by sizes."""
    others = sum(ours != theirs for ours, theirs in zip(shape.family(), other.family(), strict=True))
    return (others, math.dist(shape.coordinates(), other.coordinates()))


def _why_unknown(name: str, generation: int) -> str:
    """That no table knows a name, and which it may be a misspelling of."""
    near = names_like(name, [NVIDIA_H200, *_devices(_all_rows(generation))])
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    return f"no table knows the device {name}: the space's default{hint}"


def names_like(name: str, devices: "Iterable[Device]") -> list[str]:
    """Names of which one may be a part or a misspelling; never of another model, which has another number."""
    asked = _plain(name)
    return sorted(
        known
        for known in {device.name for device in devices}
        if _numbers(asked) == _numbers(_plain(known))
        and (asked in _plain(known) or difflib.SequenceMatcher(None, asked, _plain(known)).ratio() >= TYPO_RATIO)
    )


def _plain(name: str) -> str:
    """A name without what makes no difference: case, and how many blanks."""
    return " ".join(name.split()).lower()


def _numbers(name: str) -> set[str]:
    """The words with a digit, which tell models apart: ``{"h200"}``."""
    return set(re.findall(r"[a-z]*\d[a-z\d]*", name))


def _notes(operation: Operation[Any], trial: Trial) -> tuple[str, ...]:
    """What differs between a row and this process; accepted, and said."""
    notes = []
    if trial.source_hash != operation.source_hash:
        source = operation.library or "the kernel's source"
        notes.append(f"{source} has changed since it was tuned")
    here = _installed("triton")
    if here and here != trial.toolchain.triton:
        notes.append(f"tuned with triton {trial.toolchain.triton}, here is {here}")
    return tuple(notes)


@cache
def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _miss(kernel: TunedKernel, on_miss: OnMiss) -> None:
    if on_miss == "error":
        raise NoTunedKernelError(f"{kernel.operation}: {kernel.provenance.reason}; shape: {kernel.shape}")
    from autotune.table import record_miss

    record_miss(get_operation(kernel.operation), kernel.shape)


def _is_refusal(error: Exception) -> bool:
    """Whether the toolchain refused the config, as opposed to a wrong call or a broken GPU."""
    if isinstance(error, AutotuneError):
        return False
    return type(error).__module__.startswith("triton") or "PassManager" in str(error)
