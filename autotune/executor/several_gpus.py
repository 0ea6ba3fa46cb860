"""The GPUs of one host that search side by side: of one kind, a worker on each, and one pool of compilers for all."""

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from autotune import platforms
from autotune.device import Device
from autotune.errors import MissingDependencyError, UnusableGpuError, UsageError
from autotune.executor.compile_pool import CompilePool, limit_jobs
from autotune.executor.gpu import GpuExecutor
from autotune.executor.gpu_children import GpuChildren
from autotune.executor.gpu_health import GpuHealth
from autotune.executor.interruption import Interruption
from autotune.executor.settings import GpuNames, Settings
from autotune.executor.shared_server import SharedServer
from autotune.executor.worker_keeper import WorkerKeeper

ALL: Final = "all"


@dataclass(frozen=True, slots=True)
class GpuUse:
    """The part of one GPU in a tuning by several.

    ``busy`` is the share of the time, from the first search to the end of the last, in which its worker opened a
    problem, screened or raced; ``starved`` is the share in which it was ready and all that it could do was still being
    compiled; ``dropped`` is the reason why others did its work from then on, or empty.
    """

    index: int
    device: str
    busy: float
    starved: float = 0.0
    dropped: str = ""

    def __str__(self) -> str:
        dropped = f"; dropped: {self.dropped}" if self.dropped else ""
        shares = f"busy {self.busy:.0%} of the time, waiting for compilers {self.starved:.0%}"
        return f"GPU {self.index}, {self.device}: {shares}{dropped}"


def read_gpus(gpus: GpuNames) -> tuple[int, ...]:
    """Return the indices of the GPUs that are meant, in order and each once.

    Raises:
        MissingDependencyError: no GPU is visible.
        UsageError: they are named otherwise, or one of them is not here.
    """
    allowed = f"expected {ALL!r}, or a list of indices as torch counts them"
    is_list = isinstance(gpus, list | tuple | range) and all(type(each) is int for each in gpus)
    if gpus != ALL and not (is_list and gpus):
        raise UsageError(f"gpus={gpus!r} is not allowed; {allowed}")
    count = platforms.gpu_count()
    if not count:
        raise MissingDependencyError(
            f"gpus={gpus!r}: no GPU is visible here; leave it out to replay a recorded sweep, or run `autotune doctor`"
        )
    indices = tuple(range(count)) if gpus == ALL else tuple(dict.fromkeys(map(int, gpus)))
    if unknown := [index for index in indices if not 0 <= index < count]:
        hint = f"; for {count} GPUs {','.join(map(str, range(count)))}" if indices == (count,) else ""
        raise UsageError(f"gpus={gpus!r} names {unknown[0]}; {allowed}, here 0 to {count - 1}{hint}")
    return indices


class SeveralGpus:
    """An executor for each GPU, by its index; those that cannot be opened are dropped at once.

    Args:
        settings: how each is used; ``jobs`` are the compilers of all together.
        gpus: which; ``device`` leaves out those of another name.

    Raises:
        MissingDependencyError: no GPU is visible, or none can be opened.
        UsageError: the arguments are wrong, or the GPUs are of several kinds: their rows must not mix.
    """

    def __init__(self, settings: Settings, gpus: GpuNames, device: str | None = None) -> None:
        if settings.index is not None:
            raise UsageError(f"settings.index={settings.index} is not allowed beside gpus={gpus!r}; name one of them")
        indices = read_gpus(gpus)
        jobs = limit_jobs(settings.jobs, spare=len(indices))
        self._dropped: dict[int, str] = {}
        self._staying: set[int] = set()  # those that others can count on
        self._leaving = threading.Lock()  # of those that stay
        self._devices: dict[int, Device] = {}
        self._interruption = Interruption()
        self._began = time.monotonic()
        self.executors: dict[int, GpuExecutor] = {}
        with contextlib.ExitStack() as opened:
            opened.callback(self._interruption.close)
            server = SharedServer(jobs=jobs.count, timeout=settings.compile_seconds, interruption=self._interruption)
            opened.callback(server.close)
            self._workers = {each: WorkerKeeper(settings.policy, each, self._interruption) for each in indices}
            for workers in self._workers.values():
                opened.callback(workers.close)
            found = list(self._identify(gpus, device))
            self._staying.update(found)
            for index in found:
                pool = CompilePool(None, jobs=jobs.count, timeout=settings.compile_seconds, server=server)
                opened.callback(pool.close)
                self.executors[index] = GpuExecutor(
                    settings,
                    GpuChildren(self._workers[index], pool, jobs),
                    health=GpuHealth(partial(self._may_leave, index)) if len(found) > 1 else None,
                    interruption=self._interruption,
                )
            self._closing = opened.pop_all()

    @property
    def device(self) -> Device:
        """The device that all of them are."""
        return next(iter(self.executors.values())).device

    def begin(self) -> None:
        """Count the time that they are busy from now on."""
        self._began = time.monotonic()

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in every thread that waits for one of them, now and from now on."""
        self._interruption.set()

    @property
    def is_interrupted(self) -> bool:
        return self._interruption.is_set

    def drop(self, index: int, reason: str) -> None:
        """Do without a GPU, for the reason that is told at the end; by the thread that uses its executor."""
        with self._leaving:
            self._staying.discard(index)
        self._dropped[index] = reason
        self.executors[index].close()

    @property
    def dropped(self) -> dict[int, str]:
        """The reasons why GPUs were dropped, by their index."""
        return dict(self._dropped)

    def uses(self) -> tuple[GpuUse, ...]:
        """Return the part of each in the time until now."""
        whole = max(time.monotonic() - self._began, 1e-9)
        return tuple(
            GpuUse(
                index=index,
                device=self._devices[index].name if index in self._devices else "unknown",
                busy=min(1.0, workers.busy_seconds / whole),
                starved=min(1.0, workers.starved_seconds / whole),
                dropped=self._dropped.get(index, ""),
            )
            for index, workers in self._workers.items()
        )

    def close(self) -> None:
        """End every child process; safe to call twice."""
        self._closing.close()

    def _may_leave(self, index: int) -> bool:
        """Let a GPU whose times are disturbed be dropped if another stays; the last measures on, and marks its rows."""
        with self._leaving:
            is_last = not self._staying - {index}
            if not is_last:
                self._staying.discard(index)
            return not is_last

    def _identify(self, gpus: GpuNames, device: str | None) -> Iterator[int]:
        """Wait until all have said which device they are; return those that may search together."""
        for index, workers in self._workers.items():
            try:
                workers.identify()
                self._devices[index] = workers.device
            except UnusableGpuError as error:
                self._dropped[index] = str(error)
        if not self._devices:
            raise MissingDependencyError(no_gpu_left(self._dropped))
        if device is not None:
            for index, found in list(self._devices.items()):
                if not platforms.is_named(found, device):
                    self._workers.pop(index).close()
                    del self._devices[index]
            if not self._devices:
                raise UsageError(f"device={device!r} is none of gpus={gpus!r}")
        kinds = dict.fromkeys(self._devices.values())
        if len(kinds) > 1:
            listed = "; ".join(
                f"{kind.name} at {kind.power_cap_watts} W: "
                + ", ".join(str(index) for index, found in self._devices.items() if found == kind)
                for kind in kinds
            )
            raise UsageError(
                f"gpus={gpus!r} are of {len(kinds)} kinds, whose rows must not mix ({listed}); name those of one kind"
            )
        return iter(list(self._devices))


def no_gpu_left(dropped: dict[int, str]) -> str:
    """Return the message of an error where every GPU was dropped."""
    return "no GPU is left: " + "; ".join(f"GPU {index}: {reason}" for index, reason in dropped.items())
