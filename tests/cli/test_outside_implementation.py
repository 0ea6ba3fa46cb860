"""Every command, and ``attention``, use an implementation that a package outside the tree registered."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from autotune import attention, platforms
from autotune.device import NVIDIA_H200
from autotune.executor.replay import ReplayExecutor
from autotune.lab.bench.races import compare_on_gpu
from autotune.registry import get_operation
from autotune.table import write_shipped
from autotune.trial import Stage
from tests import sample
from tests.cli.conftest import Machine, Ran
from tests.outside import recorded, register

Run = Callable[..., Ran]
FASTER, SLOWER = 64, 128  # lengths


@pytest.mark.slow
def test_every_command_uses_it(
    machine: Machine, run: Run, confirmed: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch)
    for seq, microseconds in ((FASTER, 50.0), (SLOWER, 900.0)):  # at one length theirs is faster, at the other ours
        machine.ship_sweep(seq)
        path = Path(f"nvidia_h200/flash_attention/sweeps/naive_{seq}.parquet")
        write_shipped(path, recorded(seq, microseconds), results=machine.results)
    found = json.loads(run("search", "--seq", f"{FASTER},{SLOWER}", "--sampler", "exhaustive", "--json").out)
    assert [each["winner"]["implementation"] for each in found] == ["naive", "triton"]

    assert {row["implementation"] for row in json.loads(run("show", "--json").out)} == {"naive", "triton"}
    for seq, name in ((FASTER, "naive"), (SLOWER, "triton")):
        (served,) = json.loads(run("lookup", "--seq", seq, "--json").out)
        assert (served["implementation"], served["rung"]) == (name, "exact")
    winner = run("explain", "CHUNK=16", "--implementation", "naive", "--seq", FASTER)
    assert (winner.code, "naive" in winner.out, "won" in winner.out) == (0, True, True)

    page = tmp_path / "report.html"
    assert run("report", "--output", page).code == 0
    assert "CHUNK" in page.read_text()
    assert "naive" in page.read_text()

    executor = ReplayExecutor(sample.trial().device, recorded(FASTER, 50.0))
    raced = compare_on_gpu(executor, get_operation("flash_attention"), sample.shape(FASTER), [], seconds=1.0).served
    assert raced is not None
    assert raced.candidate is not None
    assert (raced.candidate.implementation, raced.timing) == ("naive", sample.timing(50.0))


@pytest.mark.slow
def test_attention_computes_with_it(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch)
    machine.tune(sample.trial(), *(trial for trial in recorded(FASTER, 50.0) if trial.stage is Stage.RACE))
    monkeypatch.setattr(platforms, "current_device", lambda index=None: NVIDIA_H200)
    monkeypatch.setattr("autotune.eager_calls.gpu_of", lambda tensor: 0)
    shape = sample.shape(FASTER)
    generator = torch.Generator().manual_seed(0)
    sizes = (shape.batch, shape.seq_q, shape.heads, shape.head_dim)
    q, k, v = (torch.randn(sizes, generator=generator).bfloat16() for _ in range(3))
    q_, k_, v_ = (tensor.transpose(1, 2).double() for tensor in (q, k, v))
    expected = torch.nn.functional.scaled_dot_product_attention(q_, k_, v_, is_causal=True).transpose(1, 2)
    monkeypatch.setattr("autotune.kernels.flash_attention.triton.KERNEL.bind", None)
    out = attention(q, k, v, causal=True)
    assert isinstance(out, torch.Tensor)
    torch.testing.assert_close(out.double(), expected, atol=2e-2, rtol=2e-2)
