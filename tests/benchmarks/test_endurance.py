"""Endurance: the configs that are launched, and how a hang and a failure are told."""

import pytest

from autotune import platforms
from autotune.device import NVIDIA_H200
from autotune.registry import get_implementation
from benchmarks import endurance
from benchmarks.live import processes
from benchmarks.live.processes import Finished


@pytest.fixture(autouse=True)
def on_an_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platforms, "current_device", lambda: NVIDIA_H200)
    monkeypatch.setattr(platforms, "has_gpu", lambda: True)
    monkeypatch.setattr(endurance, "compile_all", lambda implementation: None)


def test_the_default_comes_first_and_each_other_config_is_one_step_from_it() -> None:
    implementation = get_implementation("flash_attention", "gluon_hopper")
    for shape in endurance.shapes_of(implementation):
        default, *others = endurance.configs_of(implementation, shape)
        assert default == implementation.space.default(shape, NVIDIA_H200)
        assert len(others) >= 5
        for config in others:
            assert implementation.space.why_invalid(config, shape, NVIDIA_H200) is None
            assert sum(config[name] != value for name, value in default.items()) == 1


@pytest.mark.parametrize(("code", "text"), [(None, "hung"), (1, "ended with 1"), (0, "all well")])
def test_a_hang_and_a_failure_are_told_with_the_last_config(
    code: int | None, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "triton batch 4: A\n  not launched: too much shared memory\ntriton batch 4: C\ntriton batch 4: B\n"
    monkeypatch.setattr(processes, "run", lambda *words, seconds: Finished("m", code, 2.0, said, ""))
    assert endurance.main(["triton", "--launches", "7"]) == (0 if code == 0 else 1)
    printed = capsys.readouterr().out
    counts = "2 schedules of 7 launches, 1 not launched, 9 defaults of 1000 runs in 2 s"
    assert printed.startswith(f"triton: {counts}: {text}\n")
    assert ("triton batch 4: B" in printed) == (code != 0)
