"""``warm(shapes)``: pick, bind and compile ahead, on the GPU here or for another one by name."""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

from autotune import platforms
from autotune.device import NVIDIA_H200, Device
from autotune.dispatch import Rung, TunedKernel, device_by_name, pick_for_device
from autotune.dispatch.events import ahead, watch_compiles
from autotune.dispatch.kernel import load_binaries
from autotune.dispatch.provenance import Alternative
from autotune.errors import MissingDependencyError, UnknownNameError, is_toolchain_refusal, one_line, require_text
from autotune.executor.compile_pool import COMPILE_SECONDS, SERVER_SECONDS, CompilePool
from autotune.operation import Operation
from autotune.registry import get_implementation
from autotune.shape import PagedShape, Shape
from autotune.trial import Candidate, Status
from autotune.workload import Workload, read_workloads

PATIENCE: Final = 2 * COMPILE_SECONDS + SERVER_SECONDS  # with a compile server that is replaced meanwhile
LATER: Final = "its library compiles it at its first call"


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmedShape:
    """A shape whose kernel was compiled ahead, or why it was not.

    Attributes:
        operation: the name of what is computed.
        shape: the shape that was asked for.
        device: the name of the GPU that it was compiled for.
        candidate: what is served for the shape.
        rung: of the ladder, as in ``Provenance``.
        seconds: how long it took; next to nothing where Triton's cache had everything.
        failure: the reason why a call may still compile or fail; empty where it will not.
    """

    operation: str
    shape: Shape
    device: str
    candidate: Candidate
    rung: Rung
    seconds: float
    failure: str = ""


def warm(
    shapes: Shape | Iterable[Shape | Workload | tuple[str, Shape]],
    *,
    device: str | None = None,
    operation: str | None = None,
    every_output: bool = False,
) -> tuple[WarmedShape, ...]:
    """Pick, bind and compile ahead what calls of these shapes will launch, so that none of them compiles.

    On the GPU here, the current one, kernels are compiled into this process and loaded; of paged shapes ``append_kv``,
    too, for a cache that lies as ``PagedKVCache``'s. For another device, or without
    a GPU, they are compiled into Triton's cache, by processes of their own: what runs there later with that cache
    (``$TRITON_CACHE_DIR``) and the same versions only loads them.

    Args:
        shapes: one shape, or several; an operation may stand beside each: ``(operation, shape)``.
        device: the name of the GPU, as in ``get_kernel``; the one here by default.
        operation: the operation's name, where several take such shapes; the first that supports a shape by default.
        every_output: also compile for calls that ask for every output, such as the log-sum-exp.

    Returns:
        A result for each shape, in their order. One that does not compile has the reason as ``failure``.

    Raises:
        MissingDependencyError: there is no GPU and no ``device``; or this machine cannot compile.
        UnknownNameError: no table, and no list of ours, knows the device.
        UsageError: an argument is wrong, or a shape is not supported.

    Example:
        >>> autotune.warm(AttentionShape(batch=1, heads=32, kv_heads=8, seq_q=4096, head_dim=128, causal=True))
        >>> autotune.seal()
    """
    workloads = read_workloads(shapes, operation)
    if device is not None:
        require_text("device", device, NVIDIA_H200.name)
    here = platforms.current_device() if platforms.has_gpu() else None
    if here is None and device is None:
        raise MissingDependencyError(platforms.NO_GPU)
    with ahead():
        if here is not None and (device is None or platforms.is_named(here, device)):
            return tuple(_warm_here(work, here, every_output) for work in workloads)
        if (target := device_by_name(str(device))) is None:
            known = ", ".join(each.name for each in platforms.known_devices())
            raise UnknownNameError(f"device={device!r} is unknown; known: {known}; or an architecture")
        with contextlib.closing(CompilePool(target, jobs=1, timeout=COMPILE_SECONDS)) as pool:
            return tuple(_warm_for(work, target, every_output, pool) for work in workloads)


def _warm_here(work: Workload, device: Device, every_output: bool) -> WarmedShape:
    """Compile for the current GPU, in this process."""
    operation, shape = work
    started, failure = perf_counter(), ""
    kernel = pick_for_device(shape, platforms.current_index(), operation.name)
    try:
        if not kernel.warm(every_output=every_output):
            failure = LATER
        elif isinstance(shape, PagedShape):
            _warm_append(shape)
    except Exception as error:  # of the last candidate
        if not is_toolchain_refusal(error):
            raise
        failure = one_line(error)
    return _result(kernel, device, kernel.alternatives[0], started, failure)


def _warm_append(shape: PagedShape) -> None:
    """Compile ``append_kv`` for the caches of a shape."""
    from autotune.kernels.paged_cache.append import PACKAGE, warmup  # loads torch and triton

    watch_compiles(PACKAGE)
    load_binaries(warmup(shape))


def _warm_for(work: Workload, device: Device, every_output: bool, pool: CompilePool) -> WarmedShape:
    """Compile for another device, by a compile server, the first candidate that it can hold."""
    operation, shape = work
    started, failures = perf_counter(), []
    kernel = pick_for_device(shape, device, operation.name)
    pool.open(operation, shape)
    for each in kernel.alternatives:
        failures.append(_compile(each.candidate, operation, every_output, pool))
        if failures[-1] in ("", LATER):
            return _result(kernel, device, each, started, failures[-1])
    return _result(kernel, device, kernel.alternatives[0], started, failures[0])


def _compile(candidate: Candidate, operation: Operation[Any], every_output: bool, pool: CompilePool) -> str:
    """Compile a candidate of the open problem; return the reason why it failed, or else ""."""
    if not get_implementation(operation.name, candidate.implementation).compiles_ahead:
        return LATER
    for with_all in (False, True) if every_output else (False,):
        pool.submit(candidate, every_output=with_all)
        outcome = pool.receive(PATIENCE)
        if outcome is None:
            return f"nothing compiled for {PATIENCE:.0f} s"
        if outcome.status is not Status.OK:
            return f"{outcome.status}: {outcome.message}"
    return ""


def _result(kernel: TunedKernel, device: Device, served: Alternative, started: float, failure: str) -> WarmedShape:
    return WarmedShape(
        operation=kernel.operation,
        shape=kernel.shape,
        device=device.name,
        candidate=served.candidate,
        rung=served.provenance.rung,
        seconds=perf_counter() - started,
        failure=failure,
    )
