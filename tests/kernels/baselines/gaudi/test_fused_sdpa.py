"""The calls of Gaudi's FusedSDPA, by a stand-in with its signature that computes in fp64."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest
import torch

from autotune.errors import BaselineUnavailableError, MissingDependencyError, UnknownNameError
from autotune.kernels.baselines.gaudi import FusedSdpa
from autotune.kernels.baselines.gaudi.fused_sdpa import bind_fused_sdpa
from autotune.kernels.flash_attention.definition import DEFINITION, Inputs
from autotune.shape import AttentionShape, PagedShape
from tests.kernels.baselines.gaudi.habana import Gaudi, fused_sdpa_class, install
from tests.kernels.baselines.signatures import habana_frameworks
from tests.kernels.numerics import dense_attention

ATOL: Final = {"float32": 1e-6, "bfloat16": 2e-2}  # the stand-in computes in fp64 and rounds once

SHAPE: Final = AttentionShape(batch=2, heads=4, seq_q=9, head_dim=16, dtype="float32")
SHAPES: Final = {
    "full": SHAPE,
    "causal": replace(SHAPE, causal=True),
    "gqa": replace(SHAPE, kv_heads=2, causal=True),
    "mqa": replace(SHAPE, kv_heads=1),
    "bf16": replace(SHAPE, dtype="bfloat16", causal=True),
    "more-keys": replace(SHAPE, seq_kv=13),
    "one-causal-query": replace(SHAPE, seq_q=1, seq_kv=13, causal=True),
    "narrow-values": replace(SHAPE, head_dim_v=8),
}
Install = Callable[..., Gaudi]


@pytest.fixture
def gaudi(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a bridge for a shape; its tensors are on the CPU, and count as the device's."""

    def make(shape: AttentionShape, *, arguments: int = 15, lazy: bool = False) -> Gaudi:
        device = Gaudi(lazy=lazy)
        install(monkeypatch, device, fused_sdpa_class(device, arguments))
        monkeypatch.setattr("autotune.kernels.baselines.gaudi.fused_sdpa.DEVICE", "cpu")
        return device

    return make


def draw(shape: AttentionShape) -> Inputs:
    return DEFINITION.make_inputs(shape, seed=0, device="cpu")


def error(found: torch.Tensor, inputs: Inputs) -> float:
    expected, _ = dense_attention(
        inputs.q, inputs.k, inputs.v, causal=inputs.causal, window=inputs.window, scale=inputs.scale
    )
    assert found.shape == expected.shape
    assert found.dtype == inputs.q.dtype
    return float((found.double() - expected).abs().max())


@pytest.mark.parametrize("mode", ["eager", "lazy", "lazy-graph"])
@pytest.mark.parametrize("arguments", [13, 15])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_prepared_calls_attend(gaudi: Install, shape: AttentionShape, arguments: int, mode: str) -> None:
    device = gaudi(shape, arguments=arguments, lazy=mode != "eager")
    baseline = FusedSdpa(hpu_graphs=mode == "lazy-graph")
    inputs = draw(shape)
    assert baseline.available() is None
    assert baseline.unsupported(shape) is None
    call = baseline.prepare(shape, inputs)
    for _ in range(3):
        assert error(call(), inputs) <= ATOL[shape.dtype]
    for given in device.arguments:
        assert len(given) == arguments
        assert [tuple(tensor.shape) for tensor in given[:3]] == [
            (shape.batch, shape.heads, shape.seq_q, shape.head_dim),
            (shape.batch, shape.kv_heads, shape.seq_kv, shape.head_dim),
            (shape.batch, shape.kv_heads, shape.seq_kv, shape.head_dim_v),
        ]
        assert all(tensor.is_contiguous() for tensor in given[:3])


@pytest.mark.parametrize(
    ("lazy", "graphs", "before", "each"),
    [
        (False, True, [], ["sdpa"]),
        (True, False, ["mark_step"], ["sdpa", "mark_step"]),
        (True, True, ["mark_step", "record", "sdpa"], ["replay"]),
    ],
    ids=["eager", "lazy", "lazy-graph"],
)
def test_each_call_is_a_step(gaudi: Install, lazy: bool, graphs: bool, before: list[str], each: list[str]) -> None:
    device = gaudi(SHAPE, lazy=lazy)
    call = FusedSdpa(hpu_graphs=graphs).prepare(SHAPE, draw(SHAPE))
    assert device.log == before
    call()
    call()
    assert device.log == before + each + each


def options_of(device: Gaudi) -> tuple[Any, ...]:
    """The arguments of the last call behind the tensors; absent arguments have the class's defaults."""
    return device.arguments[-1][3:]


def test_options_are_passed_by_position(gaudi: Install) -> None:
    shape = replace(SHAPE, causal=True, dtype="bfloat16")
    device = gaudi(shape, arguments=13)
    FusedSdpa().prepare(shape, draw(shape))()
    assert options_of(device) == (None, 0.0, True, 0.25, "fast", True, None, "left", False, False)
    FusedSdpa(softmax_mode="fp32", recompute=None).prepare(shape, draw(shape))()
    assert options_of(device)[3:6] == (0.25, "fp32", None)
    FusedSdpa(softmax_mode="none", recompute=False).prepare(shape, draw(shape))()
    assert options_of(device)[3:6] == (0.25, "none", False)


@pytest.mark.parametrize("arguments", [13, 15])
def test_valid_lengths_are_int32_and_padded_on_the_right(gaudi: Install, arguments: int) -> None:
    shape = replace(SHAPE, causal=True)
    device = gaudi(shape, arguments=arguments)
    inputs = draw(shape)
    found = FusedSdpa(valid_seq_len=True).prepare(shape, inputs)()
    lengths, side = options_of(device)[6:8]
    assert (lengths.tolist(), lengths.dtype, side) == ([9, 9], torch.int32, "right")
    assert error(found, inputs) <= ATOL["float32"]


def test_the_plain_function_takes_lengths(gaudi: Install) -> None:
    gaudi(SHAPE, arguments=13)
    inputs = draw(replace(SHAPE, causal=True))
    q, k, v = (tensor.transpose(1, 2).contiguous() for tensor in (inputs.q, inputs.k, inputs.v))
    lengths = torch.tensor([4, 9], dtype=torch.int32)
    out = bind_fused_sdpa(q, k, v, causal=True, scale=inputs.scale, valid_seq_len=lengths)().transpose(1, 2)
    expected, _ = dense_attention(inputs.q, inputs.k, inputs.v, causal=True, scale=inputs.scale)
    assert torch.allclose(out[0, :4].double(), expected[0, :4], rtol=0.0, atol=1e-6)
    assert torch.allclose(out[1].double(), expected[1], rtol=0.0, atol=1e-6)
    assert bool(out[0, 4:].isnan().all())


@pytest.mark.parametrize(("causal", "sides"), [(True, (3, -1)), (False, (3, 3))])
def test_windows_are_the_fourteenth_argument(gaudi: Install, causal: bool, sides: tuple[int, int]) -> None:
    shape = replace(SHAPE, causal=causal, window=4)
    device = gaudi(shape)
    inputs = draw(shape)
    q, k, v = (tensor.transpose(1, 2).contiguous() for tensor in (inputs.q, inputs.k, inputs.v))
    out = bind_fused_sdpa(q, k, v, causal=causal, scale=inputs.scale, window=4)()
    assert options_of(device)[6:] == (None, "right", False, False, sides, None)
    assert error(out.transpose(1, 2), inputs) <= ATOL["float32"]


LONG: Final = replace(SHAPE, seq_q=32768, seq_kv=32768, causal=True, window=1025)


def test_a_bridge_without_windows_is_asked_for_none(gaudi: Install) -> None:
    device = gaudi(SHAPE, arguments=13)
    q = torch.zeros(2, 4, 9, 16)
    with pytest.raises(BaselineUnavailableError, match=r"takes 13 arguments, \(q, .*_probs\); needed: .*window_size\)"):
        bind_fused_sdpa(q, q, q, causal=True, scale=1.0, window=4)
    assert device.arguments == []
    assert FusedSdpa().unsupported(LONG) is None


def test_other_names_in_the_signature_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Renamed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, q: Any, k: Any, v: Any, bias: Any = None, dropout_p: Any = 0.0) -> Any:
            raise AssertionError

    install(monkeypatch, Gaudi(lazy=False), Renamed)
    q = torch.zeros(2, 4, 9, 16)
    with pytest.raises(BaselineUnavailableError, match=r"takes 5 arguments, \(q, k, v, bias, dropout_p\); needed: "):
        bind_fused_sdpa(q, q, q, causal=True, scale=1.0)


REASONS: Final[dict[str, tuple[FusedSdpa, Any, str]]] = {
    "softcap": (FusedSdpa(), replace(SHAPE, softcap=True), "softcap=True: "),
    "bottom-right": (FusedSdpa(), replace(SHAPE, seq_kv=12, causal=True), "seq_q=9, seq_kv=12: "),
    "lengths, full": (FusedSdpa(valid_seq_len=True), SHAPE, "causal=False, seq_q=9: valid_seq_len needs"),
    "lengths, one query": (
        FusedSdpa(valid_seq_len=True),
        replace(SHAPE, seq_q=1, causal=True),
        "causal=True, seq_q=1: valid_seq_len needs",
    ),
    "fp32 of fp32": (FusedSdpa(softmax_mode="fp32"), SHAPE, "dtype=float32: softmax_mode='fp32' takes bfloat16"),
    "window, short": (FusedSdpa(), replace(LONG, seq_q=31744, seq_kv=31744), "window=1025: FusedSDPA has windows of"),
    "window, odd length": (FusedSdpa(), replace(LONG, seq_q=32769, seq_kv=32769), "window=1025: FusedSDPA has windows"),
    "window, odd": (FusedSdpa(), replace(LONG, window=1024), "window=1024: FusedSDPA's are one more than"),
    "window, stored": (FusedSdpa(recompute=False), LONG, "window=1025: FusedSDPA's need recompute=True"),
    "window, flag": (FusedSdpa(recompute=None), LONG, "window=1025: FusedSDPA's need recompute=True"),
    "paged": (FusedSdpa(), PagedShape(batch=1, heads=1, max_context=1, head_dim=8), "PagedShape: "),
}


@pytest.mark.parametrize(
    ("baseline", "shape", "reason"), REASONS.values(), ids=[key.replace(" ", "-") for key in REASONS]
)
def test_what_it_cannot_do_has_a_reason(gaudi: Install, baseline: FusedSdpa, shape: Any, reason: str) -> None:
    gaudi(SHAPE)
    found = baseline.unsupported(shape)
    assert found is not None
    assert found.startswith(reason)
    with pytest.raises(BaselineUnavailableError) as caught:
        baseline.prepare(shape, draw(SHAPE))
    assert str(caught.value) == found


def test_softmax_modes_are_three() -> None:
    with pytest.raises(UnknownNameError, match="softmax_mode='slow' is unknown; allowed: none, fast, fp32"):
        FusedSdpa(softmax_mode="slow")


def test_tensors_elsewhere_are_refused(gaudi: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    gaudi(SHAPE)
    monkeypatch.undo()
    device = Gaudi(lazy=False)
    install(monkeypatch, device, fused_sdpa_class(device, 13))
    with pytest.raises(BaselineUnavailableError, match="the tensors are on cpu: FusedSDPA takes them on hpu"):
        FusedSdpa().prepare(SHAPE, draw(SHAPE))


class Broken:
    """A loader whose bridge fails as native code does."""

    def find_spec(self, name: str, *_: object) -> None:
        if name.partition(".")[0] == "habana_frameworks":
            raise OSError("libSynapse.so: cannot open\nshared object file")


def test_what_is_missing_is_one_line_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = []
    monkeypatch.setitem(sys.modules, "habana_frameworks", None)
    reasons.append(FusedSdpa().available())
    with pytest.raises(MissingDependencyError, match="habana_frameworks"):
        FusedSdpa().prepare(SHAPE, draw(SHAPE))
    monkeypatch.delitem(sys.modules, "habana_frameworks")
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    reasons.append(FusedSdpa().available())
    device = Gaudi(lazy=False)
    install(monkeypatch, device)
    device.found = False
    reasons.append(FusedSdpa().available())
    q = torch.zeros(2, 4, 9, 16)
    with pytest.raises(MissingDependencyError, match="finds no Gaudi"):
        bind_fused_sdpa(q, q, q, causal=True, scale=1.0)
    monkeypatch.delattr(torch, "hpu")
    reasons.append(FusedSdpa().available())
    starts = (
        "habana_frameworks.torch does not load (ModuleNotFoundError: ",
        "habana_frameworks.torch does not load (OSError: libSynapse.so: cannot open shared object file)",
        "torch.hpu finds no Gaudi: ",
        "habana_frameworks.torch does not load (AttributeError: ",
    )
    for reason, start in zip(reasons, starts, strict=True):
        assert reason is not None
        assert reason.startswith(start)
        assert "install habana-frameworks-torch, with the Gaudi driver" in reason
        assert "\n" not in reason


def test_the_bridge_has_the_signature_that_was_recorded() -> None:
    reason = "habana_frameworks is not installed, which is for Gaudi alone, and the package itself is what is compared"
    kernels = pytest.importorskip("habana_frameworks.torch.hpex.kernels", reason=reason)
    found = tuple(inspect.signature(kernels.FusedSDPA.forward).parameters)
    recorded = (habana_frameworks.forward_of_13, habana_frameworks.forward_of_15)
    assert found in [tuple(inspect.signature(stub).parameters) for stub in recorded]
