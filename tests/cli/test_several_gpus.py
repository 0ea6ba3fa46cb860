"""``autotune search --gpus``: lines and shares of several GPUs, whose workers are fake; other texts are refused."""

import json
import sys
from pathlib import Path

import pytest

from autotune.cli.app import main
from autotune.registry import register, register_implementation
from tests.executor import calm
from tests.executor.calm import CALM
from tests.executor.driving import replace_two_gpus
from tests.executor.processes import watch


def run_command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    monkeypatch.setattr(sys, "argv", ["autotune", "search", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_the_command_prints_each_gpus_lines_and_shares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = "batch=1,heads=1,kv_heads=1,seq_q=32,seq_kv=32,head_dim=16,head_dim_v=16,dtype=bfloat16"
    command = ["--operation", CALM.name, "--shape", shape, "--sampler", "exhaustive", "--budget", "60s", "--jobs", "2"]
    register(CALM.name, f"{calm.__name__}:CALM")
    register_implementation(CALM.name, "ours", f"{calm.__name__}:IMPLEMENTATION")
    with watch(monkeypatch):
        replace_two_gpus(monkeypatch, tmp_path, meet=False)
        code = run_command(monkeypatch, *command, "--gpus", "0,1", "--json")
    printed = capsys.readouterr()
    assert not code, printed.err
    data = json.loads(printed.out)
    assert [each["operation"] for each in data["results"]] == ["calm"]
    assert [(each["index"], each["device"], each["dropped"]) for each in data["gpus"]] == [
        (0, "NVIDIA H200", ""),
        (1, "NVIDIA H200", ""),
    ]
    assert "gpu       GPU 1, NVIDIA H200: busy " in printed.err
    assert "[0] " in printed.err or "[1] " in printed.err


def test_without_a_gpu_the_option_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("autotune.platforms.gpu_count", lambda: 0)
    assert run_command(monkeypatch, "--gpus", "all") == 1
    assert "gpus='all': no GPU is visible here; leave it out to replay a recorded sweep" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0;1", "", "-1", "0,", "ALL"])
def test_the_command_refuses_other_texts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    assert run_command(monkeypatch, "--gpus", text) == 2
    assert f"gpus={text!r} is not allowed; expected all, or indices" in capsys.readouterr().err
