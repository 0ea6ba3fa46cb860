"""torch's SDPA behind the interface of baselines: the CPU's backends against fp64, and what is refused."""

from dataclasses import replace

import pytest
import torch

from autotune.correctness import check_baseline, make_case
from autotune.errors import BaselineUnavailableError, MissingDependencyError
from autotune.kernels.baselines import sdpa
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


@pytest.mark.parametrize(
    ("version", "kv_heads", "reason"),
    [
        ("2.11.0+cu130", 2, "heads=4, kv_heads=2: sdpa efficient takes grouped heads from torch 2.14 on"),
        ("2.13.1", 1, "heads=4, kv_heads=1: sdpa efficient takes grouped heads from torch 2.14 on"),
        ("2.13.1", 4, None),
        ("2.14.0a0+git12ab", 2, None),
        ("3.0", 2, None),
    ],
)
def test_the_memory_efficient_backend_takes_groups_from_a_release_on(
    monkeypatch: pytest.MonkeyPatch, version: str, kv_heads: int, reason: str | None
) -> None:
    monkeypatch.setattr("importlib.metadata.version", {"torch": version}.__getitem__)
    sdpa._torch_release.cache_clear()
    try:
        shape = replace(SHAPE, kv_heads=kv_heads)
        assert Sdpa("efficient").unsupported(shape) == reason
        assert Sdpa("flash").unsupported(shape) is None
    finally:
        sdpa._torch_release.cache_clear()


def test_what_a_backend_refuses_is_said_in_torch_s_words_when_it_is_prepared() -> None:
    shape = replace(SHAPE, head_dim_v=24)
    inputs = KERNEL.make_inputs(shape, seed=0, device="cpu")
    with pytest.raises(BaselineUnavailableError) as caught:
        Sdpa("flash").prepare(shape, inputs)
    assert str(caught.value).startswith(
        "sdpa flash does not run here: Flash attention requires q,k,v to have the same last dimension. Got Query.size"
    )
    assert "\n" not in str(caught.value)
    assert "Triggered" not in str(caught.value)
    assert Sdpa("math").prepare(shape, inputs)().shape == (2, 37, 4, 24)


def test_a_refusal_without_a_reason_is_said_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU has no such backend, and torch names no reason."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    shape = replace(SHAPE, kv_heads=4)
    with pytest.raises(BaselineUnavailableError, match=r"^sdpa efficient does not run here: RuntimeError: No "):
        Sdpa("efficient").prepare(shape, KERNEL.make_inputs(shape, seed=0, device="cpu"))


def test_memory_that_does_not_suffice_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", fail)
    with pytest.raises(torch.OutOfMemoryError):
        Sdpa("flash").prepare(SHAPE, KERNEL.make_inputs(SHAPE, seed=0, device="cpu"))


def test_there_is_one_for_each_backend() -> None:
    assert [each.name for each in SDPA] == [f"sdpa {backend}" for backend in BACKENDS]
    assert all(each.is_usual for each in SDPA)


def test_backends_of_a_gpu_are_missing_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for backend in ("cudnn", "efficient"):
        assert "needs a GPU" in (Sdpa(backend).available() or "")
        with pytest.raises(MissingDependencyError):
            Sdpa(backend).prepare(SHAPE, None)
