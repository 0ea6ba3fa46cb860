"""Both PagedAttentions of Gaudi as what the bench compares: over the framework's own inputs, NaN where nothing is."""

import ast
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from autotune.correctness import error_limit
from autotune.errors import BaselineUnavailableError
from autotune.kernels.baselines import gaudi
from autotune.kernels.baselines.gaudi import FlatPaged, FusedSdpa, InitialPaged
from autotune.kernels.paged_decode.inputs import CheckShape, Inputs, make_inputs
from autotune.kernels.paged_decode.reference import paged_decode_reference
from autotune.operation import Baseline
from autotune.shape import AttentionShape, PagedShape
from tests.kernels.baselines.gaudi.problems import Tensors, attention

SHAPE: Final = PagedShape(batch=5, heads=6, kv_heads=2, max_context=70, head_dim=32, page_size=16, dtype="bfloat16")
PAGED: Final[dict[str, Baseline]] = {
    "flat": FlatPaged(),
    "flat-bucket": FlatPaged(bucket=16),
    "initial": InitialPaged(),
    "initial-joined": InitialPaged(join_values=True),
}


def draw(shape: PagedShape, lengths: tuple[int, ...] = (70, 0, 1, 16, 33), *, seed: int = 0) -> Inputs:
    fields: dict[str, Any] = shape.as_dict()
    return make_inputs(CheckShape(**fields, lengths=lengths), seed=seed, device="cpu")


def as_tensors(inputs: Inputs) -> Tensors:
    caches = (inputs.k_cache, inputs.v_cache)
    k_cache, v_cache = caches if inputs.layout == "NHD" else (cache.transpose(1, 2) for cache in caches)
    return Tensors(inputs.q[:, 0], k_cache, v_cache, inputs.page_table, inputs.seq_lens, inputs.scale)


@cache
def judged(shape: PagedShape, seed: int) -> tuple[torch.Tensor, float]:
    """The output in fp64 and the framework's own limit of the error, from eager torch in the same type."""
    inputs = draw(shape, seed=seed)
    expected = attention(as_tensors(inputs)).out
    dtype = inputs.q.dtype
    eager, _ = paged_decode_reference(
        inputs.q, inputs.k_cache, inputs.v_cache, inputs.page_table, inputs.seq_lens, layout=inputs.layout, dtype=dtype
    )
    return expected, error_limit(expected, eager[:, 0], dtype)


SHAPES: Final = {
    "nhd": SHAPE,
    "hnd": replace(SHAPE, layout="HND"),
    "fp32": replace(SHAPE, dtype="float32", kv_dtype="float32"),
    "page-128": replace(SHAPE, page_size=128),
    "page-1": replace(SHAPE, page_size=1, layout="HND"),
    "narrow-values": replace(SHAPE, head_dim_v=16),
    "mqa": replace(SHAPE, kv_heads=1),
}


@pytest.mark.parametrize("seed", [0, 1])  # which pages are in use, the first one too
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("baseline", PAGED.values(), ids=PAGED)
def test_prepared_calls_are_that_of_fp64(baseline: Baseline, shape: PagedShape, seed: int) -> None:
    inputs = draw(shape, seed=seed)
    expected, limit = judged(shape, seed)
    found = baseline.prepare(shape, inputs)()
    assert (found.shape, found.dtype) == ((5, 1, 6, shape.head_dim_v), inputs.q.dtype)
    assert (found[:, 0].double() - expected).abs().max().item() <= limit


@pytest.mark.parametrize("baseline", PAGED.values(), ids=PAGED)
def test_a_prepared_call_converts_no_cache_and_reads_the_queries(baseline: Baseline) -> None:
    inputs = draw(SHAPE)
    call = baseline.prepare(SHAPE, inputs)
    first = call()
    for given in (inputs.k_cache, inputs.v_cache):
        given.fill_(torch.nan)
    assert torch.equal(call(), first)
    inputs.q.neg_()
    assert not torch.equal(call(), first)


REASONS: Final = {
    "queries": (replace(SHAPE, seq_q=2), "seq_q=2: PagedAttention takes one query"),
    "quantized": (replace(SHAPE, kv_dtype="int8"), "kv_dtype=int8: "),
    "window": (replace(SHAPE, window=9), "window=9: "),
    "softcap": (replace(SHAPE, softcap=True), "softcap=True: "),
    "sinks": (replace(SHAPE, sinks=True), "sinks=True: "),
    "alibi": (replace(SHAPE, alibi=True), "alibi=True: "),
    "dense": (AttentionShape(batch=1, heads=2, seq_q=8, head_dim=16), "AttentionShape: "),
}


@pytest.mark.parametrize(("shape", "reason"), REASONS.values(), ids=REASONS)
@pytest.mark.parametrize("baseline", PAGED.values(), ids=PAGED)
def test_what_they_cannot_do_has_a_reason(baseline: Baseline, shape: Any, reason: str) -> None:
    found = baseline.unsupported(shape)
    assert found is not None
    assert found.startswith(reason)
    with pytest.raises(BaselineUnavailableError) as caught:
        baseline.prepare(shape, None)
    assert str(caught.value) == found


def test_they_need_no_gaudi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "habana_frameworks", None)
    for baseline in PAGED.values():
        assert baseline.available() is None
        assert baseline.unsupported(SHAPE) is None


def test_three_baselines_none_of_them_verified_on_hardware() -> None:
    baselines: list[Baseline] = [FusedSdpa(), InitialPaged(), FlatPaged()]
    assert [baseline.name for baseline in baselines] == ["gaudi fused sdpa", "gaudi initial paged", "gaudi flat paged"]
    assert not any(baseline.verified_on_hardware for baseline in baselines)


IMPORTED: Final = {
    *("torch", "autotune.dtypes", "autotune.errors", "autotune.shape"),
    *("autotune.kernels.baselines.baseline", "autotune.kernels.baselines.gaudi"),
}


def test_importing_them_needs_torch_alone() -> None:
    """Above all not the kernels whose inputs they take, which import triton; those are imported for types only."""
    found = set()
    for path in Path(gaudi.__file__).parent.glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add(node.module or "")
    outside = {name for name in found if name.partition(".")[0] not in sys.stdlib_module_names}
    assert {name for name in outside if not name.startswith("autotune.kernels.baselines.gaudi.")} == IMPORTED
