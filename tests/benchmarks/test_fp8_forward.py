"""Attention of e4m3 beside bf16 and cuDNN: rates, errors, cuDNN's graph, and what ends with 1."""

from dataclasses import replace
from typing import Any

import pytest

from autotune.registry import load_definition
from autotune.shape import AttentionShape
from benchmarks.fp8_forward import ROWS, FloatErrors, Fp8Row, cells_of, cudnn_graph, errors_of, is_wanted, last_rows

torch = pytest.importorskip("torch")

LONG = AttentionShape(batch=1, heads=16, seq_q=16384, head_dim=128, dtype="fp8")
SMALL = AttentionShape(batch=2, heads=2, seq_q=300, head_dim=32, dtype="fp8", causal=True)
ERRORS = {name: FloatErrors(0.0123, 0.025) for name in ("e4m3", "bf16", "e4m3 of bf16")}


def row(milliseconds: float, **fields: Any) -> Fp8Row:
    times = {"e4m3": 1000 * milliseconds, "bf16": 4000.0}
    return Fp8Row(replace(LONG, **fields), "config", times, ERRORS)


def test_rates_are_of_both_products() -> None:
    flops = 4 * 16 * 16384**2 * 128
    found = row(2.5)
    assert found.rate("e4m3") == pytest.approx(flops / 2.5e-3 / 1e12)
    assert found.rate("cudnn") is None
    expected = (128, "full", 16384, "2500.0", "880", "550", "", *["0.012, 2.50%"] * 3, "config")
    assert cells_of(found) == expected


def test_only_long_problems_without_a_mask_have_a_wanted_rate() -> None:
    assert is_wanted([row(2.5), row(9.0, causal=True), row(9.0, seq_q=4096, seq_kv=4096), row(9.0, head_dim=64)])
    assert not is_wanted([row(2.7)])


def test_errors_are_of_the_last_rows_over_what_bytes_stand_for() -> None:
    definition = load_definition("flash_attention")
    inputs = definition.make_inputs(SMALL, seed=0, device="cpu")
    whole = definition.reference(inputs)[0][:1, -ROWS:, :1]
    found = definition.reference(last_rows(SMALL, inputs))[0]
    assert errors_of(found, whole).largest < 1e-12
    assert errors_of(whole + 1.0, whole).largest == pytest.approx(1.0)


def test_cudnn_takes_the_graph() -> None:
    pytest.importorskip("cudnn")
    inputs = load_definition("flash_attention").make_inputs(SMALL, seed=0, device="cpu")
    out = torch.empty(2, 300, 2, 32, dtype=torch.bfloat16)
    _, declared = cudnn_graph(inputs, out, causal=True)
    assert len(declared) == 12
