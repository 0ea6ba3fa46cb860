"""The grid of studies, and one tuning of it, as plain data that JSON can hold."""

import os
import resource
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from autotune.dispatch import reload
from autotune.executor.several_gpus import GpuUse
from autotune.shape import AttentionShape, PagedShape, Shape
from autotune.space import Config
from autotune.table import Store
from autotune.trial import Candidate
from autotune.tuning import TunedShape, tune
from autotune.workload import Workload, read_workloads
from benchmarks.process_memory import watched

# Long problems: a GPU judges a config of a short one in 0.02 to 0.05 s, which takes 1 to 4 s of a core to compile
# (the recorded grids of an H100 and an H200), so that several GPUs would wait for the same cores.
DENSE: Final = [
    AttentionShape(batch=batch, heads=32, kv_heads=8, seq_q=seq, head_dim=128, causal=causal)
    for batch, seq, causal in (
        *((2, 16384, True), (4, 16384, True), (1, 32768, True), (2, 32768, True)),
        *((1, 16384, False), (2, 16384, False), (1, 24576, False), (1, 32768, False)),
    )
]
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
PAGED: Final = [
    PagedShape(batch=batch, heads=32, kv_heads=8, max_context=context, head_dim=128)
    for batch in (8, 16)
    for context in (24576, 49152, 73728, 98304)
]


def this_host() -> str:
    """Name this host since it was booted: hosts that are lent may all have one name."""
    booted = BOOT_ID.read_text()[:8] if BOOT_ID.exists() else ""
    return f"{socket.gethostname()}, {os.cpu_count()} cores, boot {booted or 'unknown'}"


def grid() -> list[Workload]:
    shapes: list[Shape | Workload | tuple[str, Shape]] = [
        *(("flash_attention", shape) for shape in DENSE),
        *(("paged_decode", shape) for shape in PAGED),
    ]
    return read_workloads(shapes, None)


@dataclass(frozen=True, slots=True)
class Study:
    """The result of one search: its winner, and those that measurement cannot tell from it."""

    winner: Candidate | None
    median_us: float | None = None
    ties: tuple[Candidate, ...] = ()
    measured: int = 0
    seconds: float | None = None
    failure: str = ""

    @classmethod
    def of(cls, found: TunedShape) -> "Study":
        search, winner = found.search, found.winner
        return cls(
            winner=None if winner is None else winner.candidate,
            median_us=None if winner is None or winner.timing is None else winner.timing.median_us,
            ties=tuple(trial.candidate for trial in found.ties),
            measured=0 if search is None else search.measured,
            seconds=None if search is None else search.seconds,
            failure=found.failure,
        )


@dataclass(frozen=True, slots=True)
class GridRun:
    """One tuning of the grid, on a host.

    ``cores_busy`` is the share of the time of all cores of the host that it took, by the system's account of ended
    processes, or None where they are not this process's; ``memory_mb`` the most that its child processes were seen to
    take at once, once a second.
    """

    host: str
    seconds: float
    cores_busy: float | None
    memory_mb: float
    gpus: tuple[GpuUse, ...]
    studies: tuple[Study, ...]

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> "GridRun":
        """Return the run of ``dataclasses.asdict``, through JSON or not."""
        return cls(
            **{
                **given,
                "gpus": tuple(GpuUse(**each) for each in given["gpus"]),
                "studies": tuple(
                    Study(
                        **{
                            **each,
                            "winner": _candidate(each["winner"]),
                            "ties": tuple(_candidate(tie) for tie in each["ties"]),
                        }
                    )
                    for each in given["studies"]
                ),
            }
        )

    def as_dict(self) -> dict[str, Any]:
        plain = asdict(self)
        for study, made in zip(self.studies, plain["studies"], strict=True):
            made["winner"] = _plain(study.winner)
            made["ties"] = [_plain(tie) for tie in study.ties]
        return plain


def _plain(candidate: Candidate | None) -> dict[str, Any] | None:
    if candidate is None:
        return None
    return {"implementation": candidate.implementation, "config": dict(candidate.config)}


def _candidate(given: dict[str, Any] | None) -> Candidate | None:
    return None if given is None else Candidate(given["implementation"], Config(given["config"]))


@dataclass
class Consumption:
    """The time, the cores and the memory of a block of code."""

    seconds: float = 0.0
    cores_busy: float = 0.0
    memory_mb: float = 0.0


@contextmanager
def measured() -> Iterator[tuple[Path, Consumption]]:
    """Measure a block, in a folder of its own: nothing is compiled, and no table is known but those that ship."""
    found, before, began = Consumption(), _processor_seconds(), time.monotonic()
    with tempfile.TemporaryDirectory() as name, watched() as memory:
        folder = Path(name)
        os.environ.update(TRITON_CACHE_DIR=str(folder / "triton"), AUTOTUNE_HOME=str(folder / "home"))
        reload()
        yield folder, found
        found.seconds = time.monotonic() - began
    found.memory_mb = memory.total
    found.cores_busy = (_processor_seconds() - before) / (found.seconds * (os.cpu_count() or 1))


def _processor_seconds() -> float:
    """Return the seconds of all cores that this process took, with its children that have ended."""
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


def run_on(gpus: Sequence[int], *, trials: int, budget: float) -> GridRun:
    """Tune the grid by one coordinator, on these GPUs."""
    with measured() as (folder, found):
        tuned = tune(grid(), gpus=gpus, trials=trials, budget=budget, store=Store(folder / "home"))
        if tuned.interrupted:
            raise KeyboardInterrupt
    return GridRun(
        host=this_host(),
        seconds=found.seconds,
        cores_busy=found.cores_busy,
        memory_mb=found.memory_mb,
        gpus=tuned.gpus,
        studies=tuple(Study.of(result) for result in tuned.results),
    )
