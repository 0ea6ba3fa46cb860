"""Rules of the ops: results without values, gradients, what a call may not be."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad

import autotune
from autotune.errors import InputMismatchError, InvalidShapeError, NotDifferentiableError, UsageError
from tests.torch_ops.calls import (
    FUNCTIONS,
    HALF,
    OPS,
    WIDTH,
    arguments_of,
    dense,
    each_function,
    new_tokens,
    op_of,
)

pytestmark = pytest.mark.usefixtures("serving")
LSE_SIZES = {"attention": (2, 4, 9), "attention_varlen": (8, 4), "paged_decode": (2, 4), "paged_prefill": (8, 4)}


def moved(tensors: dict[str, Any], device: str) -> dict[str, Any]:
    return {name: torch.empty(each.shape, dtype=each.dtype, device=device) for name, each in tensors.items()}


@each_function
@pytest.mark.parametrize("device", ["meta", "cuda"])
def test_without_values_results_have_their_sizes(name: str, device: str) -> None:
    """On the meta device, and of fake tensors on a GPU that is not there."""
    function, tensors = FUNCTIONS[name]
    with FakeTensorMode() if device == "cuda" else torch.inference_mode(False):
        given = moved(tensors, device)
        out, lse = function(**given, return_lse=True)
        assert (out.shape, out.dtype, out.device.type) == (tensors["q"].shape, HALF, device)
        assert (lse.shape, lse.dtype, lse.device.type) == (LSE_SIZES[name], torch.float32, device)
        assert out.is_contiguous()
        assert function(**given).shape == out.shape
        assert function(**given, out=out) is out
        assert [each.shape for each in function(**given, out=out, return_lse=True)] == [out.shape, lse.shape]


def test_values_and_keys_may_differ_in_width() -> None:
    q, k, _ = moved(FUNCTIONS["attention"][1], "meta").values()
    assert autotune.attention(q, k, k[..., :8]).shape == (2, 9, 4, 8)
    given = moved(FUNCTIONS["paged_decode"][1], "meta")
    narrow = given["v_cache"][..., :8]
    assert autotune.paged_decode(**given | {"v_cache": narrow}).shape == (2, 4, 8)
    queries = given["q"][:, None].expand(2, 3, 4, WIDTH)
    assert autotune.paged_decode(**given | {"q": queries, "v_cache": narrow}).shape == (2, 3, 4, 8)


def test_appending_without_values_writes_nothing() -> None:
    autotune.append_kv(**moved(new_tokens(5), "meta"))


BAD: dict[str, tuple[str, Callable[[dict[str, Any]], dict[str, Any]], type[Exception], str]] = {
    "rank": ("attention", lambda t: t | {"q": t["q"][0]}, InputMismatchError, "q, k and v have 3, 4 and 4 dimensions"),
    "sizes": ("attention", lambda t: t | {"v": t["v"][:, :8]}, InputMismatchError, r"v is \(2, 8, 2, 16\) float16"),
    "dtype": ("attention", lambda t: t | {"k": t["k"].float()}, InputMismatchError, r"k is .* float32"),
    "heads": ("attention", lambda t: t | {"q": t["q"][:, :, :3]}, InvalidShapeError, "heads=3 is not a multiple"),
    "scale": ("attention", lambda t: t | {"scale": 0.0}, InputMismatchError, "scale=0.0 is not allowed"),
    "list": ("attention", lambda t: t | {"k": [1.0]}, InputMismatchError, "k is a list; expected a tensor"),
    "out": (
        "attention",
        lambda t: t | {"out": t["k"]},
        InputMismatchError,
        r"out is \(2, 9, 2, 16\) float16; expected",
    ),
    "packed rank": (
        "attention_varlen",
        lambda t: t | {"q": t["q"][None]},
        InputMismatchError,
        r"have 4, 3, 3, 1 and 1 dimensions; expected packed \[T, H, D\]",
    ),
    "packed type": ("attention_varlen", lambda t: t | {"v": t["v"].float()}, InputMismatchError, "v is .* float32"),
    "longest": (
        "attention_varlen",
        lambda t: t | {"max_seqlen_q": 3},
        InputMismatchError,
        "max_seqlen_q=3 is not allowed; expected 4 at least",
    ),
    "caches": ("paged_decode", lambda t: t | {"k_cache": t["q"]}, InputMismatchError, "have 3, 3, 4 and 2 dimensions"),
    "queries": (
        "paged_decode",
        lambda t: t | {"q": t["q"][:, None].expand(2, 9, 4, WIDTH)},
        InvalidShapeError,
        "seq_q=9 is not supported by paged_decode",
    ),
    "layout": ("paged_prefill", lambda t: t | {"layout": "DNH"}, InvalidShapeError, "layout='DNH' is not allowed"),
    "strided out": (
        "paged_prefill",
        lambda t: t | {"out": t["q"].mT.contiguous().mT},
        InputMismatchError,
        r"out has the strides \(64, 1, 4\); expected a contiguous tensor",
    ),
}


@pytest.mark.parametrize(("name", "change", "error", "message"), BAD.values(), ids=BAD)
def test_what_sizes_alone_show_is_refused(
    name: str, change: Callable[[dict[str, Any]], dict[str, Any]], error: type[Exception], message: str
) -> None:
    function, tensors = FUNCTIONS[name]
    with pytest.raises(error, match=message):
        function(**change(moved(tensors, "meta")))


@pytest.mark.parametrize("name", OPS)
def test_an_op_refuses_gradients(name: str) -> None:
    arguments = arguments_of(name)
    names = [argument.name for argument in op_of(name)._schema.arguments]
    for index, value in enumerate(arguments):
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            watched = [*arguments[:index], value.clone().requires_grad_(), *arguments[index + 1 :]]
            with pytest.raises(NotDifferentiableError, match=f"{names[index]} requires gradients, and there is no"):
                op_of(name)(*watched)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch's own rules
def test_tangents_are_refused() -> None:
    q, k, v = dense(9)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, torch.ones_like(q))  # type: ignore[no-untyped-call]
        with pytest.raises(NotDifferentiableError, match="q "):
            autotune.attention(dual, k, v)


def test_derivatives_of_functorch_are_refused_by_an_op() -> None:
    """Below the gradients of a transform there are plain tensors, of which the kernel alone would take notice."""
    q, k, v = dense(9)

    def attend(q: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = op_of("attention")(q, k, v, True, *[None] * 6, False, *[None] * 3)
        return found

    with pytest.raises(NotDifferentiableError, match="q requires gradients"):
        torch.func.grad(lambda q: attend(q).sum())(q)
    with pytest.raises(NotDifferentiableError, match="q has a tangent"):
        torch.func.jvp(attend, (q,), (q,))


@pytest.mark.parametrize("name", ["attention_out", "paged_decode", "paged_prefill", "append_kv"])
def test_what_cannot_be_mapped_says_so(name: str) -> None:
    arguments = arguments_of(name)
    places = [0 if isinstance(each, torch.Tensor) else None for each in arguments]
    stacked = [torch.stack([each, each]) if isinstance(each, torch.Tensor) else each for each in arguments]
    with pytest.raises(UsageError, match=f"autotune::{name} has no rule for torch.vmap; give it all problems as one"):
        torch.vmap(op_of(name), tuple(places))(*stacked)


@each_function
@pytest.mark.parametrize("what", ["narrow", "shared", "elsewhere"])
def test_a_buffer_that_does_not_fit_is_refused(name: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triton.knobs.runtime.interpret", True)  # nothing is launched
    function, tensors = FUNCTIONS[name]
    q = tensors["q"]
    out, message = {
        "narrow": (torch.empty_like(q[..., :8]), rf"out is \({q.shape[0]}, .*, 8\) float16; expected .*, 16\) float16"),
        "shared": (q, "out shares memory with q; expected a buffer of its own"),
        "elsewhere": (torch.empty_like(q, device="meta"), "q is on cpu, out on meta; expected one device"),
    }[what]
    with pytest.raises(InputMismatchError, match=message):
        function(**tensors, out=out)


@pytest.mark.slow
def test_eager_calls_load_no_ops_and_sizes_need_no_triton() -> None:
    eager = "import torch, autotune, sys; autotune.attention(*[torch.zeros(1, 0, 2, 16)] * 3)"
    meta = (
        "sys.modules['triton'] = None; print(autotune.attention(*[torch.empty(1, 9, 2, 16, device='meta')] * 3).shape)"
    )
    code = f"{eager}; print('autotune.torch_ops' in sys.modules, 'torch._dynamo' in sys.modules); {meta}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["False False", "torch.Size([1, 9, 2, 16])"]
