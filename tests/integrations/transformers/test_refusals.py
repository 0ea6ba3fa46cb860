"""Keywords, masks and training that are not computed are refused by name; padding is never ignored."""

import ast
import inspect
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import torch
import transformers

from autotune.errors import (
    AutotuneError,
    InputMismatchError,
    MissingDependencyError,
    NotDifferentiableError,
    UnsupportedCallError,
)
from autotune.integrations.transformers import register
from autotune.integrations.transformers.attention_function import attention_function
from autotune.integrations.transformers.call_options import REFUSED, WITHOUT_EFFECT
from autotune.integrations.transformers.mask_function import mask_function
from tests.integrations.transformers import tiny_models

# Arguments of functions inside transformers, which no model passes.
INTERNAL: Final = {
    *("query_length", "key_length", "softmax_scale", "use_top_left_mask", "target_dtype", "attn_implementation"),
    *("max_seqlen_q", "max_seqlen_k", "supports_mapping", "query_states", "key_states", "value_states", "kwargs"),
}
COMPUTED: Final = set(inspect.signature(attention_function).parameters) - {"options"}
PACKAGE: Final = Path(transformers.__file__).parent


@pytest.fixture(autouse=True)
def registered() -> None:
    register()


def test_an_absent_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'attention-autotune\[transformers\]'"):
        register()


def layer() -> torch.nn.Module:
    module = torch.nn.Identity().eval()
    module.is_causal = False  # type: ignore[assignment]
    return module


def tensors(queries: int = 4, keys: int = 4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.zeros(2, 4, queries, 16), torch.zeros(2, 2, keys, 16), torch.zeros(2, 2, keys, 16)


def causal_mask(queries: int = 4, keys: int = 4, **options: Any) -> torch.Tensor:
    causal = transformers.masking_utils.causal_mask_function
    given = {"mask_function": causal, "q_offset": keys - queries} | options
    mask: torch.Tensor = mask_function(2, queries, keys, **given)
    return mask


def keywords_of_functions() -> set[str]:
    """Return what the attention functions of transformers take, and the keywords that its models may be called with."""
    from transformers import modeling_flash_attention_utils as flash
    from transformers.integrations import eager_paged, flash_attention, flex_attention, sdpa_attention
    from transformers.utils.generic import TransformersKwargs

    functions = (
        *(sdpa_attention.sdpa_attention_forward, flash_attention.flash_attention_forward),
        *(flex_attention.flex_attention_forward, eager_paged.eager_paged_attention_forward),
        *(flash._flash_attention_forward, flash._process_flash_attention_kwargs),
    )
    found = {name for function in functions for name in inspect.signature(function).parameters}
    return found | set(TransformersKwargs.__annotations__) | set(flash.FlashAttentionKwargs.__annotations__)


def keywords_of_models() -> set[str]:
    """Return what models call attention functions with."""
    found = set()
    for path in PACKAGE.glob("models/*/modeling_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "attention_interface":
                found |= {keyword.arg for keyword in node.keywords if keyword.arg}
    return found


def test_every_keyword_of_attention_functions_is_known() -> None:
    assert keywords_of_functions() - COMPUTED - WITHOUT_EFFECT - REFUSED == INTERNAL
    assert not COMPUTED & (WITHOUT_EFFECT | REFUSED)
    assert not WITHOUT_EFFECT & REFUSED


@pytest.mark.slow
def test_every_keyword_of_models_is_known() -> None:
    found = keywords_of_models()
    assert {"s_aux", "position_bias", "indices"} <= found
    assert found <= COMPUTED | WITHOUT_EFFECT | REFUSED


@pytest.mark.parametrize("name", sorted(REFUSED | {"a_keyword_of_tomorrow"}))
def test_a_keyword_that_is_not_computed_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedCallError, match=f"^{name}="):
        attention_function(layer(), *tensors(), None, **{name: torch.zeros(1)})


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"dropout": 0.1}, UnsupportedCallError, "dropout=0.1"),
        ({"is_causal": True}, UnsupportedCallError, "attention_mask=None with is_causal=True"),
        ({"sliding_window": 3}, UnsupportedCallError, "sliding_window=3 over 4 keys without a mask"),
        ({"s_aux": torch.zeros(3)}, InputMismatchError, r"s_aux is \(3,\); expected one logit a head, \[4\]"),
        ({"cu_seq_lens_q": torch.zeros(2)}, InputMismatchError, "cu_seq_lens_q and cu_seq_lens_k"),
        ({"max_length_q": 2}, InputMismatchError, "cu_seq_lens_q and cu_seq_lens_k"),
        (
            {"cu_seq_lens_q": torch.zeros(2), "cu_seq_lens_k": torch.zeros(2)},
            InputMismatchError,
            "expected batch 1",
        ),
    ],
)
def test_a_value_that_is_not_computed_is_refused_by_name(
    given: dict[str, Any], error: type[AutotuneError], message: str
) -> None:
    with pytest.raises(error, match=message):
        attention_function(layer(), *tensors(), None, **given)


@pytest.mark.parametrize("sizes", [(2, 4), (2, 4, 4), (2, 1, 1, 4, 4)])
def test_a_mask_of_other_dimensions_is_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(UnsupportedCallError, match=r"attention_mask is a Tensor \(.*expected padding as \[batch, tok"):
        attention_function(layer(), *tensors(), torch.zeros(sizes))


@pytest.mark.parametrize("name", ["attention_mask", "position_bias"])
def test_an_operand_of_other_sizes_is_refused(name: str) -> None:
    given = {"attention_mask": None} | {name: torch.zeros(2, 3, 4, 4)}
    with pytest.raises(InputMismatchError, match=r"attn_mask is \(2, 3, 4, 4\) float32; expected \(2 or 1, 4 or 1, 4"):
        attention_function(layer(), *tensors(), **given)


def test_a_bias_over_packed_sequences_is_refused() -> None:
    q, k, v = (each[:1] for each in tensors())
    ends = torch.tensor([0, 2, 4])
    with pytest.raises(
        UnsupportedCallError, match="position_bias, a mask of your own, blocks, or heads wider than 256, o"
    ):
        attention_function(
            layer(), q, k, v, None, position_bias=torch.zeros(1, 4, 4, 4), cu_seq_lens_q=ends, cu_seq_lens_k=ends
        )


def test_heads_wider_than_packed_ones_may_be_are_refused_over_packed_sequences() -> None:
    q, k, v = (each[:1, :, :, :1].expand(-1, -1, -1, 512) for each in tensors())
    ends = torch.tensor([0, 2, 4])
    with pytest.raises(UnsupportedCallError, match="heads wider than 256, over sequences that are packed"):
        attention_function(layer(), q, k, v, None, cu_seq_lens_q=ends, cu_seq_lens_k=ends)


def test_blocks_in_several_parts_are_refused() -> None:
    masks = transformers.masking_utils
    blocks = masks.blockwise_overlay(torch.tensor([[0, -1, 0, 0]]))
    with pytest.raises(UnsupportedCallError, match="block_sequence_ids with a block in several parts is not computed"):
        causal_mask(mask_function=masks.or_masks(masks.causal_mask_function, blocks))


def test_a_mask_that_a_model_cuts_is_refused() -> None:
    with pytest.raises(UnsupportedCallError, match="attention_mask is a Tensor"):
        attention_function(layer(), *tensors(), causal_mask()[:, :, :, :4])


def test_a_mask_that_a_model_adds_to_has_no_memory() -> None:
    with pytest.raises(RuntimeError):
        torch.zeros(2, 1, 4, 4) + causal_mask()


def test_a_mask_of_other_sizes_is_refused() -> None:
    with pytest.raises(InputMismatchError, match="made for batch 2, 4 queries and 5 keys; the layer has"):
        attention_function(layer(), *tensors(), causal_mask(4, 5))


def test_a_window_that_the_mask_has_not_is_refused() -> None:
    with pytest.raises(UnsupportedCallError, match="sliding_window=3 with a mask that has no window"):
        attention_function(layer(), *tensors(), causal_mask(), sliding_window=3)


def test_causality_that_the_mask_has_not_is_refused() -> None:
    both_ways = causal_mask(mask_function=transformers.masking_utils.bidirectional_mask_function)
    with pytest.raises(UnsupportedCallError, match="is_causal=True with a mask that is not causal"):
        attention_function(layer(), *tensors(), both_ways, is_causal=True)


def test_gradients_are_refused_by_name() -> None:
    model = tiny_models.decoder("llama")
    model.set_attn_implementation("autotune")
    with pytest.raises(NotDifferentiableError, match="attn_implementation='autotune' computes no gradients"):
        model(tiny_models.prompts())


@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_nothing_is_computed_without_the_mask_function(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_models.decoder("llama")
    model.set_attn_implementation("autotune")
    monkeypatch.delitem(transformers.AttentionMaskInterface._global_mapping, "autotune")
    with torch.no_grad(), pytest.raises(UnsupportedCallError, match="padding would be ignored"):
        model(tiny_models.prompts(), attention_mask=tiny_models.padding(side))
