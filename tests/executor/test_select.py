"""Opens executors: the GPU here where it is the one that was named, else a replay of that device's sweeps."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autotune import platforms
from autotune.device import NVIDIA_H200
from autotune.errors import MissingDependencyError, UnknownNameError, UsageError
from autotune.executor import select
from autotune.executor.gpu_children import GpuChildren
from autotune.executor.replay import ReplayExecutor
from autotune.executor.select import ExecutorInfo, Settings, describe_executor, open_executor, open_gpu, open_replay
from autotune.table import write_shipped
from autotune.trial import Policy
from tests import sample

SETTINGS = Settings(
    policy=Policy("eager", "warm"), jobs=3, compile_seconds=7.0, screen_seconds=8.0, early_stop=False, index=1
)


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No GPU, and one sweep of the H200 at each of two power caps."""
    sample.serve_from(monkeypatch, tmp_path / "home", tmp_path / "results")
    sample.hide_gpu(monkeypatch)
    for watts in (700, 500):
        rows = [replace(t, device=replace(t.device, power_cap_watts=watts)) for t in sample.sweep(sample.shape(64))]
        write_shipped(
            Path(f"nvidia_h200/flash_attention/sweeps/triton_at_{watts}.parquet"), rows, results=tmp_path / "results"
        )
    return tmp_path / "results"


class FakeGpu:
    """A GPU executor that remembers how it was opened and whether it was closed."""

    opened: list["FakeGpu"]

    def __init__(self, settings: Settings, children: GpuChildren | None) -> None:
        self.settings = settings
        self.children = children
        self.device = NVIDIA_H200
        self.is_closed = False
        FakeGpu.opened.append(self)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[FakeGpu]:
    """An H200 is here; the executors that were opened on it."""
    FakeGpu.opened = []
    monkeypatch.setattr(platforms, "has_gpu", lambda: True)
    monkeypatch.setattr(platforms, "current_device", lambda index: NVIDIA_H200)
    monkeypatch.setattr(select, "GpuExecutor", FakeGpu)
    return FakeGpu.opened


@pytest.mark.parametrize("name", [None, "NVIDIA H200"])
def test_without_a_gpu_a_replay_of_the_highest_power_cap_is_opened(name: str | None) -> None:
    executor = open_executor(name, Settings())
    assert isinstance(executor, ReplayExecutor)
    assert executor.device == NVIDIA_H200


@pytest.mark.parametrize("name", [None, "NVIDIA H200"])
def test_the_gpu_here_is_opened_with_every_setting(gpus: list[FakeGpu], name: str | None) -> None:
    assert open_executor(name, SETTINGS) is gpus[0]  # type: ignore[comparison-overlap]
    assert gpus[0].settings == SETTINGS
    assert not gpus[0].is_closed


def test_another_device_than_the_one_here_is_replayed_and_the_gpu_given_back(
    gpus: list[FakeGpu], results: Path
) -> None:
    other = replace(NVIDIA_H200, name="NVIDIA B200", arch="sm_100")
    rows = [replace(trial, device=other) for trial in sample.sweep(sample.shape(64))]
    write_shipped(Path("nvidia_b200/flash_attention/sweeps/triton_seq_64.parquet"), rows, results=results)
    assert open_executor("NVIDIA B200", Settings()).device == other
    assert [executor.is_closed for executor in gpus] == [True]


def test_an_unknown_device_is_refused_with_the_recorded_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"device='Voodoo 2' .*recorded: NVIDIA H200$"):
        open_executor("Voodoo 2", Settings())


def test_a_replay_refuses_a_policy_that_was_not_recorded() -> None:
    with pytest.raises(UsageError) as refused:
        open_replay(None, Policy("eager", "cold"))
    assert str(refused.value) == (
        "policy='eager', cache='cold' was not recorded on NVIDIA H200; "
        "recorded: policy='graph', cache='cold'. Another policy needs the GPU"
    )


def test_a_replay_answers_with_the_policy_that_was_asked_for(results: Path) -> None:
    warm = Policy("graph", "warm")
    rows = [replace(trial, policy=warm) for trial in sample.sweep(sample.shape(32))]
    write_shipped(Path("nvidia_h200/flash_attention/sweeps/triton_warm.parquet"), rows, results=results)
    assert open_replay(None, warm).policy == warm
    assert open_replay(None, Policy()).policy == Policy()


@pytest.mark.parametrize("hides", ["the environment", "another system", "the tests"])
def test_a_replay_starts_no_process_where_the_gpu_is_hidden(monkeypatch: pytest.MonkeyPatch, hides: str) -> None:
    """A driver is loaded; a worker and a compile server would be started and ended at once."""
    monkeypatch.undo()
    for vendor in platforms.PLATFORMS.values():
        monkeypatch.setattr(type(vendor), "driver_files", ("/dev/null",))
        for variable in vendor.visibility if hides == "the environment" else ():
            monkeypatch.setenv(variable, "")
    monkeypatch.setattr(sys, "platform", "win32" if hides == "another system" else "linux")
    if hides == "the tests":
        sample.hide_gpu(monkeypatch)
    monkeypatch.setattr(select, "start_children", lambda _: pytest.fail("processes of a GPU were started"))
    assert select._find_gpu(Settings(), None) is None


def test_measuring_without_a_gpu_is_refused() -> None:
    with pytest.raises(MissingDependencyError, match="no GPU is visible"):
        open_gpu(Settings())


@pytest.mark.parametrize("name", [None, "NVIDIA H200", "h200"])
def test_an_executor_is_described_without_opening_the_gpu(gpus: list[FakeGpu], name: str | None) -> None:
    info = describe_executor(name, Policy("eager", "warm"))
    assert info == ExecutorInfo("gpu", NVIDIA_H200, platforms.toolchain(), Policy("eager", "warm"))
    assert gpus == []


def test_an_executor_without_a_gpu_is_the_replay() -> None:
    assert isinstance(describe_executor(None, Policy()), ReplayExecutor)


def test_a_known_device_that_is_not_here_is_described_and_not_opened(results: Path) -> None:
    info = describe_executor("A100", Policy())
    assert (info.name, info.device.name, info.device.arch) == ("gpu", "NVIDIA A100-SXM4-80GB", "sm_80")
    assert isinstance(describe_executor("h200", Policy()), ReplayExecutor)
    for name, problem in (("A100", "is neither here nor recorded"), ("A1000", "is unknown; recorded: ")):
        with pytest.raises(UnknownNameError, match=f"device='{name}' {problem}"):
            open_executor(name, Settings())
    with pytest.raises(UnknownNameError, match="device='A1000' is unknown"):
        describe_executor("A1000", Policy())
