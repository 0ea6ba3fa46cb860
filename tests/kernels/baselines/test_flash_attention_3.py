"""The calls of FlashAttention 3 and 2, by stand-ins with their signatures that compute in fp64."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import pytest
import torch

from autotune.correctness import error_limit
from autotune.errors import BaselineUnavailableError, MissingDependencyError
from autotune.kernels.baselines import flash_attention_3
from autotune.kernels.baselines.flash_attention_3 import FlashAttention2, FlashAttention3
from autotune.kernels.flash_attention.definition import DEFINITION as DENSE
from autotune.kernels.paged_decode.definition import DEFINITION as DECODE
from autotune.kernels.paged_decode.inputs import CheckShape
from autotune.kernels.paged_prefill.definition import DEFINITION as PREFILL
from autotune.kernels.paged_prefill.inputs import check_shape
from autotune.operation import Baseline
from autotune.shape import AttentionShape, PagedShape
from tests.kernels.baselines.fake_flash_attention import NAMES, RECORDED, install
from tests.kernels.baselines.stand_ins import Recorder, drift
from tests.kernels.numerics import compare

BASELINES: Final[dict[int, Baseline]] = {3: FlashAttention3(), 2: FlashAttention2()}
FULL: Final = AttentionShape(batch=2, heads=4, kv_heads=2, seq_q=17, head_dim=64, dtype="bfloat16")
DENSE_SHAPES: Final = {
    "full": FULL,
    "causal": replace(FULL, causal=True),
    "fp16-mqa": replace(FULL, kv_heads=1, dtype="float16", causal=True),
    "width-72": replace(FULL, head_dim=72, head_dim_v=72),
    "more-keys": replace(FULL, seq_kv=33, causal=True),
    "more-queries": replace(FULL, seq_kv=9, causal=True),
    "window": replace(FULL, window=5),
    "causal-window": replace(FULL, seq_kv=33, window=5, causal=True),
    "softcap": replace(FULL, softcap=True),
    "one-query": replace(FULL, seq_q=1, seq_kv=33, causal=True),
}
NARROW: Final = {
    "narrow": replace(FULL, head_dim=64, head_dim_v=32),
    "wide-keys": replace(FULL, head_dim=192, head_dim_v=128, causal=True),
}
PAGED: Final = PagedShape(batch=5, heads=4, kv_heads=2, max_context=600, head_dim=32, page_size=256, dtype="bfloat16")
PAGED_SHAPES: Final = {
    "nhd": PAGED,
    "hnd": replace(PAGED, layout="HND"),
    "fp16-mha": replace(PAGED, kv_heads=4, dtype="float16", kv_dtype="float16"),
    "window": replace(PAGED, window=9),
    "softcap": replace(PAGED, softcap=True, layout="HND"),
}
OF_3: Final = {
    "page-16": replace(PAGED, page_size=16, layout="HND"),
    "page-1": replace(PAGED, page_size=1),
    "narrow-values": replace(PAGED, page_size=3, head_dim_v=16),
}
OF_2: Final = {"alibi": replace(PAGED, alibi=True, window=70)}
LENGTHS: Final = (600, 0, 1, 256, 33)
QUERIES: Final = (40, 0, 1, 16, 35)


def cases(common: dict[str, Any], of_3: dict[str, Any], of_2: dict[str, Any]) -> pytest.MarkDecorator:
    """A mark that runs both versions over the common shapes and each over its own."""
    found = [(3, shape, name) for name, shape in (common | of_3).items()]
    found += [(2, shape, name) for name, shape in (common | of_2).items()]
    return pytest.mark.parametrize(
        ("version", "shape"),
        [(version, shape) for version, shape, _ in found],
        ids=[f"fa{version}-{name}" for version, _, name in found],
    )


every_dense = cases(DENSE_SHAPES, NARROW, {})
every_paged = cases(PAGED_SHAPES, OF_3, OF_2)
both = pytest.mark.parametrize("version", [3, 2])
Install = Callable[..., Recorder]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """pytest's workers take the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def pretend_gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] = (9, 0)) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs the stand-in of a version; the CPU counts as a Hopper GPU."""

    def make(version: int, *, old: bool = False) -> Recorder:
        monkeypatch.setattr(flash_attention_3, "DEVICE", "cpu")
        pretend_gpu(monkeypatch)
        return install(monkeypatch, version, old=old)

    return make


def dense(shape: AttentionShape, *, device: str = "cpu") -> Any:
    return DENSE.make_inputs(shape, seed=0, device=device)


def decode(shape: PagedShape, lengths: tuple[int, ...] = LENGTHS, *, device: str = "cpu", data: str = "normal") -> Any:
    fields: dict[str, Any] = shape.as_dict()
    return DECODE.make_inputs(CheckShape(**fields, lengths=lengths), seed=0, device=device, data=data)


def prefill(shape: PagedShape, *, device: str = "cpu") -> Any:
    return PREFILL.make_inputs(check_shape(shape, LENGTHS, QUERIES), seed=0, device=device)


def failure(version: int, kernel: Any, shape: Any, inputs: Any) -> str | None:
    """Say how far the prepared call is from fp64, by the framework's own limit, or None."""
    out = BASELINES[version].prepare(shape, inputs)()
    expected, rounded = (kernel.reference(inputs, dtype=dtype)[0] for dtype in (None, inputs.q.dtype))
    if (out.shape, out.dtype) != (expected.shape, inputs.q.dtype):
        return f"the output is {tuple(out.shape)} {out.dtype}"
    return compare(out, expected, error_limit(expected, rounded, inputs.q.dtype))


@every_dense
def test_dense_is_that_of_fp64(library: Install, version: int, shape: AttentionShape) -> None:
    called = library(version)
    assert failure(version, DENSE, shape, dense(shape)) is None
    assert set(called.names()) == {"flash_attn_func"}


@every_paged
@pytest.mark.parametrize("seq_q", [1, 3])
def test_decode_is_that_of_fp64(library: Install, version: int, shape: PagedShape, seq_q: int) -> None:
    called = library(version)
    shape = replace(shape, seq_q=seq_q)
    assert failure(version, DECODE, shape, decode(shape)) is None
    assert (set(called.names()), called.integers()) == ({"flash_attn_with_kvcache"}, {torch.int32})


@every_paged
def test_prefill_is_that_of_fp64(library: Install, version: int, shape: PagedShape) -> None:
    called = library(version)
    assert failure(version, PREFILL, shape, prefill(shape)) is None
    name = {3: "flash_attn_with_kvcache", 2: "flash_attn_varlen_func"}[version]
    assert (set(called.names()), called.integers()) == ({name}, {torch.int32})
    given = called.last(name)
    assert given["max_seqlen_q"] == 40
    assert given.get("max_seqlen_k", 600) == 600


@both
@pytest.mark.parametrize("data", ["large", "tails"])
def test_decode_is_that_of_fp64_on_hard_numbers(library: Install, version: int, data: str) -> None:
    library(version)
    assert failure(version, DECODE, PAGED, decode(PAGED, data=data)) is None


def test_a_log_sum_exp_that_nobody_asked_for_is_dropped(library: Install) -> None:
    library(3, old=True)
    for kernel, shape, inputs in (
        (DENSE, FULL, dense(FULL)),
        (DECODE, PAGED, decode(PAGED)),
    ):
        assert failure(3, kernel, shape, inputs) is None


@both
def test_options_have_the_library_s_meaning(library: Install, version: int) -> None:
    called = library(version).calls
    names = ("softmax_scale", "causal", "window_size", "softcap")
    expected = [
        (FULL, [0.125, False, (-1, -1), 0.0]),
        (replace(FULL, window=5), [0.125, False, (4, 4), 0.0]),
        (replace(FULL, window=5, causal=True, softcap=True), [0.125, True, (4, 0), 20.0]),
    ]
    for shape, options in expected:
        BASELINES[version].prepare(shape, dense(shape))
        assert [called[-1][1][name] for name in names] == options
    paged = replace(PAGED, window=1)
    BASELINES[version].prepare(paged, decode(paged))
    assert [called[-1][1][name] for name in names] == [32**-0.5, True, (0, 0), 0.0]


@both
def test_caches_are_given_as_nhd_without_moving_them_and_pages_exist(library: Install, version: int) -> None:
    called = library(version).calls
    shape = replace(PAGED, layout="HND")
    inputs = decode(shape)
    BASELINES[version].prepare(shape, inputs)
    table = called[-1][1][{3: "page_table", 2: "block_table"}[version]]
    assert table.min().item() >= 0
    assert table.max().item() < len(inputs.k_cache)
    for name in ("k_cache", "v_cache"):  # pages are read whole: NaN behind a sequence's end would spoil its output
        given = called[-1][1][name]
        assert given.shape == (len(inputs.k_cache), 256, 2, 32)
        assert given.transpose(1, 2).stride() == getattr(inputs, name).stride()
        assert bool(given.isfinite().all())


@both
@pytest.mark.parametrize("kernel", [DENSE, DECODE, PREFILL], ids=["dense", "decode", "prefill"])
def test_a_call_follows_its_queries(library: Install, version: int, kernel: Any) -> None:
    library(version)
    shape = FULL if kernel is DENSE else PAGED
    makers: dict[Any, Callable[[Any], Any]] = {DENSE: dense, DECODE: decode, PREFILL: prefill}
    inputs = makers[kernel](shape)
    call = BASELINES[version].prepare(shape, inputs)
    first = call()
    inputs.q.neg_()
    expected, rounded = (kernel.reference(inputs, dtype=dtype)[0] for dtype in (None, inputs.q.dtype))
    second = call()
    assert not torch.equal(first, second)
    assert compare(second, expected, error_limit(expected, rounded, inputs.q.dtype)) is None


REASONS: Final[dict[str, tuple[int, Any, str]]] = {
    "fp32": (3, replace(FULL, dtype="float32"), "dtype=float32: flash_attn_3 takes float16 and bfloat16"),
    "wide": (3, replace(PAGED, head_dim=512, head_dim_v=512), "head_dim=512: flash_attn_3 takes up to 256"),
    "widths": (3, replace(FULL, head_dim=128), "head_dim=128, head_dim_v=64: flash_attn_3 takes different ones up to "),
    "widths of 2": (2, replace(FULL, head_dim_v=32), "head_dim=64, head_dim_v=32: flash_attn takes one width"),
    "pages of 2": (2, replace(PAGED, page_size=16), "page_size=16: flash_attn takes multiples of 256"),
    "fp8": (3, replace(PAGED, kv_dtype="float8_e4m3fn"), "kv_dtype=float8_e4m3fn: flash_attn_3 takes caches of the"),
    "int8": (2, replace(PAGED, kv_dtype="int8"), "kv_dtype=int8: flash_attn takes caches of the queries' dtype, bfl"),
    "sinks": (3, replace(PAGED, sinks=True), "sinks=True: flash_attn_3 has none"),
    "sinks of 2": (2, replace(PAGED, sinks=True), "sinks=True: flash_attn has none"),
    "alibi": (3, replace(PAGED, alibi=True), "alibi=True: flash_attn_3 has none"),
    "no shape": (2, None, "NoneType: flash_attn computes an AttentionShape or a PagedShape"),
}


@pytest.mark.parametrize(("version", "shape", "reason"), REASONS.values(), ids=REASONS)
def test_what_they_cannot_do_has_a_reason(library: Install, version: int, shape: Any, reason: str) -> None:
    called = library(version).calls
    found = BASELINES[version].unsupported(shape)
    assert found is not None
    assert found.startswith(reason)
    with pytest.raises(BaselineUnavailableError) as caught:
        BASELINES[version].prepare(shape, None)
    assert str(caught.value) == found
    assert called == []


@both
def test_what_the_library_raises_is_one_line(library: Install, version: int) -> None:
    library(version).fails = RuntimeError("This flash attention build does not support\nlocal attention.")
    with pytest.raises(BaselineUnavailableError) as caught:
        BASELINES[version].prepare(FULL, dense(FULL))
    name = BASELINES[version].name
    assert str(caught.value) == (
        f"{name} does not run here: RuntimeError: This flash attention build does not support local attention."
    )


@both
def test_tensors_elsewhere_are_refused(monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    pretend_gpu(monkeypatch)
    install(monkeypatch, version)
    with pytest.raises(BaselineUnavailableError, match=r"the tensors are on cpu: flash_attn.* takes them on cuda"):
        BASELINES[version].prepare(FULL, dense(FULL))


class Broken:
    """A finder whose packages fail as those that were built for another torch do."""

    def find_spec(self, name: str, *_: object) -> None:
        if name in NAMES.values():
            raise OSError("undefined symbol: _ZN3c10\n(flash_attn)")


@both
def test_what_is_missing_is_one_line_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    baseline, module = BASELINES[version], NAMES[version]
    reasons = []
    monkeypatch.setitem(sys.modules, module, None)
    reasons.append(baseline.available())
    with pytest.raises(MissingDependencyError, match=f"{module} does not load"):
        baseline.prepare(FULL, None)
    monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    reasons.append(baseline.available())
    install(monkeypatch, version)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    reasons.append(baseline.available())
    pretend_gpu(monkeypatch, (7, 5))
    reasons.append(baseline.available())
    starts = (
        f"{module} does not load (ModuleNotFoundError: ",
        f"{module} does not load (OSError: undefined symbol: _ZN3c10 (flash_attn)): ",
        f"{baseline.name} needs an NVIDIA GPU, and this torch finds none: install ",
        f"{baseline.name} needs a GPU of Ampere ",
    )
    for reason, start in zip(reasons, starts, strict=True):
        assert reason is not None
        assert reason.startswith(start)
        assert "\n" not in reason
    assert all("pip install" in reason for reason in reasons[:2] if reason)
    pretend_gpu(monkeypatch, (8, 0))
    assert baseline.available() is None
    pretend_gpu(monkeypatch, (10, 0))
    assert (baseline.available() is None) == (version == 2)


def test_they_are_baselines_that_need_no_library_to_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, baseline in BASELINES.items():
        monkeypatch.setitem(sys.modules, NAMES[version], None)
        assert (baseline.is_usual, baseline.verified_on_hardware) == (version == 3, False)
        for shape in (*DENSE_SHAPES.values(), *PAGED_SHAPES.values()):
            assert baseline.unsupported(shape) is None
    assert [baseline.name for baseline in BASELINES.values()] == ["flash_attn_3", "flash_attn"]


@both
def test_the_package_has_the_signatures_that_were_recorded(version: int) -> None:
    name = NAMES[version]
    package = pytest.importorskip(name, reason=f"{name} is not installed, and the package itself is what is compared")
    assert drift(RECORDED[version], package) == []


@pytest.fixture
def real(version: int) -> Baseline:
    baseline = BASELINES[version]
    if (reason := baseline.available()) is not None:
        pytest.skip(reason)
    return baseline


@pytest.mark.gpu
@every_dense
def test_gpu_dense_is_that_of_fp64(real: Baseline, version: int, shape: AttentionShape) -> None:
    assert failure(version, DENSE, shape, dense(shape, device="cuda")) is None


@pytest.mark.gpu
@every_paged
def test_gpu_decode_is_that_of_fp64(real: Baseline, version: int, shape: PagedShape) -> None:
    assert failure(version, DECODE, shape, decode(shape, device="cuda")) is None


@pytest.mark.gpu
@every_paged
def test_gpu_prefill_is_that_of_fp64(real: Baseline, version: int, shape: PagedShape) -> None:
    assert failure(version, PREFILL, shape, prefill(shape, device="cuda")) is None
