# mypy: allow-untyped-defs
"""FlashInfer's call over latents, by a stand-in with its signatures that computes in fp64."""

import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch

from autotune.errors import BaselineUnavailableError
from autotune.kernels.baselines import baseline, flash_infer_latent
from autotune.kernels.baselines.flash_infer_latent import FlashInferLatent
from autotune.kernels.paged_decode.definition import DEFINITION
from autotune.shape import PagedShape
from tests.kernels.paged_decode.numerics import dense_decode

SHAPE = PagedShape(batch=3, heads=4, max_context=70, mean_context=40, head_dim=576, page_size=16, dtype="float16")


class Wrapper:
    """``BatchMLAPagedAttentionWrapper`` as flashinfer-python has it."""

    def __init__(
        self, float_workspace_buffer, use_cuda_graph=False, qo_indptr=None, kv_indptr=None, kv_indices=None,
        kv_len_arr=None, backend="auto",
    ):  # fmt: skip
        assert float_workspace_buffer.dtype == torch.uint8

    def plan(
        self, qo_indptr, kv_indptr, kv_indices, kv_len_arr, num_heads, head_dim_ckv, head_dim_kpe, page_size, causal,
        sm_scale, q_data_type, kv_data_type, use_profiler=False,
    ):  # fmt: skip
        assert (num_heads, head_dim_ckv, head_dim_kpe, page_size) == (4, 512, 64, SHAPE.page_size)
        assert q_data_type == kv_data_type == torch.float16
        self.planned: Any = (qo_indptr, kv_indptr, kv_indices, kv_len_arr, sm_scale)
        self.causal = causal

    def run(self, q_nope, q_pe, ckv_cache, kpe_cache, out=None, lse=None, return_lse=False):
        queries, indptr, indices, lengths, scale = self.planned
        q, rows = torch.cat([q_nope, q_pe], 2), torch.cat([ckv_cache, kpe_cache], 2)
        found = []
        for sequence, length in enumerate(lengths.tolist()):
            pages = indices[indptr[sequence] : indptr[sequence + 1]].long()
            keys = rows[pages].flatten(0, 1)[:length, None]
            own = q[queries[sequence] : queries[sequence + 1]]
            assert self.causal == (len(own) > 1)
            found.append(dense_decode(own, keys, keys[..., :512], scale=scale)[0])
        return torch.cat(found).to(q.dtype)


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("flashinfer.mla")
    vars(module)["BatchMLAPagedAttentionWrapper"] = Wrapper
    monkeypatch.setitem(sys.modules, "flashinfer", ModuleType("flashinfer"))
    monkeypatch.setitem(sys.modules, "flashinfer.mla", module)
    monkeypatch.setattr(baseline, "missing_nvidia_gpu", lambda name: None)
    monkeypatch.setattr(flash_infer_latent, "DEVICE", "cpu")
    monkeypatch.setattr(flash_infer_latent, "WORKSPACE_BYTES", 64)


@pytest.mark.parametrize("changes", [{}, {"seq_q": 2}, {"layout": "HND"}], ids=str)
def test_it_computes_what_the_operation_is(changes: dict[str, Any]) -> None:
    shape = replace(SHAPE, **changes)
    inputs = DEFINITION.make_inputs(shape, seed=0, device="cpu")
    found = FlashInferLatent().prepare(shape, inputs)()
    expected = DEFINITION.reference(inputs)[0]
    assert torch.allclose(found.double(), expected, atol=2e-3)


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        (replace(SHAPE, head_dim=320, head_dim_v=256), "head_dim=320, head_dim_v=256: flashinfer mla takes 576/512"),
        (replace(SHAPE, window=9), "window=9: flashinfer mla has none"),
        (replace(SHAPE, sinks=True), "sinks=True: flashinfer mla has none"),
        (
            replace(SHAPE, dtype="float32", kv_dtype="float32"),
            "dtype=float32: flashinfer mla takes float16 and bfloat16",
        ),
        (None, "NoneType: flashinfer mla computes a PagedShape"),
    ],
)
def test_what_it_has_not_is_named(shape: Any, reason: str) -> None:
    assert FlashInferLatent().unsupported(shape) == reason
    with pytest.raises(BaselineUnavailableError):
        FlashInferLatent().prepare(shape, None)  # type: ignore[arg-type]
