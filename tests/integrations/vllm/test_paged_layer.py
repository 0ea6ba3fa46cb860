"""A layer's output over vLLM's cache is attention in fp64: in Triton's interpreter, and on a GPU at real sizes."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final

import pytest
import torch

from autotune.errors import InputMismatchError, UnsupportedCallError, UsageError
from autotune.integrations.vllm.limits import quantized_type, reason_against
from autotune.integrations.vllm.paged_batch import REFUSED, batch_of, mean_context_of
from autotune.integrations.vllm.paged_layer import PagedLayer
from tests.contract.interpreting import interpret
from tests.integrations.vllm.recorded_batches import (
    BATCHES,
    FEATURES,
    LARGE,
    ORDERS,
    LayerCase,
    common_metadata,
    failure,
    graph_failure,
)

HALF: Final = torch.float16
SMALL_FEATURES: Final = sorted(set(FEATURES) - {"window128"})


def interpreted_cases() -> Iterator[LayerCase]:
    yield from (LayerCase(batch=batch) for batch in BATCHES)
    yield from (LayerCase(batch="mixed", feature=feature) for feature in SMALL_FEATURES)
    yield from (LayerCase(batch="decode", feature=feature) for feature in SMALL_FEATURES)
    yield from (LayerCase(batch=batch, order=order) for batch in ("decode", "mixed") for order in ORDERS)
    yield from (LayerCase(batch=batch, padding=3) for batch in ("decode", "mixed"))
    yield LayerCase(batch="mixed", heads=(5, 1), width=24, dtype=HALF, block_size=32)
    yield LayerCase(batch="decode", heads=(4, 4), width=32, dtype=HALF)
    yield from byte_cases("decode")
    yield from byte_cases("mixed")


def byte_cases(batch: str) -> Iterator[LayerCase]:
    yield from (LayerCase(batch=batch, dtype=HALF, cache=cache) for cache in ("fp8", "fp8_e4m3", "fp8_e5m2"))
    yield LayerCase(batch=batch, dtype=HALF, cache="fp8", scales=((0.5, 0.75), (0.25, 1.5)), order="LBHNC")
    yield LayerCase(batch=batch, dtype=HALF, cache="fp8", feature="sinks in windows")


def gpu_cases() -> Iterator[LayerCase]:
    """Return the pairs of all batches with heads, dtypes of queries and caches, and features of layers."""
    heads = (((32, 8), 128), ((16, 4), 128), ((8, 2), 128), ((4, 4), 256), ((5, 1), 64))
    kinds = [(torch.bfloat16, "auto"), (HALF, "auto"), (torch.bfloat16, "fp8")]
    features = ("plain", "window128", "softcap", "sinks")
    for batch in LARGE:
        for number, (shape, width) in enumerate(heads):
            for place, (dtype, cache) in enumerate(kinds):
                for feature in features[(number + place) % 2 :: 2]:  # each with each, in two batches
                    order = list(ORDERS)[(number + place) % len(ORDERS)]
                    yield LayerCase(
                        batch=batch, heads=shape, width=width, dtype=dtype, cache=cache, order=order, feature=feature
                    )


INTERPRETED: Final = [  # every sixth is quick
    pytest.param(case, marks=[pytest.mark.slow] if number % 6 else [])
    for number, case in enumerate(dict.fromkeys(interpreted_cases()))
]


@pytest.mark.parametrize("case", INTERPRETED, ids=str)
def test_an_interpreted_layer_is_attention(case: LayerCase) -> None:
    assert interpret(failure, case, "cpu") is None


@pytest.mark.gpu
@pytest.mark.parametrize("case", list(gpu_cases()), ids=str)
def test_a_layer_on_a_gpu_is_attention(case: LayerCase) -> None:
    assert failure(case, "cuda") is None


@pytest.mark.gpu
@pytest.mark.parametrize("batch", ["medium decode", "mixed medium"])
@pytest.mark.parametrize("feature", ["plain", "sinks in windows"])
def test_a_graph_of_a_layer_is_replayed_over_other_lengths(batch: str, feature: str) -> None:
    case = LayerCase(batch=batch, heads=(32, 8), width=128, dtype=torch.bfloat16, feature=feature, padding=2)
    assert graph_failure(case) is None


def test_there_are_cases_enough_for_a_gpu() -> None:
    assert len({str(case) for case in gpu_cases()}) == len(list(gpu_cases())) >= 200


def test_one_query_a_request_is_a_decode_and_no_other_batch_is() -> None:
    sizes = {"num_reqs": 2, "num_actual_tokens": 2, "max_query_len": 1}
    assert batch_of(metadata(**sizes), None).is_decode
    assert not batch_of(metadata(**sizes | {"num_actual_tokens": 4, "max_query_len": 2}), None).is_decode
    assert not batch_of(metadata(**sizes | {"num_actual_tokens": 3}), None).is_decode  # one row is nobody's
    assert not batch_of(metadata(**sizes | {"max_query_len": 2}), None).is_decode  # both rows may be of one request


def metadata(**replaced: Any) -> Any:
    given = {"num_reqs": 2, "num_actual_tokens": 2, "max_query_len": 1, "query_start_loc": torch.arange(5).int()}
    rows = torch.zeros(4, 3, dtype=torch.int32)
    return common_metadata(**given | {"seq_lens": rows[:, 0], "block_table_tensor": rows} | replaced)


def test_a_batch_is_views_of_the_buffers() -> None:
    given = metadata()
    batch = batch_of(given, 100)
    assert (batch.offsets.shape, batch.lengths.shape, batch.page_table.shape) == ((3,), (2,), (2, 3))
    assert batch.page_table.data_ptr() == given.block_table_tensor.data_ptr()
    assert batch.mean_context == 100


@pytest.mark.parametrize("name", REFUSED)
def test_a_batch_with_what_is_not_computed_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedCallError, match=f"^{name} is given"):
        batch_of(metadata(**{name: {}}), None)


@pytest.mark.parametrize(("causal", "shown"), [(False, "False"), (torch.ones(2, dtype=torch.bool), "a tensor")])
def test_a_batch_that_is_not_causal_is_refused(causal: object, shown: str) -> None:
    with pytest.raises(UnsupportedCallError, match=f"^causal={shown} is not computed"):
        batch_of(metadata(causal=causal), None)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"attn_type": "encoder_only"}, "attn_type='encoder_only'"),
        ({"attn_type": "encoder_decoder"}, "attn_type='encoder_decoder'"),
        ({"use_alibi_sqrt": True}, "use_alibi_sqrt=True"),
        ({"chunk_lookback": 4}, "chunk_lookback=4"),
        ({"kv_cache_dtype": "nvfp4"}, "kv_cache_dtype='nvfp4' is not computed; expected one of auto, float16"),
        ({"kv_cache_dtype": "int8_per_token_head"}, "kv_cache_dtype='int8_per_token_head'"),
    ],
)
def test_a_layer_that_is_not_computed_is_refused_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedCallError, match=f"^{message}"):
        PagedLayer(4, 16, 0.25, 2, **given)


@pytest.mark.parametrize("name", ["output_scale", "output_block_scale"])
def test_a_quantized_output_is_refused(name: str) -> None:
    out = torch.zeros(2, 4, 16)
    with pytest.raises(UnsupportedCallError, match=r"^output_scale is given"):
        PagedLayer(4, 16, 0.25, 2).forward(
            None, out, None, None, out, batch_of(metadata(), None), out, **{name: torch.ones(1)}
        )


def test_a_run_that_profiles_memory_gets_zeros() -> None:
    out = torch.full((2, 4, 16), torch.nan)
    assert PagedLayer(4, 16, 0.25, 2).forward(None, out, None, None, torch.zeros(0), None, out) is out
    assert not out.any()


def test_scales_of_other_sizes_are_refused() -> None:
    layer = PagedLayer(4, 16, 0.25, 2, kv_cache_dtype="fp8")
    cache = torch.zeros(1, 2, 16, 32, dtype=torch.uint8)
    owner = SimpleNamespace(_k_scale=torch.ones(3), _v_scale=torch.ones(1))
    with pytest.raises(InputMismatchError, match=r"_k_scale is \(3,\); expected one number, or one a KV head: \[2\]"):
        layer.do_kv_cache_update(owner, torch.zeros(0, 2, 16), torch.zeros(0, 2, 16), cache, torch.zeros(0).long())


@pytest.mark.parametrize(
    ("dtype", "cache", "capability", "reason"),
    [
        (torch.bfloat16, "auto", (8, 0), None),
        (torch.bfloat16, None, (8, 0), None),
        (torch.bfloat16, "bfloat16", (9, 0), None),
        (torch.bfloat16, "float16", (9, 0), "is not the model's dtype, torch.bfloat16"),
        (torch.float32, "fp8_e5m2", (9, 0), "under float16 and bfloat16 alone"),
        (torch.float16, "fp8", (8, 6), "needs compute capability 8.9"),
        (torch.float16, "fp8_e5m2", (8, 6), None),
        (torch.float16, "fp8", (9, 0), None),
    ],
)
def test_caches_that_are_not_read_have_a_reason(
    dtype: torch.dtype, cache: str | None, capability: tuple[int, int], reason: str | None
) -> None:
    found = reason_against(dtype, cache, capability)
    assert found is None if reason is None else reason in str(found)


def test_bytes_are_of_the_type_that_their_name_says() -> None:
    found = {name: quantized_type(name) for name in ("auto", "fp8", "fp8_e5m2")}
    assert found == {"auto": None, "fp8": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}


@pytest.mark.parametrize("value", [0, -1, 1.5, "1", True])
def test_a_mean_context_is_an_integer_from_1(value: object) -> None:
    assert mean_context_of({"autotune_mean_context": 2000}) == 2000
    assert mean_context_of({}) is None
    with pytest.raises(UsageError, match=r"^autotune_mean_context="):
        mean_context_of({"autotune_mean_context": value})
