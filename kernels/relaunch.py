"""Launches of compiled kernels made again with other addresses, by the least Python that Triton's launcher allows.

A first launch goes through its ``JITFunction``, which looks up or compiles the binary for the types, the alignments and
the constants of all arguments, and encodes tensor descriptors. Where all of that is known to be as it was, only
addresses are new: the binary's own launcher is then called directly, as Triton 3.6 to 3.9 call it on NVIDIA's GPUs.
With any other toolchain a launch cannot be made again, and callers go through the ``JITFunction`` every time.
"""

import copy
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final, NamedTuple

import torch
import triton
from triton import knobs
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from autotune.kernels.tensors import require_context
from autotune.platforms import platform_here

VERSION: Final = tuple(map(int, triton.__version__.split(".")[:2]))
FLAT: Final = ((3, 6),)  # the launcher of a binary takes all arguments in a row
BUNDLED: Final = ((3, 7), (3, 8), (3, 9))  # one launcher for all binaries takes them as one
LAUNCHER: Final = platform_here().launcher
IS_KNOWN: Final = VERSION in FLAT + BUNDLED and LAUNCHER != ""
ENCODED: Final = 128  # combinations of addresses; the layers of a model, or the buffers of a few batches in flight
BINARIES: Final = 1024  # whose launchers are kept; few processes load more

Relaunch = Callable[[int, tuple[Any, ...]], None]  # of a stream and the first arguments, descriptors encoded

_RUN: Final = JITFunction.run
_recordings: Final = threading.local()


class PastLaunch(NamedTuple):
    """A launch that was made: the compiled kernel, the grid, and the arguments by position."""

    binary: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]


def observe(function: Any) -> None:
    """Let recordings see the launches of a function of Triton's; one that is interpreted, or has hooks, has none."""
    if not isinstance(function, JITFunction):
        return

    def run(*arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        binary = type(function).run(function, *arguments, grid=grid, warmup=warmup, **options)
        launches = getattr(_recordings, "launches", None)
        if launches is not None and not warmup and not function.pre_run_hooks:
            named = [options[name] for name in function.arg_names[len(arguments) :]]  # the last, which are constants
            launches.append(PastLaunch(binary, grid, (*arguments, *named)))
        return binary

    function.run = run


@contextmanager
def recording() -> Iterator[list[PastLaunch]]:
    """Collect this thread's launches of observed functions, in order.

    Example:
        >>> with recording() as launches:
        ...     launch(q, k, v, out, lse, **options)
    """
    launches = _recordings.launches = list[PastLaunch]()
    try:
        yield launches
    finally:
        _recordings.launches = None


def is_direct() -> bool:
    """Return if a binary may be launched past its ``JITFunction``: nobody watches launches or changes what they run.

    Dynamo traces them; profilers set hooks or another ``JITFunction.run``, or add code to kernels.
    """
    if torch.compiler.is_compiling() or not IS_KNOWN:  # first: Dynamo reads no further
        return False
    runtime = knobs.runtime
    try:
        is_hooked = runtime.launch_enter_hook.calls or runtime.launch_exit_hook.calls
    except AttributeError:  # a function in place of Triton's chain of hooks
        return False
    return not (is_hooked or JITFunction.run is not _RUN or runtime.debug or knobs.compilation.instrumentation_mode)


def relaunch_of(launch: PastLaunch, varying: int) -> Relaunch | None:
    """Return what makes a launch again with other first arguments, of which so many vary, and the others as they were.

    None where this toolchain has no known launcher, or the launch needs scratch. The first arguments are those of the
    launch, in their tuples: an address may stand for a tensor, and what ``Descriptors.of`` returns must stand for a
    descriptor.
    """
    call = _launcher_of(launch.binary)
    if call is None:
        return None
    x, y, z = (*launch.grid, 1, 1)[:3]
    launcher, fixed = call
    constants = launch.arguments[varying:]
    if VERSION in FLAT:

        def relaunch(stream: int, arguments: tuple[Any, ...]) -> None:
            launcher(x, y, z, stream, *fixed, *arguments, *constants)

    else:

        def relaunch(stream: int, arguments: tuple[Any, ...]) -> None:
            launcher(x, y, z, stream, *fixed, (*arguments, *constants))

    return relaunch


class _Call(NamedTuple):
    """A function of Triton's that launches, and what it takes between the stream and a kernel's own arguments."""

    launcher: Callable[..., None]
    fixed: tuple[Any, ...]


@lru_cache(maxsize=BINARIES)
def _launcher_of(binary: Any) -> _Call | None:
    run: Any = getattr(binary, "run", None)
    if not IS_KNOWN or type(run).__module__ != LAUNCHER or getattr(run, "gsan_enabled", False):
        return None
    if run.global_scratch_size or run.profile_scratch_size:
        return None
    before = (binary.function, run.launch_cooperative_grid, run.launch_pdl)
    packed, no_scratch, no_hooks = (binary.packed_metadata,), (None, None), (None, None, None)
    if VERSION in FLAT:
        # Around a launcher that takes descriptors Triton puts a function that encodes them.
        launcher = inspect.getclosurevars(run.launch).nonlocals["launcher"] if _encodes(run.launch) else run.launch
        return _Call(launcher, before + no_scratch + packed + no_hooks)
    after = packed + no_hooks + no_scratch + (run.arg_annotations, run.kernel_signature)
    return _Call(driver.active.utils.launch, before + after)


def _encodes(launcher: Any) -> bool:
    return inspect.isfunction(launcher) and "launcher" in launcher.__code__.co_freevars


class Descriptors:
    """The encoded descriptors of a launch's arguments, by their addresses: shapes, strides and blocks do not change.

    An address that another tensor gets later has the same descriptor.
    """

    def __init__(self, likes: Sequence[Any], metadata: Sequence[Any]) -> None:
        """Encode as Triton has encoded ``likes`` for a binary with this metadata of these arguments."""
        self._likes = [copy.copy(like) for like in likes]
        for like in self._likes:
            like.base = None  # no tensor is kept
        self._metadata = tuple(metadata)
        self._encoded: dict[tuple[int, ...], tuple[Any, ...]] = {}

    def of(self, tensors: Sequence[torch.Tensor], addresses: tuple[int, ...]) -> tuple[Any, ...]:
        """Return what a launcher takes for descriptors of tensors: of each the descriptor, its sizes, its strides."""
        found = self._encoded.get(addresses)
        return self._encode(addresses, tensors) if found is None else found

    def _encode(self, addresses: tuple[int, ...], tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        from triton.backends.nvidia.driver import make_tensordesc_arg  # not at the top: a build for AMD may lack it

        require_context(tensors[0].device)
        more = () if VERSION < (3, 8) else (None,)  # base arguments, which TMA does not need
        encoded: list[Any] = []
        for like, tensor, metadata in zip(self._likes, tensors, self._metadata, strict=True):
            descriptor = copy.copy(like)
            descriptor.base = tensor
            encoded += make_tensordesc_arg(descriptor, metadata, *more)
        if len(self._encoded) >= ENCODED:
            self._encoded.clear()
        return self._encoded.setdefault(addresses, tuple(encoded))


def relaunches_of(launches: Sequence[PastLaunch], varying: Sequence[int]) -> list[Relaunch] | None:
    """Return what makes each of these launches again (``relaunch_of``); None if there is none, or one cannot be."""
    pairs = zip(launches, varying, strict=False)
    found = [again for launch, count in pairs if (again := relaunch_of(launch, count)) is not None]
    return found if launches and len(found) == len(launches) else None


class Described(NamedTuple):
    """Descriptors among the arguments of a launch, None without any, and how many they are."""

    descriptors: Descriptors | None
    number: int


def described_by(launch: PastLaunch, varying: int) -> Described | None:
    """Return the descriptors among a launch's first arguments; None where the GPU has none and takes them apart."""
    found = [argument for argument in launch.arguments[:varying] if hasattr(argument, "block_shape")]
    if not found:
        return Described(None, 0)
    metadata = getattr(launch.binary.metadata, "tensordesc_meta", None) or [None] * len(found)
    return None if None in metadata else Described(Descriptors(found, metadata), len(found))


def stream_reader() -> Callable[[int], int]:
    """Return what gives the handle of a GPU's current stream, by the driver that launches."""
    reader: Callable[[int], int] = driver.active.get_current_stream
    return reader
