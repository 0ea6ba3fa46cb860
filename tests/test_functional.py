"""``autotune.attention`` computes attention, refuses what does not fit, and picks its kernel once for each shape.

Run as a script with TRITON_INTERPRET=1, this module computes the numeric cases on the CPU; Triton reads that variable
when it is imported, so this needs a process of its own.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from autotune import attention, dispatch, eager_calls, platforms
from autotune.correctness import error_limit
from autotune.errors import InputMismatchError, InvalidShapeError, NotDifferentiableError, UnknownNameError
from tests import sample

ROOT: Final = Path(__file__).resolve().parent.parent

# name: sizes (batch, seq_q, seq_kv, heads, kv_heads, head_dim), dtype, options
CASES: Final[dict[str, tuple[tuple[int, ...], torch.dtype, dict[str, Any]]]] = {
    "full": ((2, 33, 33, 2, 2, 32), torch.float16, {}),
    "causal": ((1, 65, 65, 2, 2, 64), torch.float16, {"causal": True}),
    "grouped, more keys": ((1, 17, 70, 6, 2, 16), torch.float32, {"causal": True}),
    "one query": ((2, 1, 50, 4, 1, 24), torch.float16, {"causal": True}),
    "window": ((1, 40, 40, 1, 1, 16), torch.float32, {"causal": True, "window": 7}),
    "softcap": ((1, 20, 20, 2, 2, 16), torch.float32, {"softcap": 2.0}),
    "scale": ((1, 20, 20, 1, 1, 16), torch.float32, {"scale": 0.7}),
    "lse": ((2, 19, 30, 2, 1, 16), torch.float32, {"causal": True, "return_lse": True}),
    "blind queries": ((1, 30, 10, 1, 1, 16), torch.float32, {"causal": True, "return_lse": True}),
}


def tensors(sizes: tuple[int, ...], dtype: torch.dtype = torch.float16) -> tuple[torch.Tensor, ...]:
    """Random q, k and v."""
    batch, seq_q, seq_kv, heads, kv_heads, width = sizes
    generator = torch.Generator().manual_seed(0)
    shapes = ((batch, seq_q, heads), (batch, seq_kv, kv_heads), (batch, seq_kv, kv_heads))
    return tuple(torch.randn(*shape, width, generator=generator).to(dtype) for shape in shapes)


def by_torch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    return_lse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp by torch's SDPA, or in three lines where it has no softcap; all in the type of ``q``."""
    group = q.shape[2] // k.shape[2]
    q, k, v = q.transpose(1, 2), *(x.repeat_interleave(group, 2).transpose(1, 2) for x in (k, v))
    behind = torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2] - torch.arange(k.shape[2])
    visible = torch.ones_like(behind, dtype=torch.bool)
    if causal:
        visible &= behind >= 0
    if window is not None:
        visible &= behind.abs() < window
    scale = q.shape[3] ** -0.5 if scale is None else scale
    scores = q @ k.transpose(2, 3) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~visible, -math.inf)
    if softcap is None:
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=scale)
    else:
        out = torch.softmax(scores, 3) @ v
    out = torch.where(visible.any(1)[:, None], out, 0)
    return out.transpose(1, 2), torch.logsumexp(scores, 3)


def compute(name: str) -> list[tuple[float, float]]:
    """The largest error of each output of a case, and the largest allowed, by the rule of correctness.py."""
    sizes, dtype, options = CASES[name]
    q, k, v = tensors(sizes, dtype)
    answer = attention(q, k, v, **options)
    found = answer if isinstance(answer, tuple) else (answer,)
    expected = by_torch(q.double(), k.double(), v.double(), **options)
    eager = by_torch(q, k, v, **options)
    errors = []
    for output, reference, rounded in zip(found, expected, eager, strict=False):
        assert output.dtype == (dtype if output.ndim == 4 else torch.float32)
        seen = reference.isfinite()
        assert torch.equal(output[~seen].double(), reference[~seen])
        error = (output.double() - reference)[seen].abs().max().item()
        errors.append((error, error_limit(reference[seen], rounded[seen], output.dtype)))
    return errors


def main() -> None:
    """Compute every case on the CPU, which needs no GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(platforms, "current_device", None)
        print(json.dumps({name: compute(name) for name in CASES}))


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[float, float]]]:
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": str(ROOT),
        "AUTOTUNE_HOME": str(tmp_path_factory.mktemp("home")),
    }
    result = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    errors: dict[str, list[tuple[float, float]]] = json.loads(result.stdout)
    return errors


@pytest.mark.parametrize("name", CASES)
def test_numbers_are_those_of_torch(computed: dict[str, list[tuple[float, float]]], name: str) -> None:
    assert len(computed[name]) == (2 if "return_lse" in CASES[name][2] else 1)
    for error, limit in computed[name]:
        assert error <= limit


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An H200 without tables, where kernels are picked and checked; nothing is launched."""
    yield from sample.serve_untuned(monkeypatch, tmp_path)


SIZES: Final = (2, 8, 12, 4, 2, 16)
SMALL: Final = tensors(SIZES)


def test_the_pick_is_made_once_for_each_shape_until_reload(monkeypatch: pytest.MonkeyPatch) -> None:
    picked: list[Any] = []

    class FakeKernel:
        def bind(self, config: object, shape: object) -> Callable[..., object]:
            picked.append(shape)
            return lambda *tensors, **options: (tensors, options)

    monkeypatch.setattr(dispatch.kernel, "load_kernel", lambda operation, implementation: FakeKernel())
    for _ in range(3):
        answer: Any = attention(*SMALL, causal=True, scale=2.0)
    assert answer == (SMALL, {"scale": 2.0, "softcap": None, "return_lse": False})
    assert len(picked) == 1
    assert str(picked[0]) == "batch 2, 4/2 heads of 16, seq 8 x 12, float16, causal"
    attention(*SMALL)
    attention(*SMALL, window=3)
    attention(*SMALL, softcap=5.0)
    assert len(picked) == 4
    attention(*SMALL, softcap=7.0)  # a value, not a shape
    assert len(picked) == 4
    dispatch.reload()
    attention(*SMALL, causal=True)
    assert len(picked) == 5


@pytest.mark.parametrize("sizes", [(0, 8, 12, 4, 2, 16), (2, 0, 12, 4, 2, 16), (2, 8, 0, 4, 2, 16)])
def test_no_queries_or_no_keys_need_no_kernel(sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager_calls, "pick_for_device", None)
    q, k, v = tensors(sizes)
    out, lse = attention(q, k, v[..., :8], return_lse=True)
    assert (out.shape, out.dtype) == ((*q.shape[:3], 8), torch.float16)
    assert (lse.shape, lse.dtype) == ((q.shape[0], q.shape[2], q.shape[1]), torch.float32)
    assert not out.any()
    assert lse.isneginf().all()
    assert isinstance(attention(q, k, v), torch.Tensor)


@pytest.mark.parametrize("sizes", [(0, 8, 12), (2, 0, 12), (2, 8, 0)])
@pytest.mark.parametrize(
    ("heads", "options", "error", "message"),
    [
        ((4, 3, 16), {}, InvalidShapeError, "heads=4 is not a multiple of kv_heads=3"),
        ((0, 0, 16), {}, InvalidShapeError, "heads=0 is not allowed"),
        ((4, 2, 12), {}, InvalidShapeError, "head_dim=12 is not allowed"),
        ((4, 2, 16), {"window": 0}, InvalidShapeError, "window=0 is not allowed"),
        ((4, 2, 16), {"causal": 1}, InvalidShapeError, "causal=1 is not allowed"),
        ((4, 2, 16), {"dtype": torch.float64}, UnknownNameError, "dtype='float64'"),
    ],
)
def test_no_queries_or_no_keys_are_refused_as_others_are(
    sizes: tuple[int, ...],
    heads: tuple[int, ...],
    options: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    dtype = options.get("dtype", torch.float16)
    with pytest.raises(error, match=message):
        attention(
            *tensors((*sizes, *heads), dtype), **{name: each for name, each in options.items() if name != "dtype"}
        )


def test_no_queries_of_another_dtype_are_refused() -> None:
    q, k, v = tensors((2, 0, 12, 4, 2, 16))
    with pytest.raises(
        InputMismatchError, match=r"are of torch.float16, torch.float32 and torch.float16; expected one"
    ):
        attention(q, k.float(), v)


def change(index: int, edit: Callable[[torch.Tensor], torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The small tensors with one of them edited."""
    return tuple(edit(tensor) if place == index else tensor for place, tensor in enumerate(SMALL))


MISMATCHES: Final[dict[str, tuple[tuple[Any, ...], str]]] = {
    "batch": (change(1, lambda k: k[:1]), "k is (1, 12, 2, 16) float16; this kernel takes (2, 12, 2, 16) float16"),
    "seq_kv": (change(2, lambda v: v[:, :11]), "v is (2, 11, 2, 16) float16"),
    "kv_heads": (change(2, lambda v: v[:, :, :1]), "v is (2, 12, 1, 16) float16"),
    "head_dim": (change(1, lambda k: k[..., :8]), "k is (2, 12, 2, 8) float16"),
    "dtype": (change(1, torch.Tensor.float), "k is (2, 12, 2, 16) float32"),
    "device": (change(1, lambda k: k.to("meta")), "q is on cpu, k on meta; expected one device"),
    "list": ((SMALL[0].tolist(), *SMALL[1:]), "q is a list; expected a tensor"),
    "rank": (change(0, lambda q: q[0]), "q, k and v have 3, 4 and 4 dimensions; expected [B, S, H, D]"),
    "strides": (
        change(2, lambda v: v.transpose(2, 3).contiguous().transpose(2, 3)),
        "v has the strides (384, 32, 1, 2); expected 1 in the last dimension",
    ),
    "no queries, heads": (
        (SMALL[0][:, :0], SMALL[1], SMALL[2][:, :, :1]),
        "q (2, 0, 4, 16), k (2, 12, 2, 16) and v (2, 12, 1, 16) do not fit each other",
    ),
}


@pytest.mark.parametrize(("given", "message"), MISMATCHES.values(), ids=MISMATCHES)
def test_tensors_that_do_not_fit_are_refused(given: tuple[torch.Tensor, ...], message: str) -> None:
    with pytest.raises(InputMismatchError) as caught:
        attention(*given)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["scale", "softcap"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_numbers_that_make_no_softmax_are_refused(name: str, value: float) -> None:
    with pytest.raises(InputMismatchError, match=f"{name}={value} is not allowed; expected a positive number"):
        attention(*SMALL, **{name: value})  # type: ignore[call-overload]


def test_shapes_and_types_of_no_kernel_are_refused() -> None:
    with pytest.raises(InvalidShapeError, match="heads=4 is not a multiple of kv_heads=3"):
        attention(*tensors((2, 8, 12, 4, 3, 16)))
    with pytest.raises(InvalidShapeError, match="head_dim=12 is not allowed"):
        attention(*tensors((2, 8, 12, 4, 2, 12)))
    with pytest.raises(InvalidShapeError, match="window=0"):
        attention(*SMALL, window=0)
    with pytest.raises(UnknownNameError, match="dtype='float64'"):
        attention(*tensors(SIZES, torch.float64))


@pytest.mark.parametrize("index", range(3), ids="qkv")
def test_gradients_are_refused(index: int) -> None:
    with pytest.raises(
        NotDifferentiableError, match=f"{'qkv'[index]} requires gradients, and there is no backward kernel"
    ):
        attention(*change(index, lambda tensor: tensor.clone().requires_grad_()))


def test_gradients_are_refused_where_there_is_nothing_to_compute() -> None:
    with pytest.raises(NotDifferentiableError, match="no backward kernel"):
        attention(SMALL[0][:, :0].clone().requires_grad_(), *SMALL[1:])


if __name__ == "__main__":
    main()
