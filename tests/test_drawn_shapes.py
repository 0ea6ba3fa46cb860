"""Shapes drawn by a seed: the same every time, valid, and spread as they are said to be."""

from typing import Any

import pytest

from autotune.device import NVIDIA_H200
from autotune.errors import UsageError
from autotune.models import MODELS, get_model
from autotune.operation import Operation
from autotune.registry import get_operation, implementations_of
from autotune.shape import AttentionShape, PagedShape
from autotune.tuning import draw_shapes
from autotune.tuning.drawn_shapes import MAX_FLOPS, MAX_TOKENS

DENSE, DECODE = (get_operation(name) for name in ("flash_attention", "paged_decode"))


@pytest.mark.parametrize("operation", [DENSE, DECODE], ids=lambda each: each.name)
def test_a_seed_draws_the_same_distinct_shapes_and_more_of_them_begin_alike(operation: Operation[Any]) -> None:
    drawn = draw_shapes(operation, 60, 3, memory_mib=81559)
    assert len(set(drawn)) == 60
    assert draw_shapes(operation, 20, 3, memory_mib=81559) == drawn[:20]
    assert draw_shapes(operation, 60, 4, memory_mib=81559) != drawn


@pytest.mark.parametrize("operation", [DENSE, DECODE], ids=lambda each: each.name)
def test_every_drawn_shape_can_be_tuned_and_fits(operation: Operation[Any]) -> None:
    known = implementations_of(operation.name)
    for shape in draw_shapes(operation, 60, 0, memory_mib=81559):
        assert operation.unsupported(shape) is None
        assert any(each.supports(shape, NVIDIA_H200) is None for each in known)
        cost = operation.cost(shape)
        assert cost.flops <= MAX_FLOPS
        assert cost.bytes <= 81559 * 2**20 / 16


def test_prompts_have_the_heads_of_models_odd_lengths_and_both_masks() -> None:
    drawn = [shape for shape in draw_shapes(DENSE, 200, 0, memory_mib=81559) if isinstance(shape, AttentionShape)]
    heads = {(each.heads, each.kv_heads, each.head_dim, each.head_dim_v) for each in MODELS.values()}
    assert {(each.heads, each.kv_heads, each.head_dim, each.head_dim_v) for each in drawn} <= heads
    assert len({each.heads for each in drawn}) > 10
    assert not any(each.seq_q & (each.seq_q - 1) == 0 for each in drawn)
    assert all(each.batch * each.seq_q <= MAX_TOKENS and 1 <= each.batch <= 32 for each in drawn)
    assert min(each.seq_q for each in drawn) < 300
    assert max(each.seq_q for each in drawn) > 8000
    assert 60 < sum(each.causal for each in drawn) < 140


def test_decodes_are_of_models_with_a_cache_with_even_and_uneven_lengths() -> None:
    drawn = [shape for shape in draw_shapes(DECODE, 200, 0, memory_mib=81559) if isinstance(shape, PagedShape)]
    assert {each.page_size for each in drawn} == {16, 64, 256}
    assert not any(each.max_context & (each.max_context - 1) == 0 for each in drawn)
    uneven = [each for each in drawn if each.mean_context != each.max_context]
    assert 40 < len(uneven) < 160
    assert all(each.batch > 1 for each in uneven)
    latent = {(each.heads, each.head_dim) for each in MODELS.values() if each.latent}
    assert not {(each.heads, each.head_dim) for each in drawn} & latent


@pytest.mark.parametrize("operation", [DENSE, DECODE], ids=lambda each: each.name)
def test_layers_are_those_of_the_model(operation: Operation[Any]) -> None:
    def layers(name: str) -> set[tuple[object, ...]]:
        drawn = draw_shapes(operation, 60, 0, memory_mib=81559, models=[get_model(name)])
        masks = [(each.as_dict().get("causal", True), each.as_dict()["window"], each) for each in drawn]
        assert all(window is None for is_causal, window, _ in masks if not is_causal)
        return {(window, each.as_dict()["softcap"]) for is_causal, window, each in masks if is_causal}

    assert layers("gemma-2-9b") == {(4096, True), (None, True)}
    assert layers("gemma-3-4b") == {(1024, False), (None, False)}
    hides_nothing = set() if operation is DECODE else {(None, False)}  # of fewer tokens
    assert layers("phi-3-mini-4k") == {(2047, False)} | hides_nothing
    assert layers("grok-1") == {(None, True)}
    assert layers("qwen2.5-7b") == {(None, False)}


@pytest.mark.parametrize("count", [0, -3])
def test_a_count_of_none_is_refused_by_its_name(count: int) -> None:
    with pytest.raises(UsageError, match=rf"count={count} is not allowed; expected 1 or more"):
        draw_shapes(DENSE, count, 0, memory_mib=81559)


def test_the_models_that_are_named_and_the_memory_there_is() -> None:
    drawn = draw_shapes(DENSE, 10, 0, memory_mib=24000, models=[get_model("qwen2.5-7b")])
    assert {(shape.as_dict()["heads"], shape.as_dict()["kv_heads"]) for shape in drawn} == {(28, 4)}
    assert max(DENSE.cost(shape).bytes for shape in drawn) <= 24000 * 2**20 / 16
    with pytest.raises(UsageError, match="no keys and values are cached by bert-base"):
        draw_shapes(DECODE, 1, 0, memory_mib=81559, models=[get_model("bert-base")])
    with pytest.raises(UsageError, match=r"only \d+ of 40 shapes fit 1 MiB"):
        draw_shapes(DENSE, 40, 0, memory_mib=1)
    with pytest.raises(UsageError, match="operation='paged_prefill': no shapes are drawn of it; name sizes"):
        draw_shapes(get_operation("paged_prefill"), 1, 0, memory_mib=81559)
