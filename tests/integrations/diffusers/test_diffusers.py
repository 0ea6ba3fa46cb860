"""Transformers of diffusers compute by our backend what they compute by torch's; the rest is refused by name."""

import inspect
import sys
from collections.abc import Iterator
from typing import Any, Final

import pytest
import torch
from diffusers.models.attention_dispatch import (
    AttentionBackendName,
    _AttentionBackendRegistry,
    attention_backend,
    dispatch_attention_fn,
)

from autotune.errors import InputMismatchError, MissingDependencyError, NotDifferentiableError, UnsupportedCallError
from autotune.integrations.diffusers import NAME, register
from autotune.integrations.diffusers.dispatched import dispatched_attention
from tests.contract.interpreting import interpret
from tests.integrations.diffusers.tiny_transformers import MODELS, model_failure

COMPUTED: Final = {"query", "key", "value", "attn_mask", "is_causal", "scale", "enable_gqa", "return_lse"}
REFUSED: Final = {"dropout_p", "_parallel_config", "window_size", "a_keyword_of_tomorrow"}


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    register()
    active = _AttentionBackendRegistry._active_backend
    yield
    _AttentionBackendRegistry.set_active_backend(active)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_model_computes_what_it_computes_by_torch(name: str) -> None:
    assert interpret(model_failure, name) is None


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_on_a_gpu_computes_what_it_computes_by_torch(name: str, dtype: torch.dtype) -> None:
    assert model_failure(name, "cuda", dtype) is None


def causal_failure() -> float:
    """Return how far causal attention of grouped heads, dispatched in a context, is from torch's."""
    register()
    q, k, v = torch.randn(1, 7, 4, 16), torch.randn(1, 7, 2, 16), torch.randn(1, 7, 2, 16)
    found = {}
    for name in (NAME, "native"):
        with attention_backend(name):
            found[name] = dispatch_attention_fn(q, k, v, is_causal=True, scale=0.3, enable_gqa=True)
    return float((found[NAME] - found["native"]).abs().max())


def test_causal_attention_of_grouped_heads_is_that_of_torch() -> None:
    assert interpret(causal_failure) < 1e-5


def lse_failure() -> float:
    """Return how far the log-sum-exp is from that of the scores."""
    register()
    q, k, v = (torch.randn(2, 5, 2, 16) for _ in range(3))
    with attention_backend(NAME):
        _, lse = dispatch_attention_fn(q, k, v, attention_kwargs={"return_lse": True})
    scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double()) / 4
    return float((lse - scores.logsumexp(-1)).abs().max())


def test_the_log_sum_exp_is_that_of_the_scores() -> None:
    assert interpret(lse_failure) < 1e-5


def mask_failure(sizes: tuple[int, ...], kind: str) -> float:
    """Return how far attention under a mask is from torch's."""
    register()
    torch.manual_seed(5)
    q, k, v = torch.randn(2, 5, 2, 16), torch.randn(2, 7, 2, 16), torch.randn(2, 7, 2, 16)
    mask = torch.rand(sizes) < 0.7 if kind == "bool" else torch.randn(sizes)
    if kind == "bool":
        mask[..., 0] = True  # torch has no output where no key is seen
    found = {}
    for name in (NAME, "native"):
        with attention_backend(name):
            found[name] = dispatch_attention_fn(q, k, v, attn_mask=mask)
    return float((found[NAME] - found["native"]).abs().max())


@pytest.mark.parametrize("kind", ["bool", "added"])
@pytest.mark.parametrize("sizes", [(2, 7), (5, 7), (2, 1, 1, 7), (1, 1, 5, 7), (2, 2, 5, 7)], ids=str)
def test_attention_under_a_mask_is_that_of_torch(sizes: tuple[int, ...], kind: str) -> None:
    assert interpret(mask_failure, sizes, kind) < 1e-5


@pytest.mark.parametrize("sizes", [(4,), (1, 4, 4), (3, 4)])
def test_masks_are_refused_by_name(sizes: tuple[int, ...]) -> None:
    with attention_backend(NAME), pytest.raises(UnsupportedCallError, match=r"attn_mask is .* and not computed"):
        dispatch_attention_fn(*tensors(), attn_mask=torch.zeros(sizes))


def test_registering_again_adds_nothing() -> None:
    before = list(AttentionBackendName)
    register()
    assert list(AttentionBackendName) == before
    assert [each.value for each in before].count(NAME) == 1
    assert AttentionBackendName("autotune") is AttentionBackendName["AUTOTUNE"]


def test_an_absent_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "autotune.integrations.diffusers.backend_names")
    monkeypatch.setitem(sys.modules, "diffusers.models.attention_dispatch", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'attention-autotune\[diffusers\]'"):
        register()


def tensors(keys: int = 4, kv_heads: int = 2) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.zeros(1, 4, 2, 16), torch.zeros(1, keys, kv_heads, 16), torch.zeros(1, keys, kv_heads, 16)


def test_every_argument_of_the_dispatcher_is_known() -> None:
    names = set(inspect.signature(dispatch_attention_fn).parameters)
    passed = names - {"attention_kwargs", "backend", "parallel_config"} | {"_parallel_config"}
    assert passed <= COMPUTED | REFUSED
    assert set(inspect.signature(dispatched_attention).parameters) >= COMPUTED


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"attn_mask": torch.zeros(1, 4, 4)}, r"attn_mask is \(1, 4, 4\) torch.float32, and not computed"),
        ({"attn_mask": torch.ones(3, 4, dtype=torch.bool)}, r"attn_mask is \(3, 4\) torch.bool, and not computed"),
        ({"dropout_p": 0.1}, r"dropout_p=0.1"),
        ({"parallel_config": object()}, r"parallel_config"),
        ({"attention_kwargs": {"window_size": (3, 0)}}, r"attention_kwargs has window_size"),
        ({"attention_kwargs": {"a_keyword_of_tomorrow": 1}}, r"attention_kwargs has a_keyword_of_tomorrow"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(given: dict[str, Any], message: str) -> None:
    with attention_backend(NAME), pytest.raises(UnsupportedCallError, match=f"^{message}"):
        dispatch_attention_fn(*tensors(), **given)


def test_causal_attention_over_other_keys_is_refused() -> None:
    with (
        attention_backend(NAME),
        pytest.raises(UnsupportedCallError, match=r"^is_causal=True with 4 queries and 9 keys"),
    ):
        dispatch_attention_fn(*tensors(keys=9), is_causal=True)


def test_grouped_heads_are_asked_for() -> None:
    with attention_backend(NAME), pytest.raises(InputMismatchError, match="expected as many, or enable_gqa=True"):
        dispatch_attention_fn(*tensors(kv_heads=1))


def test_gradients_are_refused() -> None:
    q, k, v = tensors()
    with attention_backend(NAME), pytest.raises(NotDifferentiableError):
        dispatch_attention_fn(q.requires_grad_(), k, v)
