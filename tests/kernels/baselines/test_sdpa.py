"""torch's SDPA behind the interface of baselines: its backends against fp64, who computes, and what is refused."""

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.attention.bias import CausalBias, CausalVariant
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from autotune.correctness import check_baseline, make_case
from autotune.errors import BaselineUnavailableError, MissingDependencyError
from autotune.kernels.baselines import sdpa
from autotune.kernels.baselines.sdpa import BACKENDS, SDPA, OneBackend, Sdpa
from autotune.kernels.flash_attention.definition import DEFINITION
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
        replace(SHAPE, seq_q=1, seq_kv=50),
        replace(SHAPE, seq_q=1, seq_kv=50, dtype="bfloat16"),
        replace(SHAPE, seq_kv=50),
        replace(SHAPE, seq_q=2, seq_kv=131, kv_heads=4, dtype="bfloat16"),
        replace(SHAPE, seq_q=36),
        replace(SHAPE, seq_q=50, seq_kv=17),
        replace(SHAPE, seq_q=50, seq_kv=1, dtype="float16"),
    ],
    ids=str,
)
def test_backends_of_the_cpu_agree_with_fp64(backend: str, shape: AttentionShape) -> None:
    case = make_case(DEFINITION, shape, "normal", device="cpu", seed=0)
    out = Sdpa(backend).prepare(shape, case.inputs)()
    assert out.shape == case.references[0].shape
    error, limit = check_baseline(out, case)
    assert error <= limit
    blind = max(0, shape.seq_q - shape.seq_kv) if shape.causal else 0
    assert not out[:, :blind].any()


FLASH = "_scaled_dot_product_flash_attention_for_cpu"
LENGTHS = [(37, 37), (1, 50), (37, 50), (50, 37)]


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The names of the operators that ran."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def operators(call: Any) -> list[str]:
    counted = Operators()
    with counted:
        call()
    return counted.seen


@pytest.mark.parametrize(("seq_q", "seq_kv"), LENGTHS)
def test_a_call_is_one_operator_of_the_forced_backend(seq_q: int, seq_kv: int) -> None:
    """Without a mask that is made anew; the math that torch composes has products, and nothing of the other."""
    shape = replace(SHAPE, seq_q=seq_q, seq_kv=seq_kv)
    inputs = DEFINITION.make_inputs(shape, seed=0, device="cpu")
    seen = operators(Sdpa("flash").prepare(shape, inputs))
    assert [name for name in seen if name != "transpose"] == [FLASH]
    seen = operators(Sdpa("math").prepare(shape, inputs))
    assert seen.count("bmm") == 2
    assert FLASH not in seen


def switches() -> list[bool]:
    return [getattr(torch.backends.cuda, is_on)() for is_on, _ in BACKENDS.values()]


def test_a_timed_call_enters_no_context_of_torch_s_and_leaves_every_switch_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr("torch.nn.attention.sdpa_kernel")
    inputs = DEFINITION.make_inputs(SHAPE, seed=0, device="cpu")
    before, one = switches(), torch.ones(1, 1, 1, 8)
    torch.backends.cuda.enable_math_sdp(not before[3])
    try:
        given = switches()
        Sdpa("flash").prepare(SHAPE, inputs)()
        Sdpa("math").prepare(SHAPE, inputs)()
        assert switches() == given
        with OneBackend("math"), OneBackend("flash"):
            assert switches() == [name == "flash" for name in BACKENDS]
        assert switches() == given
        with pytest.raises(RuntimeError, match="No "), OneBackend("efficient"):  # which a CPU has not
            scaled_dot_product_attention(one, one, one)
        assert switches() == given
    finally:
        torch.backends.cuda.enable_math_sdp(before[3])


def test_a_gpu_s_kernels_get_a_bias_that_is_no_tensor() -> None:
    """The bias itself needs no GPU: torch makes a tensor of it here."""
    shape = replace(SHAPE, seq_kv=50)
    there = torch.empty(2, 4, 37, 16, device="meta")
    for backend in ("flash", "efficient"):
        bias = Sdpa(backend)._mask(shape, there)
        assert isinstance(bias, CausalBias)
        assert (bias.variant, bias.seq_len_q, bias.seq_len_kv) == (CausalVariant.LOWER_RIGHT, 37, 50)
    case = make_case(DEFINITION, shape, "normal", device="cpu", seed=0)
    q, k, v = (tensor.transpose(1, 2) for tensor in (case.inputs.q, case.inputs.k, case.inputs.v))
    with OneBackend("math"):
        out = scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=case.inputs.scale, enable_gqa=True)
    error, limit = check_baseline(out.transpose(1, 2), case)
    assert error <= limit
    assert not isinstance(Sdpa("math")._mask(shape, there), CausalBias)
    with pytest.raises(
        BaselineUnavailableError, match=r"^seq_q=37, seq_kv=36: torch says that sdpa flash may return NaN"
    ):
        Sdpa("flash")._mask(replace(SHAPE, seq_kv=36), there)


def test_a_backend_that_does_not_take_the_bias_is_refused_before_torch_makes_a_tensor_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def refuse(params: Any, debug: bool) -> bool:
        asked.append((params.attn_mask, params.is_causal, params.enable_gqa, debug, switches()))
        warnings.warn("Expected query to be a half.", stacklevel=1)
        return False

    monkeypatch.setattr(torch.backends.cuda, "can_use_flash_attention", refuse)
    q, k = torch.empty(1, 4, 2, 16), torch.empty(1, 2, 5, 16)
    flash = Sdpa("flash")
    with pytest.raises(
        BaselineUnavailableError, match=r"^sdpa flash does not run here: Expected query to be a half\.$"
    ):
        flash._try(lambda: flash._run_fused(pytest.fail, q, k, k, grouped=True))
    assert asked == [(None, False, True, True, [False, True, False, False])]


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["flash", "efficient", "math"])
@pytest.mark.parametrize(("seq_q", "seq_kv"), LENGTHS[:3])
def test_backends_of_a_gpu_align_bottom_right(backend: str, seq_q: int, seq_kv: int) -> None:
    shape = replace(SHAPE, seq_q=seq_q, seq_kv=seq_kv, kv_heads=4, dtype="bfloat16")
    case = make_case(DEFINITION, shape, "normal", device="cuda", seed=0)
    call = Sdpa(backend).prepare(shape, case.inputs)
    error, limit = check_baseline(call(), case)
    assert error <= limit
    fused = [name for name in operators(call) if "flash_attention" in name or "efficient_attention" in name]
    assert len(fused) == (backend != "math")
    assert all(backend in name for name in fused)


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        (replace(SHAPE, window=4), "no window"),
        (replace(SHAPE, softcap=True), "no softcap"),
        (replace(SHAPE, sinks=True), "sinks=True: sdpa math takes none here"),
        (
            replace(SHAPE, causal=True, attn_mask="boolean"),
            "attn_mask='boolean', causal=True: sdpa math takes one with",
        ),
        (PagedShape(batch=1, heads=1, kv_heads=1, max_context=16, head_dim=16), "PagedShape"),
    ],
)
def test_what_torch_cannot_do_is_said(shape: AttentionShape, reason: str) -> None:
    assert reason in (Sdpa("math").unsupported(shape) or "")
    with pytest.raises(BaselineUnavailableError, match=reason):
        Sdpa("math").prepare(shape, None)


@pytest.mark.parametrize(
    ("backend", "seq_q", "seq_kv", "reason"),
    [
        (
            "cudnn",
            37,
            64,
            "seq_q=37, seq_kv=64: torch gives cuDNN's attention a bottom-right causal mask as a tensor alone",
        ),
        ("cudnn", 64, 37, "seq_q=64, seq_kv=37: torch gives"),
        ("cudnn", 1, 37, None),
        ("efficient", 37, 64, None),
        ("efficient", 1, 37, None),
        (
            "efficient",
            64,
            37,
            "seq_q=64, seq_kv=37: torch says that sdpa efficient may return NaN for queries that see no",
        ),
        ("flash", 64, 37, None),
        ("math", 64, 37, None),
    ],
)
def test_which_backend_has_a_bottom_right_mask(backend: str, seq_q: int, seq_kv: int, reason: str | None) -> None:
    shape = replace(SHAPE, kv_heads=4, seq_q=seq_q, seq_kv=seq_kv)
    found = Sdpa(backend).unsupported(shape)
    assert found is None if reason is None else (found or "").startswith(reason)
    assert Sdpa(backend).unsupported(replace(shape, causal=False)) is None


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
    inputs = DEFINITION.make_inputs(shape, seed=0, device="cpu")
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
        Sdpa("efficient").prepare(shape, DEFINITION.make_inputs(shape, seed=0, device="cpu"))


def test_memory_that_does_not_suffice_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", fail)
    with pytest.raises(torch.OutOfMemoryError):
        Sdpa("flash").prepare(SHAPE, DEFINITION.make_inputs(SHAPE, seed=0, device="cpu"))


def test_there_is_one_for_each_backend() -> None:
    assert [each.name for each in SDPA] == [f"sdpa {backend}" for backend in BACKENDS]
    assert all(each.is_usual for each in SDPA)


def test_backends_of_a_gpu_are_missing_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for backend in ("cudnn", "efficient"):
        assert "needs a GPU" in (Sdpa(backend).available() or "")
        with pytest.raises(MissingDependencyError):
            Sdpa(backend).prepare(SHAPE, None)


@pytest.mark.parametrize("kind", ["boolean", "additive"])
def test_a_mask_operand_is_passed_on(kind: str) -> None:
    shape = replace(SHAPE, causal=False, attn_mask=kind)
    case = make_case(DEFINITION, shape, "normal", device="cpu", seed=0)
    error, limit = check_baseline(Sdpa("math").prepare(shape, case.inputs)(), case)
    assert error <= limit
