"""Arguments on their way from the functions, and through their ops, to a kernel."""

from collections.abc import Callable
from typing import Any, assert_type

import pytest
import torch

import autotune
from autotune import dispatch, torch_ops
from autotune.shape import Shape
from tests.torch_ops.calls import (
    FORMS,
    FUNCTIONS,
    HALF,
    LONGEST,
    OPS,
    arguments_of,
    dense,
    each_function,
    new_tokens,
    op_of,
    packed,
    paged,
)

pytestmark = pytest.mark.usefixtures("serving")


APPENDED = ("k", "v", "k_cache", "v_cache", "slots")


class Answer:
    """A kernel that answers with its queries, and notes what it was given and the shapes it was bound to."""

    def __init__(self) -> None:
        self.given: list[dict[str, Any]] = []
        self.tensors: list[tuple[torch.Tensor, ...]] = []
        self.shapes: list[Shape] = []

    def bind(self, config: object, shape: Shape) -> Callable[..., object]:
        self.shapes.append(shape)

        def call(*tensors: torch.Tensor, return_lse: bool, **options: Any) -> object:
            self.given.append(options)
            self.tensors.append(tensors)
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
    for op in ("ATTENTION", "ATTENTION_VARLEN", "PAGED_DECODE", "PAGED_PREFILL"):
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


FEATURES: dict[str, Any] = {"softcap": 30.0, "scale": 0.3}
PER_HEAD: dict[str, Any] = {name: torch.zeros(4) for name in ("sinks", "alibi_slopes")}
SCALES: dict[str, Any] = {name: torch.ones(2) for name in ("k_scale", "v_scale")}
OPTIONS: dict[str, dict[str, Any]] = {  # that a kernel gets
    "attention": FEATURES,
    "attention_varlen": {**FEATURES, "sinks": torch.zeros(4), "check": True},
    "paged_decode": {**PER_HEAD, **SCALES, **FEATURES, "check": True},
    "paged_prefill": {**PER_HEAD, **SCALES, **FEATURES, "check": True},
}
# That ops alone must be given; ``tests.torch_ops.test_padded`` and ``test_masked`` have them.
ABSENT: dict[str, dict[str, Any]] = {
    "attention": {
        **dict.fromkeys(("q_lens", "kv_lens", "kv_starts", "attn_mask", "sinks", "kv_ends")),
        "check": False,
    },
    "attention_varlen": {"seqused_q": None, "seqused_k": None, **LONGEST},
}
PAGED_FIELDS: dict[str, Any] = {"layout": "HND", "window": 5, "mean_context": 13}
FIELDS: dict[str, dict[str, Any]] = {  # that are its shape's
    "attention": {"causal": True, "window": 5},
    "attention_varlen": {"causal": True, "window": 5},
    "paged_decode": PAGED_FIELDS,
    "paged_prefill": {**PAGED_FIELDS, "causal": False},
}


@each_function
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("through", ["op", "function"])
def test_arguments_keep_their_names(name: str, form: str, through: str, answer: Answer) -> None:
    """An op and its rules pass them by position; here they are given by name and in another order."""
    function, tensors = FUNCTIONS[name]
    tensors = {each: tensor.transpose(1, 2) if "cache" in each else tensor for each, tensor in tensors.items()}
    options, fields = OPTIONS[name], FIELDS[name]
    buffer = {"out": torch.empty_like(tensors["q"])} if "_out" in form else {}
    mixed = dict(reversed((tensors | options | fields | buffer).items()))
    if through == "op":
        op_of(name + form)(**mixed, **ABSENT.get(name, {}))
    else:
        with torch.autocast("cpu", dtype=HALF):
            function(**mixed, return_lse=form.endswith("lse"))
    (given,) = answer.given
    assert given.keys() == options.keys() | buffer.keys()
    assert [each for each in given if not is_same(given[each], (options | buffer)[each])] == []
    assert all(map(is_same, answer.tensors[0], tensors.values()))
    assert {field: answer.shapes[0].as_dict()[field] for field in fields} == fields


@pytest.mark.parametrize("through", ["op", "function"])
def test_arguments_of_append_keep_their_names(through: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    for place in ("append.append", "call.check_append"):
        note = lambda *tensors, **options: seen.append(dict(zip(APPENDED, tensors, strict=True)) | options)  # noqa: E731
        monkeypatch.setattr(f"autotune.kernels.paged_cache.{place}", note)
    monkeypatch.setattr("triton.knobs.runtime.interpret", True)  # or the CPU is refused
    scales = {name: torch.ones(2) for name in ("k_scale", "v_scale")}
    given = new_tokens(5) | scales | {"layout": "HND", "check": False}
    mixed = dict(reversed(given.items()))
    with torch.autocast("cpu", dtype=HALF, enabled=through == "function"):
        (op_of("append_kv") if through == "op" else autotune.append_kv)(**mixed)
    assert len(seen) == 2
    for call in seen:
        assert call.keys() == given.keys() - {"check"}
        assert [name for name in call if not is_same(call[name], given[name])] == []


def is_same(one: object, other: object) -> bool:
    return one is other if isinstance(other, torch.Tensor) else one == other


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", OPS)
def test_an_op_dispatches_once(name: str, device: str, answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over plain tensors, in every mode of autograd; a view that is negated when it is read is dispatched again."""
    again = []

    def note(keys: Any, *values: Any) -> Any:
        again.append(keys)
        return type(op_of(name)).redispatch(op_of(name), keys, *values)

    monkeypatch.setattr(op_of(name), "redispatch", note)
    monkeypatch.setattr("autotune.kernels.paged_cache.append.append", lambda *tensors, **options: None)
    monkeypatch.setattr("triton.knobs.runtime.interpret", True)
    given = [each.to(device) if isinstance(each, torch.Tensor) else each for each in arguments_of(name)]
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with mode():
            op_of(name)(*given)
    assert not again
    named = {each.name: value for each, value in zip(op_of(name)._schema.arguments, given, strict=True)}
    read = "k" if name == "append_kv" else "q"
    op_of(name)(**named | {read: torch._neg_view(named[read])})
    assert len(again) == 1


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
