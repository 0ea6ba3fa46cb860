"""A hundred injected faults: each ends as the right status, and what comes after it is none the worse.

Once with fakes on the CPU, through a whole search; once with a real Triton kernel on a GPU (``pytest -m gpu``).
"""

import random
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from autotune import platforms
from autotune.device import NVIDIA_H200
from autotune.executor.compile_pool import CompilePool
from autotune.executor.gpu import GpuExecutor
from autotune.executor.settings import Settings
from autotune.executor.worker_keeper import LOST
from autotune.operation import Operation
from autotune.search import Limits, search
from autotune.shape import AttentionShape
from autotune.space import Config
from autotune.table import Store
from autotune.trial import Outcome, Stage, Status
from tests.executor import faulty, faulty_triton
from tests.executor.driving import answer, replace_gpu
from tests.executor.processes import Processes

STATUSES: Final = {
    "hang": Status.HANG,
    "illegal access": Status.ILLEGAL_ACCESS,
    "trap": Status.ILLEGAL_ACCESS,
    "out of shared memory": Status.OUT_OF_RESOURCES,
    "wrong numbers": Status.WRONG_RESULT,
    "NaN": Status.NAN_RESULT,
    "compiler hangs": Status.COMPILE_TIMEOUT,
    "compiler's child hangs": Status.COMPILE_TIMEOUT,
    "compiler crashes": Status.COMPILE_ERROR,
    "worker killed": Status.WORKER_DIED,
    "fine": Status.OK,
}

# Of the real kernel: how many of each, and how they end.
REAL: Final = {
    "endless": (10, Status.HANG),
    "out_of_bounds": (20, Status.ILLEGAL_ACCESS),
    "trap": (20, Status.ILLEGAL_ACCESS),
    "too_much_shared_memory": (14, Status.OUT_OF_RESOURCES),
    "wrong": (14, Status.WRONG_RESULT),
    "nan": (14, Status.NAN_RESULT),
    "compiler_hangs": (4, Status.COMPILE_TIMEOUT),
    "compiler_child_hangs": (4, Status.COMPILE_TIMEOUT),
}
HANGING: Final = ("compiler_hangs", "compiler_child_hangs")
SCREEN_SECONDS: Final = 2.0
COMPILE_SECONDS: Final = 3.0
BACK_SECONDS: Final = 5.0  # a worker answers again so soon after the last one's time was up


@pytest.mark.parametrize(
    ("operation", "faults"),
    [(faulty.SHORT_OPERATION, 10), (faulty.SUITE_OPERATION, 100)],
    ids=["each", "a hundred"],
)
@pytest.mark.slow
def test_a_search_survives_faults(
    processes: Processes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    operation: Operation[AttentionShape],
    faults: int,
) -> None:
    replace_gpu(monkeypatch)
    extras = range(faulty.SUITE_SIZES[operation.name])
    store = Store(tmp_path)
    expected = {
        Config({**faulty.SUITE[kind], "extra_us": extra_us}): status
        for kind, status in STATUSES.items()
        for extra_us in extras
    }
    with closing(GpuExecutor(Settings(jobs=4, screen_seconds=1.0, compile_seconds=4.0))) as executor:
        result = search(operation, faulty.SHAPE, executor, store, limits=Limits(), sampler="exhaustive")
        assert answer(executor, faulty.candidate()).status is Status.OK
    processes.wait_for(0)
    assert {t.config: t.status for t in store.trials(operation.name) if t.stage is Stage.SCREEN} == expected
    assert len(expected) == faults + len(extras)
    assert result.winner is not None
    assert result.winner.candidate == faulty.candidate(extra_us=0)


# The real kernel


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Outcome]]:
    """Every fault of the real kernel through the real compiler, for the H200."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        found: list[Outcome | None] = []
        sound = [fault for fault in faulty_triton.FAULTS if fault not in HANGING]
        for faults, timeout in ((sound, 60.0), (HANGING, 2.0)):
            with closing(CompilePool(NVIDIA_H200, jobs=2, timeout=timeout)) as pool:
                pool.open(faulty_triton.OPERATION, faulty_triton.SHAPE)
                for fault in faults:
                    pool.submit(faulty_triton.candidate(fault))
                found += [pool.receive(90.0) for _ in faults]
        yield {str(outcome.config["FAULT"]): outcome for outcome in found if outcome is not None}


@pytest.mark.slow
def test_the_real_kernel_compiles_as_its_faults_say(compiled: dict[str, Outcome]) -> None:
    ends = {"too_much_shared_memory": Status.OUT_OF_RESOURCES, **dict.fromkeys(HANGING, Status.COMPILE_TIMEOUT)}
    assert {fault: outcome.status for fault, outcome in compiled.items()} == {
        fault: ends.get(fault, Status.OK) for fault in faulty_triton.FAULTS
    }, [outcome.message for outcome in compiled.values()]
    binaries = [outcome.resources.binary for outcome in compiled.values() if outcome.resources.binary is not None]
    assert len(set(binaries)) == len(binaries)  # none is folded with another


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:the GPU is shared")  # with this process, where another test ran on the GPU
def test_a_gpu_survives_a_hundred_faults(processes: Processes, capsys: pytest.CaptureFixture[str]) -> None:
    if not platforms.has_gpu():
        pytest.skip(platforms.NO_GPU)
    faults = [(fault, number, status) for fault, (count, status) in REAL.items() for number in range(count)]
    random.Random(0).shuffle(faults)
    fine = faulty_triton.candidate("fine")
    found: list[Status] = []
    back: list[float] = []
    with closing(start_real(screen_seconds=60.0)) as executor:  # patient: Triton builds its launcher once
        fresh = answer(executor, fine)
    with closing(start_real(screen_seconds=SCREEN_SECONDS)) as executor:
        lost_at = note_losses(executor)
        for fault, number, _ in faults:
            found.append(answer(executor, faulty_triton.candidate(fault, number)).status)
            worn = answer(executor, fine)
            assert worn.status is Status.OK, worn.message
            if found[-1] in LOST:
                back.append(time.monotonic() - lost_at[-1])
        race = executor.race([faulty_triton.candidate("fine", number) for number in range(2)], seconds=1.0)
    processes.wait_for(0)
    wanted = [status for _, _, status in faults]
    right = sum(status is expected for status, expected in zip(found, wanted, strict=True))
    with capsys.disabled():
        print(f"\n{right} of {len(faults)} faults ended rightly; a worker was back after at most {max(back):.1f} s")
    assert found == wanted
    assert (len(found), len(back), len(lost_at)) == (100, 50, 50)
    assert max(back) <= BACK_SECONDS
    assert [outcome.status for outcome in race.outcomes] == [Status.OK, Status.OK]
    assert (worn.error, worn.error_limit) == (fresh.error, fresh.error_limit)
    assert worn.error is not None


def start_real(*, screen_seconds: float) -> GpuExecutor:
    settings = Settings(early_stop=False, screen_seconds=screen_seconds, compile_seconds=COMPILE_SECONDS)
    executor = GpuExecutor(settings)
    executor.open(faulty_triton.OPERATION, faulty_triton.SHAPE)
    return executor


def note_losses(executor: GpuExecutor) -> list[float]:
    """When each worker's time was up, or its death was seen."""
    lost_at: list[float] = []
    lose = executor._workers.lose

    def note() -> None:
        lost_at.append(time.monotonic())
        lose()

    executor._workers.lose = note  # type: ignore[method-assign]
    return lost_at
