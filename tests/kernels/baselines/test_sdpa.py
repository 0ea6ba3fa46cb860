"""torch's SDPA behind the interface of baselines: the CPU's backends against fp64, and what is refused."""

from dataclasses import replace

import pytest
import torch

from autotune.correctness import check_baseline, make_case
from autotune.errors import BaselineUnavailableError, MissingDependencyError
from autotune.kernels.baselines.sdpa import BACKENDS, SDPA, Sdpa
from autotune.kernels.flash_attention import KERNEL
from autotune.shape import AttentionShape, PagedShape

SHAPE = AttentionShape(batch=2, heads=4, kv_heads=2, seq_q=37, head_dim=16, dtype="float32", causal=True)


@pytest.mark.parametrize("backend", ["flash", "math"])
@pytest.mark.parametrize(
    "shape",
    [
        SHAPE,
        replace(SHAPE, causal=False, seq_kv=50),
        replace(SHAPE, kv_heads=4, dtype="float16"),
        replace(SHAPE, seq_q=1, seq_kv=1),
    ],
    ids=str,
)
def test_backends_of_the_cpu_agree_with_fp64(backend: str, shape: AttentionShape) -> None:
    case = make_case(KERNEL, shape, "normal", device="cpu", seed=0)
    out = Sdpa(backend).prepare(shape, case.inputs)()
    assert out.shape == case.references[0].shape
    error, limit = check_baseline(out, case)
    assert error <= limit


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        (replace(SHAPE, window=4), "no window"),
        (replace(SHAPE, softcap=True), "no softcap"),
        (replace(SHAPE, varlen=True), "varlen=True"),
        (replace(SHAPE, seq_kv=64), "seq_q=37, seq_kv=64: torch aligns causal masks top-left"),
        (PagedShape(batch=1, heads=1, kv_heads=1, max_context=16, head_dim=16), "PagedShape"),
    ],
)
def test_what_torch_cannot_do_is_said(shape: AttentionShape, reason: str) -> None:
    assert reason in (Sdpa("math").unsupported(shape) or "")
    with pytest.raises(BaselineUnavailableError, match=reason):
        Sdpa("math").prepare(shape, None)


def test_there_is_one_for_each_backend() -> None:
    assert [sdpa.name for sdpa in SDPA] == [f"sdpa {backend}" for backend in BACKENDS]
    assert all(sdpa.is_usual for sdpa in SDPA)


def test_backends_of_a_gpu_are_missing_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for backend in ("cudnn", "efficient"):
        assert "needs a GPU" in (Sdpa(backend).available() or "")
        with pytest.raises(MissingDependencyError):
            Sdpa(backend).prepare(SHAPE, None)
