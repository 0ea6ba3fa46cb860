"""Eager attention: its numbers against fp64, the operations that it is made of, and what it refuses."""

import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from autotune.correctness import error_limit
from autotune.errors import BaselineUnavailableError, MissingDependencyError
from autotune.kernels.baselines.eager import Eager
from autotune.kernels.flash_attention.definition import DEFINITION
from autotune.operation import Baseline
from autotune.shape import AttentionShape, PagedShape
from tests.kernels.numerics import compare, dense_attention

LENGTHS = ((1, 1), (17, 17), (129, 129), (1, 129), (17, 129), (129, 17))
FEATURES: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window": 9},
    "causal window": {"causal": True, "window": 9},
    "softcap": {"softcap": True},
    "all": {"causal": True, "window": 9, "softcap": True},
    "mask": {"attn_mask": "boolean", "window": 9},
    "bias": {"attn_mask": "additive", "causal": True, "softcap": True, "kv_heads": 2},
    "GQA causal": {"kv_heads": 2, "causal": True},
    "MQA": {"kv_heads": 1, "head_dim": 128, "head_dim_v": 72},
}
PLAIN: dict[str, Any] = {"batch": 1, "heads": 2, "seq_q": 17, "head_dim": 64, "dtype": "float16"}
DTYPES = ("float16", "bfloat16", "float32")
by_dtype = pytest.mark.parametrize("dtype", DTYPES)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """pytest's workers take the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def shape_of(dtype: str, seq_q: int, seq_kv: int, features: dict[str, Any]) -> AttentionShape:
    sizes: dict[str, Any] = {"batch": 2, "heads": 4, "head_dim": 64}
    return AttentionShape(**(sizes | features), seq_q=seq_q, seq_kv=seq_kv, dtype=dtype)


def shapes() -> list[AttentionShape]:
    """Each feature and each pair of lengths in each dtype, and every pair of lengths with a causal mask."""
    turns = zip(FEATURES.values(), itertools.cycle(LENGTHS), strict=False)
    found = [shape_of(dtype, *lengths, features) for features, lengths in turns for dtype in DTYPES]
    return found + [shape_of("float16", *lengths, {"causal": True, "kv_heads": 1}) for lengths in LENGTHS]


def failure(shape: AttentionShape, device: str, data: str) -> str | None:
    inputs = DEFINITION.make_inputs(shape, seed=0, device=device, data=data)
    call = Eager().prepare(shape, inputs)
    tensors = inputs.q, inputs.k, inputs.v
    features: Any = {
        "causal": shape.causal,
        "window": shape.window,
        "softcap": inputs.softcap,
        "scale": shape.head_dim**-0.5,
        "attn_mask": inputs.attn_mask,
    }
    expected, _ = dense_attention(*tensors, **features)
    rounded, _ = dense_attention(*tensors, **features, dtype=inputs.q.dtype)
    out = call()
    if out.dtype != inputs.q.dtype:
        return f"the output is {out.dtype}"
    return compare(out, expected, error_limit(expected, rounded, inputs.q.dtype))


@pytest.mark.parametrize("shape", shapes(), ids=str)
def test_agrees_with_fp64(shape: AttentionShape) -> None:
    assert failure(shape, "cpu", "normal") is None


@pytest.mark.parametrize("data", ["large", "tails"])
@by_dtype
def test_agrees_with_fp64_on_hard_numbers(dtype: str, data: str) -> None:
    assert failure(shape_of(dtype, 65, 129, FEATURES["all"]), "cpu", data) is None


@pytest.mark.gpu
@pytest.mark.parametrize("shape", shapes(), ids=str)
def test_gpu_agrees_with_fp64(shape: AttentionShape) -> None:
    assert failure(shape, "cuda", "normal") is None


class Recorder(TorchFunctionMode):
    """Names the functions of torch that are called, without those that only look at a tensor another way."""

    VIEWS = ("transpose", "__get__", "size")

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__
        if name not in self.VIEWS:
            self.names.append(name)
        return func(*args, **(kwargs or {}))


BASE = ["matmul", "mul", "masked_fill", "softmax", "matmul"]


@pytest.mark.parametrize(
    ("features", "operations"),
    [
        ({"causal": True}, BASE),
        ({"causal": True, "window": 9}, BASE),
        ({}, ["matmul", "mul", "softmax", "matmul"]),
        ({"causal": True, "softcap": True}, [*BASE[:2], "div", "tanh", "mul", *BASE[2:]]),
        ({"causal": True, "kv_heads": 1}, ["repeat_interleave", "repeat_interleave", *BASE]),
        ({"causal": True, "seq_kv": 9}, [*BASE, "masked_fill"]),  # queries that see no key
    ],
)
def test_operations_are_those_of_gpt2(features: dict[str, Any], operations: list[str]) -> None:
    shape = AttentionShape(**(PLAIN | features))
    call = Eager().prepare(shape, DEFINITION.make_inputs(shape, seed=0, device="cpu"))
    with Recorder() as recorder:
        call()
    assert [name.strip("_") for name in recorder.names] == operations


def test_call_follows_its_inputs() -> None:
    shape = AttentionShape(batch=1, heads=2, seq_q=17, head_dim=64, dtype="float32", causal=True)
    inputs, others = (DEFINITION.make_inputs(shape, seed=seed, device="cpu") for seed in (0, 1))
    call, other = Eager().prepare(shape, inputs), Eager().prepare(shape, others)
    assert not torch.equal(call(), other())
    for name in ("q", "k", "v"):
        getattr(inputs, name).copy_(getattr(others, name))
    assert torch.equal(call(), other())


def test_it_is_a_baseline() -> None:
    baseline: Baseline = Eager()
    assert baseline.name == "eager"
    assert baseline.available() is None
    for features in FEATURES.values():
        assert baseline.unsupported(shape_of("bfloat16", 17, 129, features)) is None


def test_what_it_cannot_do_is_named() -> None:
    fp8 = AttentionShape(**PLAIN)
    object.__setattr__(fp8, "dtype", "float8_e4m3fn")
    paged = PagedShape(batch=1, heads=2, max_context=64, head_dim=64)
    for shape, reason in ((fp8, "dtype=float8_e4m3fn: "), (paged, "PagedShape: ")):
        found = Eager().unsupported(shape)
        assert found is not None
        assert found.startswith(reason)
        with pytest.raises(BaselineUnavailableError) as caught:
            Eager().prepare(shape, None)
        assert str(caught.value) == found


def test_a_missing_torch_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "pip install torch" in (Eager().available() or "")
    with pytest.raises(MissingDependencyError, match="pip install torch"):
        Eager().prepare(AttentionShape(**PLAIN), None)


def test_import_loads_no_torch() -> None:
    code = "import sys, autotune.kernels.baselines.eager; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], check=True)
