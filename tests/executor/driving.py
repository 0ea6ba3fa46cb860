"""Drives the executor of a GPU: asks for outcomes, over the fake worker where there is no GPU."""

from collections.abc import Callable
from pathlib import Path

import pytest

from autotune import platforms
from autotune.executor import worker_keeper
from autotune.executor.child import Child
from autotune.executor.gpu import GpuExecutor
from autotune.executor.settings import Settings
from autotune.trial import Candidate, Outcome, Resources, Status
from tests.executor.fake_worker import MEETING, TROUBLE, timing
from tests.executor.faulty import candidate, config

TIMING = timing(config())
RESOURCES = Resources(shared_bytes=1024)  # of every candidate that compiles


def replace_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on there is a GPU, whose worker is the fake one; compilers are the real ones."""

    def start_fake(module: str, *arguments: str) -> Child:
        return Child({"autotune.executor.worker": "tests.executor.fake_worker"}[module], *arguments)

    monkeypatch.setattr(platforms, "has_gpu", lambda: True)
    monkeypatch.setattr(worker_keeper, "Child", start_fake)


def replace_two_gpus(monkeypatch: pytest.MonkeyPatch, folder: Path, *, meet: bool) -> Callable[[int, str], None]:
    """From here on there are two, as ``replace_gpu`` makes one; returned is what spoils one of them, by its index.

    With ``meet`` the first configs that run "meet" end only once both GPUs screen one.
    """
    replace_gpu(monkeypatch)
    monkeypatch.setattr(platforms, "gpu_count", lambda: 2)
    monkeypatch.setenv(TROUBLE, str(folder / "trouble"))
    meeting = folder / "meeting"
    monkeypatch.setenv(MEETING, str(meeting))
    meeting.mkdir()
    for index in () if meet else ("0", "1"):
        (meeting / index).touch()

    def spoil(index: int, word: str) -> None:
        (folder / f"trouble.{index}").write_text(word)

    return spoil


def start_executor() -> GpuExecutor:
    """One that soon loses its patience with a worker."""
    return GpuExecutor(Settings(jobs=2, screen_seconds=2.0, compile_seconds=20.0))


def collect(executor: GpuExecutor) -> Outcome:
    outcome = executor.collect()
    assert outcome is not None
    return outcome


def answer(executor: GpuExecutor, wanted: Candidate) -> Outcome:
    executor.submit(wanted)
    return collect(executor)


def assert_works(executor: GpuExecutor) -> None:
    """A good candidate is measured, and a race ends; the fake worker refuses both until a problem is opened."""
    outcome = answer(executor, candidate())
    assert outcome.compile_seconds is not None
    assert (outcome.candidate, outcome.status, outcome.timing) == (candidate(), Status.OK, TIMING)
    assert outcome.resources == RESOURCES
    race = executor.race([candidate()], seconds=0.1)
    assert [raced.timing for raced in race.outcomes] == [TIMING]
    assert race.fastest_baseline.name == "sdpa_flash"
