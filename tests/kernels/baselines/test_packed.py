"""Baselines over packed sequences: their numbers against fp64, what a library is given, and what they refuse."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from autotune.errors import BaselineUnavailableError, MissingDependencyError
from autotune.kernels.baselines import packed
from autotune.kernels.baselines.lists import OF_VARLEN
from autotune.kernels.baselines.packed import FlexDocuments, SdpaLoop, TorchVarlen
from autotune.kernels.flash_attention_varlen.definition import DEFINITION
from autotune.kernels.flash_attention_varlen.inputs import check_shape
from autotune.operation import Baseline
from autotune.registry import load_baselines
from autotune.shape import AttentionShape
from autotune.varlen_shape import VarlenShape
from tests.kernels.flash_attention_varlen.numerics import truth

SHAPE = VarlenShape(batch=5, heads=4, kv_heads=2, max_seq_q=40, head_dim=16, dtype="float32")
LENGTHS = [(20, 20), (3, 9), (0, 4), (7, 3), (4, 0)]
MASKS: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window": 5},
    "causal window": {"causal": True, "window": 5},
}
by_mask = pytest.mark.parametrize("fields", MASKS.values(), ids=[name.replace(" ", "-") for name in MASKS])


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Pytest's workers take the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def failure(baseline: Baseline, fields: dict[str, Any], device: str) -> str | None:
    shape = check_shape(replace(SHAPE, **fields), LENGTHS)
    inputs = DEFINITION.make_inputs(shape, seed=0, device=device)
    found, expected = baseline.prepare(shape, inputs)(), truth(inputs, torch.float64)[0]
    limit = 1e-5 if inputs.q.dtype == torch.float32 else 5e-3
    error = (found - expected).abs().max().item()
    return None if found.shape == expected.shape and error < limit else f"{tuple(found.shape)}: {error}"


@by_mask
def test_a_call_a_sequence_agrees_with_fp64(fields: dict[str, Any]) -> None:
    assert failure(SdpaLoop(), fields, "cpu") is None


@pytest.mark.parametrize("fields", [*MASKS.values(), {"causal": True, "softcap": True}], ids=[*MASKS, "softcap"])
def test_documents_agree_with_fp64(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU dynamo traces each call as ever, and torch's own code computes it uncompiled."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=CompileCounter()))
    assert failure(FlexDocuments(), fields, "cpu") is None


@pytest.mark.gpu
@by_mask
@pytest.mark.parametrize("baseline", OF_VARLEN, ids=lambda each: each.name.replace(" ", "-"))
def test_gpu_agrees_with_fp64(baseline: Baseline, fields: dict[str, Any]) -> None:
    if (missing := baseline.available()) is not None:
        pytest.skip(missing)
    assert failure(baseline, {"dtype": "float16", **fields}, "cuda") is None


@by_mask
def test_torch_is_given_the_mask_as_its_window(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def varlen_attn(query: Any, key: Any, value: Any, cu_seq_q: Any, cu_seq_k: Any, max_q: int, max_k: int, *,
                    scale: float, window_size: tuple[int, int], enable_gqa: bool) -> Any:  # fmt: skip
        given.update(longest=(max_q, max_k), window=window_size, gqa=enable_gqa, offsets=(cu_seq_q, cu_seq_k))
        return query

    library = ModuleType("torch.nn.attention.varlen")
    library.varlen_attn = varlen_attn  # type: ignore[attr-defined]
    monkeypatch.setitem(__import__("sys").modules, "torch.nn.attention.varlen", library)
    monkeypatch.setattr(packed, "missing_nvidia_gpu", lambda name: None)
    monkeypatch.setattr(packed, "refuse_elsewhere", lambda *_: None)
    shape = check_shape(replace(SHAPE, dtype="float16", **fields), LENGTHS)
    inputs = DEFINITION.make_inputs(shape, seed=0, device="cpu")
    assert TorchVarlen().prepare(shape, inputs)() is inputs.q
    before = -1 if shape.window is None else 4
    assert given["window"] == (before, 0 if shape.causal else before)
    assert given["longest"] == (20, 20)
    assert given["gqa"] is True
    assert given["offsets"] == (inputs.cu_seqlens_q, inputs.cu_seqlens_k)


def test_an_older_torch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    library = ModuleType("torch.nn.attention.varlen")
    library.varlen_attn = lambda query, key, value, is_causal=False: None  # type: ignore[attr-defined]
    monkeypatch.setitem(__import__("sys").modules, "torch.nn.attention.varlen", library)
    assert TorchVarlen().available() == (
        "torch varlen takes windows and grouped heads from torch 2.11 on: pip install 'torch>=2.11'"
    )
    monkeypatch.setitem(__import__("sys").modules, "torch.nn.attention.varlen", None)
    assert TorchVarlen().available() == "torch varlen needs torch 2.11 or newer: pip install 'torch>=2.11'"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_torchs_kernels_say_so() -> None:
    shape = replace(SHAPE, dtype="float16")
    assert "torch varlen needs an NVIDIA GPU" in (TorchVarlen().available() or "")
    with pytest.raises(MissingDependencyError, match="torch varlen needs an NVIDIA GPU"):
        TorchVarlen().prepare(shape, DEFINITION.make_inputs(shape, seed=0, device="cpu"))


@pytest.mark.parametrize(
    ("baseline", "fields", "reason"),
    [
        (TorchVarlen(), {}, "dtype=float32: torch varlen takes float16 and bfloat16"),
        (TorchVarlen(), {"dtype": "fp16", "head_dim_v": 8}, "head_dim=16, head_dim_v=8: torch varlen takes one width"),
        (TorchVarlen(), {"dtype": "fp16", "softcap": True}, "softcap=True: torch varlen has none"),
        (TorchVarlen(), {"dtype": "fp16", "sinks": True}, "sinks=True: torch varlen has none"),
        (SdpaLoop(), {"softcap": True}, "softcap=True: sdpa loop has none"),
        (FlexDocuments(), {"sinks": True}, "sinks=True: flex documents has none"),
        (FlexDocuments(), {"softcap": True}, None),
    ],
)
def test_what_it_cannot_compute_is_named(baseline: Baseline, fields: dict[str, Any], reason: str | None) -> None:
    assert baseline.unsupported(replace(SHAPE, **fields)) == reason
    assert "VarlenShape" in (baseline.unsupported(AttentionShape(batch=1, heads=1, seq_q=1, head_dim=8)) or "")


def test_a_refused_shape_is_not_prepared() -> None:
    shape = replace(SHAPE, sinks=True)
    with pytest.raises(BaselineUnavailableError, match="sinks=True"):
        SdpaLoop().prepare(shape, DEFINITION.make_inputs(shape, seed=0, device="cpu"))


def test_they_are_those_of_the_operation() -> None:
    assert load_baselines("flash_attention_varlen") is OF_VARLEN
