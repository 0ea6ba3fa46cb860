"""Rules of the ops: results without values, gradients, what a call may not be; and calls that need no op."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, assert_type

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad

import autotune
from autotune import dispatch, torch_ops
from autotune.errors import InputMismatchError, InvalidShapeError, NotDifferentiableError, UsageError
from tests.torch_ops.calls import HALF, OPS, WIDTH, arguments_of, dense, new_tokens, op_of, packed, paged, untuned

FUNCTIONS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "attention": (autotune.attention, dict(zip("qkv", dense(9), strict=True))),
    "paged_decode": (autotune.paged_decode, paged((33, 20))),
    "paged_prefill": (autotune.paged_prefill, packed((3, 5), (33, 20))),
}
LSE_SIZES = {"attention": (2, 4, 9), "paged_decode": (2, 4), "paged_prefill": (8, 4)}
each_function = pytest.mark.parametrize("name", FUNCTIONS)


@pytest.fixture(autouse=True)
def serving() -> Iterator[None]:
    with untuned():
        yield


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


@pytest.mark.parametrize("name", ["attention_out", "paged_decode", "paged_prefill", "append_kv"])
def test_what_cannot_be_mapped_says_so(name: str) -> None:
    arguments = arguments_of(name)
    places = [0 if isinstance(each, torch.Tensor) else None for each in arguments]
    stacked = [torch.stack([each, each]) if isinstance(each, torch.Tensor) else each for each in arguments]
    with pytest.raises(UsageError, match=f"autotune::{name} has no rule for torch.vmap; give it all problems as one"):
        torch.vmap(op_of(name), tuple(places))(*stacked)


class Answer:
    """A kernel that answers with zeros, and notes which class of tensors it was given."""

    def __init__(self) -> None:
        self.given: list[dict[str, Any]] = []

    def bind(self, config: object, shape: object) -> Callable[..., object]:
        def call(*tensors: torch.Tensor, return_lse: bool, **options: Any) -> object:
            self.given.append(options)
            out = options.get("out", tensors[0])
            return (out, out) if return_lse else out

        return call


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Answer:
    answer = Answer()
    monkeypatch.setattr(dispatch.kernel, "load_kernel", lambda operation, implementation: answer)
    return answer


@each_function
def test_eager_calls_go_straight_to_the_kernel(name: str, answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    for op in ("ATTENTION", "PAGED_DECODE", "PAGED_PREFILL"):
        monkeypatch.setattr(torch_ops, op, None)
    function, tensors = FUNCTIONS[name]
    out = torch.empty_like(tensors["q"])
    assert function(**tensors) is tensors["q"]
    assert function(**tensors, out=out) is out
    assert "out" not in answer.given[0]
    assert answer.given[1]["out"] is out
    with torch.autocast("cpu", dtype=HALF), pytest.raises(TypeError, match="'NoneType' object is not callable"):
        function(**tensors)


@each_function
def test_a_class_of_tensors_of_its_own_sees_the_op(name: str, answer: Answer) -> None:
    seen = []

    class Watched(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
            seen.append(str(op))
            return args[0]

    function, tensors = FUNCTIONS[name]
    with torch._C._DisableTorchDispatch():
        watched = torch.Tensor._make_subclass(Watched, tensors["q"])
    function(**tensors | {"q": watched})
    assert f"autotune.{name}.default" in seen


def test_a_parameter_is_a_tensor(answer: Answer) -> None:
    q, k, v = dense(9)
    with torch.no_grad():
        assert autotune.attention(torch.nn.Parameter(q), k, v, out=v.new_empty(q.shape)).shape == q.shape


def test_the_type_of_a_result_follows_return_lse(answer: Answer) -> None:
    q, k, v = dense(9)
    decode, prefill = paged((33, 20)), packed((3, 5), (33, 20))
    tensors = [*decode.values()]
    offsets = prefill["cu_seqlens_q"]
    for return_lse in (True, False):  # mypy knows no more than that it is one of these
        assert_type(
            autotune.attention(q, k, v, return_lse=return_lse), torch.Tensor | tuple[torch.Tensor, torch.Tensor]
        )
    assert_type(autotune.attention(q, k, v, causal=True), torch.Tensor)
    assert_type(autotune.attention(q, k, v, return_lse=True, out=q), tuple[torch.Tensor, torch.Tensor])
    q, k, v, table, lengths = tensors
    assert_type(autotune.paged_decode(q, k, v, table, lengths, return_lse=False), torch.Tensor)
    assert_type(autotune.paged_decode(q, k, v, table, lengths, return_lse=True), tuple[torch.Tensor, torch.Tensor])
    q = prefill["q"]
    assert_type(autotune.paged_prefill(q, k, v, table, lengths, offsets, window=4), torch.Tensor)
    pair = autotune.paged_prefill(q, k, v, table, lengths, offsets, return_lse=True)
    assert_type(pair, tuple[torch.Tensor, torch.Tensor])


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
