"""FlashInfer's calls, by a stand-in with its signatures that computes in fp64."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import pytest
import torch

from autotune.correctness import error_limit
from autotune.errors import BaselineUnavailableError, MissingDependencyError
from autotune.kernels.baselines import flash_infer
from autotune.kernels.baselines.flash_infer import FlashInfer, list_pages
from autotune.kernels.flash_attention.definition import DEFINITION as DENSE
from autotune.kernels.paged_decode.definition import DEFINITION as DECODE
from autotune.kernels.paged_decode.inputs import CheckShape
from autotune.kernels.paged_prefill.definition import DEFINITION as PREFILL
from autotune.kernels.paged_prefill.inputs import check_shape
from autotune.kernels.paged_prefill.reference import paged_prefill_reference
from autotune.operation import Baseline
from autotune.shape import AttentionShape, PagedShape
from tests.kernels.baselines.fake_flash_infer import install
from tests.kernels.baselines.signatures import flashinfer as recorded
from tests.kernels.baselines.stand_ins import Recorder, drift
from tests.kernels.numerics import compare

ONE: Final = AttentionShape(batch=1, heads=4, kv_heads=2, seq_q=17, head_dim=64, dtype="bfloat16", causal=True)
DENSE_SHAPES: Final = {
    "one": ONE,
    "one-full": replace(ONE, causal=False),
    "one-fp16-mha": replace(ONE, kv_heads=4, dtype="float16"),
    "one-query": replace(ONE, seq_q=1, seq_kv=33),
    "one-more-keys": replace(ONE, seq_kv=33),
    "one-window": replace(ONE, seq_kv=33, window=5),
    "one-query-window": replace(ONE, seq_q=1, seq_kv=33, window=5, causal=False),
    "one-softcap": replace(ONE, softcap=True),
    "one-narrow-values": replace(ONE, head_dim=192, head_dim_v=128),
    "two": replace(ONE, batch=2),
    "three-mqa-full": replace(ONE, batch=3, kv_heads=1, causal=False),
    "two-all": replace(ONE, batch=2, seq_kv=33, window=5, softcap=True),
    "two-narrow-values": replace(ONE, batch=2, head_dim=192, head_dim_v=128),
}
PAGED: Final = PagedShape(batch=5, heads=8, kv_heads=2, max_context=70, head_dim=64, page_size=16, dtype="bfloat16")
PAGED_SHAPES: Final = {
    "nhd": PAGED,
    "hnd": replace(PAGED, layout="HND"),
    "mha": replace(PAGED, kv_heads=8, layout="HND"),
    "group-3": replace(PAGED, heads=6),
    "group-5": replace(PAGED, heads=10),
    "fp16": replace(PAGED, dtype="float16", kv_dtype="float16", head_dim=128, head_dim_v=128),
    "page-1": replace(PAGED, page_size=1),
    "page-3": replace(PAGED, page_size=3, layout="HND"),
    "window": replace(PAGED, window=9),
    "softcap": replace(PAGED, softcap=True),
    "e4m3": replace(PAGED, kv_dtype="float8_e4m3fn"),
    "e5m2-hnd": replace(PAGED, kv_dtype="float8_e5m2", layout="HND", softcap=True),
}
LENGTHS: Final = (70, 0, 1, 16, 33)
QUERIES: Final = (40, 0, 1, 16, 2)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """pytest's workers take the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """The stand-in is installed, and the CPU counts as the GPU."""
    monkeypatch.setattr(flash_infer, "DEVICE", "cpu")
    monkeypatch.setattr(flash_infer, "WORKSPACE_BYTES", 64)
    pretend_gpu(monkeypatch)
    return install(monkeypatch)


def pretend_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


def dense(shape: AttentionShape, *, seed: int = 0, device: str = "cpu") -> Any:
    return DENSE.make_inputs(shape, seed=seed, device=device)


def decode(
    shape: PagedShape, lengths: tuple[int, ...] = LENGTHS, *, seed: int = 0, device: str = "cpu", data: str = "normal"
) -> Any:
    fields: dict[str, Any] = shape.as_dict()
    return DECODE.make_inputs(CheckShape(**fields, lengths=lengths), seed=seed, device=device, data=data)


def prefill(
    shape: PagedShape,
    lengths: tuple[int, ...] = LENGTHS,
    queries: tuple[int, ...] = QUERIES,
    *,
    device: str = "cpu",
) -> Any:
    return PREFILL.make_inputs(check_shape(shape, lengths, queries), seed=0, device=device)


def reference(kernel: Any, inputs: Any) -> list[torch.Tensor]:
    """The output in fp64 and as eager torch computes it; paged prefill's own reference knows no 8-bit caches."""
    if kernel is not PREFILL:
        return [kernel.reference(inputs, dtype=dtype)[0] for dtype in (None, inputs.q.dtype)]
    tensors = ("q", "k_cache", "v_cache", "page_table", "seq_lens", "cu_seqlens_q")
    features = ("layout", "scale", "window", "softcap", "k_scale", "v_scale")
    given = [getattr(inputs, name) for name in tensors]
    named = {name: getattr(inputs, name) for name in features}
    return [paged_prefill_reference(*given, **named, dtype=dtype)[0] for dtype in (None, inputs.q.dtype)]


def failure(kernel: Any, shape: Any, inputs: Any) -> str | None:
    """Say how far the prepared call is from fp64, by the framework's own limit, or None."""
    out = FlashInfer().prepare(shape, inputs)()
    expected, rounded = reference(kernel, inputs)
    if (out.shape, out.dtype) != (expected.shape, inputs.q.dtype):
        return f"the output is {tuple(out.shape)} {out.dtype}"
    return compare(out, expected, error_limit(expected, rounded, inputs.q.dtype))


@pytest.mark.parametrize("shape", DENSE_SHAPES.values(), ids=DENSE_SHAPES)
def test_dense_is_that_of_fp64(library: Recorder, shape: AttentionShape) -> None:
    assert failure(DENSE, shape, dense(shape)) is None
    is_one = shape.batch == 1
    assert library.names() == (
        ["single_prefill_with_kv_cache"] * 2 if is_one else ["ragged.plan", "ragged.run", "ragged.run"]
    )


@pytest.mark.parametrize("shape", PAGED_SHAPES.values(), ids=PAGED_SHAPES)
def test_decode_is_that_of_fp64(library: Recorder, shape: PagedShape) -> None:
    assert failure(DECODE, shape, decode(shape)) is None
    assert (library.names(), library.integers()) == (["decode.plan", "decode.run", "decode.run"], {torch.int32})


@pytest.mark.parametrize("shape", PAGED_SHAPES.values(), ids=PAGED_SHAPES)
def test_several_queries_a_sequence_are_a_prefill(library: Recorder, shape: PagedShape) -> None:
    shape = replace(shape, seq_q=3)
    assert failure(DECODE, shape, decode(shape, (70, 3, 4, 16, 33))) is None
    assert library.names() == ["prefill.plan", "prefill.run", "prefill.run"]
    assert library.last("prefill.plan")["qo_indptr"].tolist() == [0, 3, 6, 9, 12, 15]


@pytest.mark.parametrize("shape", PAGED_SHAPES.values(), ids=PAGED_SHAPES)
def test_prefill_is_that_of_fp64(library: Recorder, shape: PagedShape) -> None:
    assert failure(PREFILL, shape, prefill(shape)) is None
    assert (library.names(), library.integers()) == (["prefill.plan", "prefill.run", "prefill.run"], {torch.int32})
    assert library.last("prefill.plan")["qo_indptr"].tolist() == [0, 40, 40, 41, 57, 59]


@pytest.mark.parametrize("data", ["large", "tails"])
def test_decode_is_that_of_fp64_on_hard_numbers(library: Recorder, data: str) -> None:
    assert failure(DECODE, PAGED, decode(PAGED, data=data)) is None


def test_pages_are_listed_sequence_by_sequence() -> None:
    table = torch.tensor([[7, 2, -1], [-1, -1, -1], [5, -1, -1], [1, 9, 3]], dtype=torch.int32)
    found = list_pages(table, torch.tensor([5, 0, 4, 9], dtype=torch.int32), page_size=4)
    assert all(tensor.dtype == torch.int32 for tensor in found)
    assert [tensor.tolist() for tensor in found] == [[0, 2, 2, 3, 6], [7, 2, 5, 1, 9, 3], [1, 0, 4, 1]]


@pytest.mark.parametrize(("heads", "expected"), [(2, False), (4, False), (6, False), (8, True), (10, True)])
def test_decode_is_on_tensor_cores_from_groups_of_4_on(library: Recorder, heads: int, expected: bool) -> None:
    shape = replace(PAGED, heads=heads)
    FlashInfer().prepare(shape, decode(shape))
    assert library.last("decode.plan")["use_tensor_cores"] is expected


def test_options_have_the_library_s_meaning(library: Recorder) -> None:
    shape = replace(ONE, window=5, softcap=True)
    FlashInfer().prepare(shape, dense(shape))
    given = library.last("single_prefill_with_kv_cache")
    options = ("causal", "window_left", "logits_soft_cap", "sm_scale")
    assert [given[name] for name in options] == [True, 4, 20.0, 0.125]
    paged = replace(PAGED, window=1)
    FlashInfer().prepare(paged, decode(paged))
    given = library.last("decode.plan")
    assert [given[name] for name in options[1:]] == [0, None, 0.125]
    FlashInfer().prepare(PAGED, prefill(PAGED))
    given = library.last("prefill.plan")
    assert [given[name] for name in options] == [True, -1, None, 0.125]


@pytest.mark.parametrize(("kv_dtype", "backend"), [("bfloat16", "auto"), ("float8_e4m3fn", "fa2")])
def test_fa2_reads_8_bit_caches(library: Recorder, kv_dtype: str, backend: str) -> None:
    shape = replace(PAGED, kv_dtype=kv_dtype)
    FlashInfer().prepare(shape, prefill(shape))
    assert library.last("prefill.plan")["backend"] == backend


@pytest.mark.parametrize("kernel", [DECODE, PREFILL], ids=["decode", "prefill"])
def test_one_scale_is_the_library_s_own(library: Recorder, kernel: Any) -> None:
    shape = replace(PAGED, kv_dtype="float8_e4m3fn")
    inputs = (decode if kernel is DECODE else prefill)(shape)
    inputs = replace(inputs, k_scale=torch.full((2,), 0.25), v_scale=torch.full((2,), 0.5))
    assert failure(kernel, shape, inputs) is None
    given = library.calls[-1].given
    assert (given["k_scale"], given["v_scale"]) == (0.25, 0.5)


def test_scales_that_differ_multiply_queries_and_output(library: Recorder) -> None:
    shape = replace(PAGED, kv_dtype="float8_e4m3fn")
    inputs = replace(decode(shape), k_scale=torch.tensor([0.25, 0.5]), v_scale=torch.tensor([0.5, 0.25]))
    queries = inputs.q.clone()
    assert failure(DECODE, shape, inputs) is None
    given = library.calls[-1].given
    assert given["k_scale"] is given["v_scale"] is None
    factors = torch.tensor([0.25] * 4 + [0.5] * 4, dtype=torch.bfloat16)[:, None]
    assert torch.equal(given["q"], queries[:, 0] * factors)
    assert torch.equal(inputs.q, queries)


@pytest.mark.parametrize(
    ("kernel", "shape"),
    [(DENSE, ONE), (DENSE, replace(ONE, batch=2)), (DECODE, PAGED), (PREFILL, PAGED)],
    ids=["one", "two", "decode", "prefill"],
)
def test_a_call_plans_nothing_and_follows_its_tensors(library: Recorder, kernel: Any, shape: Any) -> None:
    makers: dict[Any, Callable[[Any], Any]] = {DENSE: dense, DECODE: decode, PREFILL: prefill}
    inputs = makers[kernel](shape)
    call = FlashInfer().prepare(shape, inputs)
    first, planned = call(), len([name for name in library.names() if name.endswith("plan")])
    inputs.q.neg_()
    (inputs.v if kernel is DENSE else inputs.v_cache).mul_(2.0)
    expected, rounded = reference(kernel, inputs)
    second = call()
    assert not torch.equal(first, second)
    assert compare(second, expected, error_limit(expected, rounded, inputs.q.dtype)) is None
    assert len([name for name in library.names() if name.endswith("plan")]) == planned


def test_queries_need_not_be_contiguous(library: Recorder) -> None:
    shape = replace(ONE, batch=2)
    inputs = dense(shape)
    wide = torch.zeros(2, 20, 4, 64, dtype=torch.bfloat16)
    view = wide[:, :17].copy_(inputs.q)
    assert failure(DENSE, shape, replace(inputs, q=view)) is None


def test_calls_share_a_workspace_as_long_as_one_lives(library: Recorder) -> None:
    baseline = FlashInfer()
    shapes = (replace(PAGED, window=5), replace(PAGED, softcap=True))
    calls = [baseline.prepare(shapes[0], decode(shapes[0]))]
    (workspace,) = baseline._workspaces.values()
    assert (workspace.dtype, bool(workspace.any())) == (torch.uint8, False)
    address = workspace.data_ptr()
    del workspace
    calls.append(baseline.prepare(shapes[1], decode(shapes[1])))
    assert [workspace.data_ptr() for workspace in baseline._workspaces.values()] == [address]
    library.calls.clear()
    calls.clear()
    assert len(baseline._workspaces) == 0


@pytest.mark.parametrize("group", [8, 16])
@pytest.mark.parametrize(("head_dim", "rows"), [(128, 128), (256, 64)])
def test_workspace_holds_what_fa2_splits_on_an_h200_and_the_recommended_size_does_not(
    group: int, head_dim: int, rows: int
) -> None:
    """PrefillPlan of 0.5.3: ``tmp_v`` and ``tmp_s`` of fp32 for each head and tile, of which two run on an SM."""
    kv_heads = 8
    tiles = 2 * 132 // kv_heads
    size = group * kv_heads * tiles * rows * (head_dim + 1) * 4
    assert 128 * 2**20 < size <= flash_infer.WORKSPACE_BYTES


REASONS: Final[dict[str, tuple[Any, str]]] = {
    "fp32": (replace(ONE, dtype="float32"), "dtype=float32: flashinfer takes float16 and bfloat16"),
    "width": (
        replace(ONE, head_dim=96, head_dim_v=96),
        "head_dim=96, head_dim_v=96: flashinfer takes 64/64, 128/128, ",
    ),
    "widths": (replace(ONE, head_dim=128), "head_dim=128, head_dim_v=64: "),
    "two-sided window": (replace(ONE, causal=False, window=5), "window=5, causal=False: "),
    "more queries": (replace(ONE, seq_kv=9), "seq_q=17 is more than seq_kv=9: "),
    "paged widths": (
        replace(PAGED, head_dim=192, head_dim_v=128),
        "head_dim=192, head_dim_v=128: flashinfer takes 64/64, 128/128, 256/256",
    ),
    "int8": (replace(PAGED, kv_dtype="int8"), "kv_dtype=int8: flashinfer takes caches of bfloat16, float8_e4m3fn, "),
    "mixed": (replace(PAGED, kv_dtype="float16"), "kv_dtype=float16: "),
    "sinks": (replace(PAGED, sinks=True), "sinks=True: "),
    "alibi": (replace(PAGED, alibi=True), "alibi=True: "),
    "no shape": (None, "NoneType: flashinfer computes an AttentionShape or a PagedShape"),
}


@pytest.mark.parametrize(("shape", "reason"), REASONS.values(), ids=REASONS)
def test_what_it_cannot_do_has_a_reason(library: Recorder, shape: Any, reason: str) -> None:
    found = FlashInfer().unsupported(shape)
    assert found is not None
    assert found.startswith(reason)
    with pytest.raises(BaselineUnavailableError) as caught:
        FlashInfer().prepare(shape, None)
    assert str(caught.value) == found
    assert library.calls == []


def test_a_full_mask_may_have_more_queries_than_keys(library: Recorder) -> None:
    shape = replace(ONE, causal=False, seq_kv=9)
    assert failure(DENSE, shape, dense(shape)) is None


def test_what_inputs_alone_tell_is_refused_too(library: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BaselineUnavailableError, match="a sequence has more queries than keys"):
        FlashInfer().prepare(PAGED, prefill(PAGED, (70, 0, 1, 16, 33), (40, 1, 1, 16, 2)))
    inputs = decode(PAGED)
    with pytest.raises(BaselineUnavailableError, match=r"strides=.* of keys and values: flashinfer takes the same"):
        FlashInfer().prepare(PAGED, replace(inputs, v_cache=inputs.v_cache.contiguous()))
    monkeypatch.undo()
    pretend_gpu(monkeypatch)
    install(monkeypatch)
    with pytest.raises(BaselineUnavailableError, match="the tensors are on cpu: flashinfer takes them on cuda"):
        FlashInfer().prepare(PAGED, inputs)


def test_a_failing_plan_makes_it_unavailable_in_one_line(library: Recorder) -> None:
    library.fails = RuntimeError("Ninja build failed.\n nvcc: not found" + " and so on" * 200)
    with pytest.raises(BaselineUnavailableError) as caught:
        FlashInfer().prepare(PAGED, decode(PAGED))
    message = str(caught.value)
    assert message.startswith("flashinfer does not run here: RuntimeError: Ninja build failed. nvcc: not found")
    assert "\n" not in message
    assert len(message) < 600


class Broken:
    """A finder whose flashinfer fails as native code does."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "flashinfer":
            raise OSError("libcudart.so.13: cannot open\nshared object file")


def test_what_is_missing_is_one_line_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = []
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    reasons.append(FlashInfer().available())
    with pytest.raises(MissingDependencyError, match="pip install flashinfer-python"):
        FlashInfer().prepare(PAGED, None)
    monkeypatch.delitem(sys.modules, "flashinfer")
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    reasons.append(FlashInfer().available())
    install(monkeypatch)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    reasons.append(FlashInfer().available())
    starts = (
        "flashinfer does not load (ModuleNotFoundError: ",
        "flashinfer does not load (OSError: libcudart.so.13: cannot open shared object file): pip install",
        "flashinfer needs an NVIDIA GPU, and this torch finds none: install ",
    )
    for reason, start in zip(reasons, starts, strict=True):
        assert reason is not None
        assert reason.startswith(start)
        assert "\n" not in reason
    pretend_gpu(monkeypatch)
    assert FlashInfer().available() is None


def test_it_is_a_baseline_that_needs_no_library_to_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    baseline: Baseline = FlashInfer()
    assert (baseline.name, baseline.is_usual, baseline.verified_on_hardware) == ("flashinfer", False, True)
    for shape in (*DENSE_SHAPES.values(), *PAGED_SHAPES.values()):
        assert baseline.unsupported(shape) is None


def test_the_package_has_the_signatures_that_were_recorded() -> None:
    reason = "flashinfer is not installed, and the package itself is what is compared"
    package = pytest.importorskip("flashinfer", reason=reason)
    assert drift(recorded, package) == []


@pytest.fixture
def real() -> FlashInfer:
    baseline = FlashInfer()
    if (reason := baseline.available()) is not None:
        pytest.skip(reason)
    return baseline


@pytest.mark.gpu
@pytest.mark.parametrize("shape", DENSE_SHAPES.values(), ids=DENSE_SHAPES)
def test_gpu_dense_is_that_of_fp64(real: FlashInfer, shape: AttentionShape) -> None:
    assert failure(DENSE, shape, dense(shape, device="cuda")) is None


@pytest.mark.gpu
@pytest.mark.parametrize("shape", PAGED_SHAPES.values(), ids=PAGED_SHAPES)
def test_gpu_decode_is_that_of_fp64(real: FlashInfer, shape: PagedShape) -> None:
    assert failure(DECODE, shape, decode(shape, device="cuda")) is None


@pytest.mark.gpu
@pytest.mark.parametrize("shape", PAGED_SHAPES.values(), ids=PAGED_SHAPES)
def test_gpu_prefill_is_that_of_fp64(real: FlashInfer, shape: PagedShape) -> None:
    assert failure(PREFILL, shape, prefill(shape, device="cuda")) is None
