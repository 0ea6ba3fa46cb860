"""A layer's output over SGLang's pool is attention in fp64; what is not computed is refused by name."""

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final

import pytest
import torch

from autotune.errors import MissingDependencyError, UnsupportedCallError, UsageError
from autotune.integrations.sglang import register, token_pool
from autotune.integrations.sglang.token_pool import TokenPoolAttention
from tests.contract.interpreting import interpret
from tests.integrations.sglang.pool_batches import (
    BATCHES,
    FEATURES,
    LARGE,
    PlainPool,
    PoolCase,
    batch_of_step,
    failure,
    layer_of,
    runner_of,
)

CASE: Final = PoolCase(batch="decode")


def interpreted_cases() -> Iterator[PoolCase]:
    yield from (PoolCase(batch=batch) for batch in BATCHES)
    yield PoolCase(batch="decode", graph=True)
    yield from (PoolCase(batch=batch, feature=feature) for batch in ("decode", "mixed") for feature in FEATURES)
    yield from (PoolCase(batch=batch, page_size=1, dtype=torch.float16) for batch in ("decode", "extend"))
    for batch in BATCHES:
        yield PoolCase(batch=batch, dtype=torch.float16, cache=torch.float8_e4m3fn)


def gpu_cases() -> Iterator[PoolCase]:
    """Return 72 steps at real sizes."""
    for batch in LARGE:
        for heads, width in (((32, 8), 128), ((8, 2), 64), ((5, 1), 128)):
            for page_size in (1, 64):
                for feature in FEATURES:
                    sizes: dict[str, Any] = {"heads": heads, "width": width, "page_size": page_size}
                    graph = batch == "decode" and page_size == 64  # those of a prefill are refused
                    yield PoolCase(batch=batch, dtype=torch.bfloat16, feature=feature, graph=graph, **sizes)


INTERPRETED: Final = [
    pytest.param(case, marks=[pytest.mark.slow] if number % 4 else [])
    for number, case in enumerate(dict.fromkeys(interpreted_cases()))
]


@pytest.mark.parametrize("case", INTERPRETED, ids=str)
def test_an_interpreted_step_is_attention(case: PoolCase) -> None:
    assert interpret(failure, case, "cpu") is None


@pytest.mark.gpu
@pytest.mark.parametrize("case", list(gpu_cases()), ids=str)
def test_a_step_on_a_gpu_is_attention(case: PoolCase) -> None:
    assert failure(case, "cuda") is None


def backend(**replaced: Any) -> TokenPoolAttention:
    table = torch.zeros(4, 64, dtype=torch.int32)
    runner = runner_of(CASE, table, PlainPool(CASE, 32, "cpu"))
    return TokenPoolAttention(SimpleNamespace(**vars(runner) | replaced))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"use_mla_backend": True}, "MLA is not computed"),
        ({"model_config": SimpleNamespace(is_encoder_decoder=True)}, "models of an encoder and a decoder"),
        ({"token_to_kv_pool": SimpleNamespace(swa_layer_nums=3)}, r".*--disable-hybrid-swa-memory"),
    ],
)
def test_a_model_that_is_not_computed_is_refused_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedCallError, match=message):
        backend(**given)


@pytest.mark.parametrize("mode", ["TARGET_VERIFY", "DRAFT_EXTEND_V2", "DLLM_EXTEND", "SPLIT_PREFILL"])
def test_a_mode_that_is_not_computed_is_refused_by_name(mode: str) -> None:
    with pytest.raises(UnsupportedCallError, match=f"forward_mode={mode} is not computed"):
        backend().init_forward_metadata(batch_of_step(mode))


@pytest.mark.parametrize("name", ["spec_info", "encoder_lens"])
def test_speculation_and_encoders_are_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedCallError, match=f"{name} is given"):
        backend().init_forward_metadata(batch_of_step("DECODE", **{name: object()}))


@pytest.mark.parametrize(
    ("layer", "keywords", "message"),
    [
        ({"is_cross_attention": True}, {}, "cross attention is not computed"),
        ({"attn_type": "encoder_only"}, {}, "attn_type='encoder_only'"),
        ({"attn_type": SimpleNamespace(value="decoder_bidirectional")}, {}, "attn_type='decoder_bidirectional'"),
        ({"use_irope": True}, {}, "use_irope=True"),
        ({"xai_temperature_len": 100}, {}, "xai_temperature_len=100"),
        ({"logit_cap": 2.0, "logit_capping_method": "none"}, {}, "logit_capping_method='none'"),
        ({}, {"k_rope": torch.zeros(1)}, "k_rope is given"),
        ({}, {"a_keyword_of_tomorrow": 1}, "a_keyword_of_tomorrow is given"),
    ],
)
def test_a_layer_that_is_not_computed_is_refused_by_name(
    layer: dict[str, Any], keywords: dict[str, Any], message: str
) -> None:
    q = torch.zeros(1, 64)
    with pytest.raises(UnsupportedCallError, match=message):
        backend().forward_decode(q, None, None, layer_of(CASE, **layer), None, **keywords)


@pytest.mark.parametrize("mode", ["EXTEND", "MIXED"])
def test_a_graph_of_a_prefill_is_refused(mode: str) -> None:
    made = backend()
    made.init_cuda_graph_state(2, 2)
    with pytest.raises(UnsupportedCallError, match=f"CUDA graphs of forward_mode={mode}"):
        made.init_forward_metadata_out_graph(batch_of_step(mode))


@pytest.mark.parametrize("hint", [None, 300])
@pytest.mark.parametrize("mode", ["DECODE", "EXTEND"])
def test_kernels_are_picked_by_the_mean_context_of_the_environment(
    mode: str, hint: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[object] = []
    for name in ("paged_decode", "paged_prefill"):
        monkeypatch.setattr(token_pool, name, lambda *tensors, mean_context, **others: given.append(mean_context))
    monkeypatch.setenv("AUTOTUNE_SGLANG_MEAN_CONTEXT", str(hint or ""))
    made = backend()
    rows = {"seq_lens": torch.tensor([1, 9]), "extend_seq_lens": torch.tensor([1, 1])}
    step = batch_of_step(mode, **rows, req_pool_indices=torch.tensor([0, 1]), out_cache_loc=torch.tensor([16, 24]))
    if mode == "DECODE":
        made.init_cuda_graph_state(2, 2)
        made.init_forward_metadata_out_graph(step, in_capture=True)
    else:
        made.init_forward_metadata(step)
    made.forward_extend(torch.zeros(2, 64), None, None, layer_of(CASE), step)
    assert given == [hint]


@pytest.mark.parametrize("value", ["0", "-5", "2.5", "many", "²"])
def test_a_mean_context_is_an_integer_from_1(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_SGLANG_MEAN_CONTEXT", value)
    with pytest.raises(UsageError, match=rf"^AUTOTUNE_SGLANG_MEAN_CONTEXT='{value}' is not allowed; expected an int"):
        backend()


def test_an_idle_step_has_no_batch() -> None:
    made = backend()
    made.init_forward_metadata(batch_of_step("IDLE"))
    assert made.forward_metadata is None


def test_an_absent_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sglang.srt.arg_groups.choices", None)
    with pytest.raises(MissingDependencyError, match=r"sglang 0\.5\.23 is needed.*pip install sglang"):
        register()
