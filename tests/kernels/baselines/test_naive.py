"""Naive attention: its numbers in Triton's interpreter and on a GPU, its binaries, its traffic, and what it refuses."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton

from autotune.correctness import error_limit
from autotune.device import architecture
from autotune.errors import BaselineUnavailableError, MissingDependencyError
from autotune.kernels.baselines.naive import Naive, kernel_traffic, memory_traffic
from autotune.kernels.baselines.naive.launch import plan_launches
from autotune.kernels.flash_attention.definition import DEFINITION
from autotune.operation import Baseline
from autotune.shape import MAX_LENGTH, AttentionShape, PagedShape
from tests.contract.compiling import compile_sample
from tests.contract.interpreting import interpret
from tests.kernels.baselines.naive_cases import (
    Case,
    case_failure,
    distant_failure,
    gpu_cases,
    make_cases,
    prepared_failure,
    touched_bytes,
)
from tests.kernels.numerics import compare, dense_attention

ROOT = Path(__file__).parents[3]


INTERPRETED = [
    pytest.param(case, marks=[pytest.mark.slow] if number % 8 else []) for number, case in enumerate(make_cases())
]


@pytest.mark.parametrize("case", INTERPRETED, ids=str)
def test_interpreted_case(case: Case) -> None:
    assert interpret(case_failure, case, "cpu") is None


@pytest.mark.gpu
@pytest.mark.parametrize("case", gpu_cases(), ids=str)
def test_gpu_case(case: Case) -> None:
    assert case_failure(case, "cuda") is None


def test_cases_are_many_and_hold_every_feature() -> None:
    cases = make_cases()
    assert len({str(case) for case in cases}) == len(cases) >= 48
    for causal in (False, True):
        for dtype in ("float16", "float32"):
            held = [case for case in cases if case.causal == causal and case.dtype == dtype]
            assert {case.head_dim for case in held} >= {64, 72, 128}
            assert {case.heads // case.kv_heads for case in held} >= {1, 2}
            assert {length for case in held for length in (case.seq_q, case.seq_kv)} >= {1, 17, 129}
    assert {case.dtype for case in gpu_cases()} == {"float16", "bfloat16", "float32"}


DISTANT = [(0, 2**30), (0, 2**31 + 16), (1, 2**23), (2, 2**30)]  # axis, stride: its product with an index overflows


@pytest.mark.parametrize(("axis", "stride"), DISTANT)
def test_interpreted_offsets_beyond_32_bits(axis: int, stride: int) -> None:
    try:
        torch.empty(3 * stride if axis != 1 else 300 * stride, dtype=torch.float16)
    except RuntimeError:
        pytest.skip("the machine gives out no address space of this size")
    assert interpret(distant_failure, axis, stride, "cpu") is None


@pytest.mark.gpu
@pytest.mark.parametrize(("axis", "stride"), DISTANT)
def test_gpu_offsets_beyond_32_bits(axis: int, stride: int) -> None:
    assert distant_failure(axis, stride, "cuda") is None


@pytest.mark.gpu
def test_gpu_scores_of_more_than_32_bits() -> None:
    """Three heads of 27000 x 27000 scores; the first and the last queries of each are compared."""
    length = 27000
    generator = torch.Generator(device="cuda").manual_seed(0)
    q, k, v = (torch.randn(1, length, 3, 64, generator=generator, device="cuda").half() for _ in range(3))
    scores = q.new_empty(1, 3, length, length)
    assert scores.numel() > 2**31
    out = torch.full_like(q, float("nan"))
    for launch in plan_launches(q, k, v, scores, out, causal=False, scale=0.125):
        launch.run()
    assert not out.isnan().any()
    rows = [0, 1, length - 2, length - 1]
    expected, eager = (
        dense_attention(q[:, rows], k, v, scale=0.125, dtype=kind)[0] for kind in (torch.float64, q.dtype)
    )
    assert compare(out[:, rows], expected, error_limit(expected, eager, q.dtype)) is None


SHAPES: dict[str, dict[str, Any]] = {
    "MHA": {"batch": 2, "heads": 2, "seq_q": 33, "head_dim": 64, "dtype": "float16"},
    "GQA causal": {
        "batch": 2,
        "heads": 4,
        "kv_heads": 2,
        "seq_q": 40,
        "seq_kv": 70,
        "head_dim": 72,
        "head_dim_v": 24,
        "dtype": "float32",
        "causal": True,
    },
    "MQA": {"batch": 1, "heads": 3, "kv_heads": 1, "seq_q": 1, "seq_kv": 129, "head_dim": 128, "dtype": "float16"},
}
by_shape = pytest.mark.parametrize("fields", SHAPES.values(), ids=[name.replace(" ", "-") for name in SHAPES])


@by_shape
def test_interpreted_call_follows_its_inputs(fields: dict[str, Any]) -> None:
    assert interpret(prepared_failure, fields, "cpu") is None


@pytest.mark.gpu
@by_shape
def test_gpu_call_follows_its_inputs(fields: dict[str, Any]) -> None:
    assert prepared_failure(fields, "cuda") is None


@pytest.mark.gpu
def test_a_cuda_graph_holds_the_call() -> None:
    shape = AttentionShape(**SHAPES["GQA causal"])
    inputs = DEFINITION.make_inputs(shape, seed=0, device="cuda")
    call = Naive().prepare(shape, inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # prepared: nothing is compiled in it
        out = call()
    out.fill_(float("nan"))
    graph.replay()
    expected = out.clone()
    assert torch.equal(call(), expected)
    assert not expected.isnan().any()


@pytest.mark.parametrize("arch", ["sm_90", pytest.param("gfx942", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_all_three_compile_and_fit(arch: str, tmp_path: Path) -> None:
    found = compile_sample("tests.kernels.baselines.compile_naive", arch, tmp_path)
    assert len(found) == 9
    for name, resources in found.items():
        assert resources["registers"], name
        assert resources["shared_bytes"] <= architecture(arch).shared_memory_bytes, name


@by_shape
def test_traffic_is_what_the_kernels_touch(fields: dict[str, Any]) -> None:
    shape = AttentionShape(**fields)
    assert kernel_traffic(shape) == interpret(touched_bytes, fields)
    assert memory_traffic(shape) == sum(kernel_traffic(shape).values())


@pytest.mark.parametrize(
    "shape",
    [
        AttentionShape(batch=2, heads=32, kv_heads=8, seq_q=4096, head_dim=128),
        AttentionShape(batch=1, heads=8, seq_q=1024, head_dim=64, dtype="float32", causal=True),
        AttentionShape(batch=3, heads=6, kv_heads=1, seq_q=17, seq_kv=5000, head_dim=192, head_dim_v=128),
    ],
    ids=str,
)
def test_traffic_is_the_size_of_what_each_launch_is_given(shape: AttentionShape) -> None:
    """Every kernel reads or writes each of its tensors once, but the softmax, which replaces the scores: twice."""
    options: Any = {"dtype": getattr(torch, shape.dtype), "device": "meta"}
    q = torch.empty(shape.batch, shape.seq_q, shape.heads, shape.head_dim, **options)
    k = torch.empty(shape.batch, shape.seq_kv, shape.kv_heads, shape.head_dim, **options)
    v = torch.empty(shape.batch, shape.seq_kv, shape.kv_heads, shape.head_dim_v, **options)
    scores = torch.empty(shape.batch, shape.heads, shape.seq_q, shape.seq_kv, **options)
    out = torch.empty(shape.batch, shape.seq_q, shape.heads, shape.head_dim_v, **options)
    launches = plan_launches(q, k, v, scores, out, causal=shape.causal, scale=1.0)
    tensors = [[item for item in launch.arguments if isinstance(item, torch.Tensor)] for launch in launches]
    assert [len(given) for given in tensors] == [3, 1, 3]
    sizes = [sum(tensor.nbytes for tensor in given) for given in tensors]
    assert list(kernel_traffic(shape).values()) == [sizes[0], 2 * sizes[1], sizes[2]]


def test_traffic_of_the_assignment() -> None:
    """S 1024, D 64, 8 heads in fp32: scores of 32 MB; 4 (4 S D + 4 S^2) bytes a head, 15.1 FLOPs a byte."""
    shape = AttentionShape(batch=1, heads=8, seq_q=1024, head_dim=64, dtype="float32")
    assert kernel_traffic(shape)["softmax_rows"] == 2 * 32 * 2**20
    assert memory_traffic(shape) == 8 * 4 * (4 * 1024 * 64 + 4 * 1024**2)
    assert 8 * 4 * 1024**2 * 64 / memory_traffic(shape) == pytest.approx(15.06, abs=0.005)


PLAIN: dict[str, Any] = {"batch": 1, "heads": 2, "seq_q": 8, "head_dim": 64, "dtype": "float16"}


def test_it_is_a_baseline() -> None:
    baseline: Baseline = Naive()
    assert baseline.name == "naive"
    for fields in SHAPES.values():
        assert baseline.unsupported(AttentionShape(**fields)) is None


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"window": 3}, "window=3: naive"),
        ({"softcap": True}, "softcap=True: naive"),
        ({"batch": 2, "heads": 2, "seq_q": MAX_LENGTH}, f"batch * heads * seq_q = {4 * MAX_LENGTH}: naive"),
    ],
)
def test_what_it_cannot_do_is_named(fields: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = AttentionShape(**(PLAIN | fields))
    found = Naive().unsupported(shape)
    assert found is not None
    assert found.startswith(reason)
    monkeypatch.setattr(Naive, "available", lambda self: None)
    with pytest.raises(BaselineUnavailableError) as caught:
        Naive().prepare(shape, None)
    assert str(caught.value) == found


def test_other_dtypes_and_shapes_are_named() -> None:
    shape = AttentionShape(**PLAIN)
    object.__setattr__(shape, "dtype", "float8_e4m3fn")
    assert (Naive().unsupported(shape) or "").startswith("dtype=float8_e4m3fn: naive takes float16, bfloat16, float32")
    paged = PagedShape(batch=1, heads=2, max_context=64, head_dim=64)
    assert (Naive().unsupported(paged) or "").startswith("PagedShape: ")


@pytest.mark.parametrize("library", ["torch", "triton"])
def test_a_missing_library_is_named_with_its_command(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    missing = Naive().available()
    assert missing is not None
    assert library in missing
    assert 'pip install ".[gpu]"' in missing
    with pytest.raises(MissingDependencyError, match=r"pip install"):
        Naive().prepare(AttentionShape(**PLAIN), None)


def test_a_missing_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "GPU" in (Naive().available() or "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert Naive().available() is None


def test_an_interpreter_needs_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(triton.knobs.runtime, "interpret", True)
    assert Naive().available() is None


def test_tensors_of_the_cpu_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Naive, "available", lambda self: None)
    shape = AttentionShape(**PLAIN)
    with pytest.raises(BaselineUnavailableError, match="on cpu: naive takes a GPU's"):
        Naive().prepare(shape, DEFINITION.make_inputs(shape, seed=0, device="cpu"))


def test_scores_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(sizes: tuple[int, ...]) -> torch.Tensor:
        raise torch.OutOfMemoryError("Tried to allocate 16.00 GiB")

    monkeypatch.setattr(Naive, "available", lambda self: None)
    q = SimpleNamespace(shape=(1, 8, 2, 64), device=torch.device("cuda"), new_empty=refuse)
    inputs = SimpleNamespace(q=q, k=q, v=q, causal=False, scale=1.0)
    with pytest.raises(BaselineUnavailableError, match=r"\(1, 2, 8, 8\) scores in memory: Tried to allocate 16.00 GiB"):
        Naive().prepare(AttentionShape(**PLAIN), inputs)


def test_its_formula_needs_neither_torch_nor_triton() -> None:
    code = "import sys, autotune.kernels.baselines.naive; assert not {'torch', 'triton'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
