"""Models of transformers compute the same logits and generate the same tokens by our attention as by their own."""

import pytest

from tests.contract.interpreting import interpret
from tests.integrations.transformers import tiny_models

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("side", ["none", "ones", "left", "right"])
@pytest.mark.parametrize("name", tiny_models.DECODERS)
def test_logits_are_those_of_eager_attention(name: str, side: str) -> None:
    assert interpret(tiny_models.logits_failure, name, side) is None


@pytest.mark.parametrize("side", ["none", "left"])
@pytest.mark.parametrize("name", tiny_models.DECODERS)
def test_generation_is_that_of_eager_attention(name: str, side: str) -> None:
    assert interpret(tiny_models.generation_failure, name, side, None) is None


@pytest.mark.parametrize("side", ["ones", "left"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "gemma4", "gpt-oss"])
def test_generation_over_a_static_cache_is_that_of_eager_attention(name: str, side: str) -> None:
    assert interpret(tiny_models.generation_failure, name, side, "static") is None


@pytest.mark.parametrize("is_static", [False, True])
@pytest.mark.parametrize("side", ["ones", "left"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "gemma4"])
def test_a_prompt_in_two_parts_is_that_of_eager_attention(name: str, side: str, is_static: bool) -> None:
    assert interpret(tiny_models.continued_failure, name, side, is_static) is None


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_sequences_packed_by_positions_are_those_of_eager_attention(name: str) -> None:
    assert interpret(tiny_models.packed_failure, name) is None


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt-oss"])
def test_sequences_packed_by_offsets_are_those_computed_alone(name: str) -> None:
    assert interpret(tiny_models.offsets_failure, name) is None


def test_a_decoder_without_causality_is_that_of_eager_attention() -> None:
    assert interpret(tiny_models.both_ways_failure) is None


@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_windows_both_ways_are_those_of_eager_attention(side: str) -> None:
    assert interpret(tiny_models.modernbert_failure, side) is None


def test_siglip_is_that_of_eager_attention() -> None:
    assert interpret(tiny_models.siglip_failure) is None


def test_whisper_is_that_of_eager_attention() -> None:
    assert interpret(tiny_models.whisper_failure) is None


@pytest.mark.parametrize("name", sorted(tiny_models.FAMILIES))
def test_other_decoders_are_those_of_eager_attention(name: str) -> None:
    assert interpret(tiny_models.family_failure, name) is None


def test_attention_over_a_padded_encoder_is_that_of_eager_attention() -> None:
    assert interpret(tiny_models.bart_failure) is None


@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_images_that_see_both_ways_are_those_of_eager_attention(side: str) -> None:
    assert interpret(tiny_models.images_failure, side) is None


@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_biases_of_positions_are_those_of_eager_attention(side: str) -> None:
    assert interpret(tiny_models.t5_failure, side) is None


@pytest.mark.parametrize("dtype", ["bool", "float32"])
@pytest.mark.parametrize("name", ["llama", "gpt-oss"])
def test_a_mask_of_ones_own_is_that_of_eager_attention(name: str, dtype: str) -> None:
    assert interpret(tiny_models.own_mask_failure, name, dtype) is None


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_compiled_generation_is_that_of_eager_attention(name: str) -> None:
    assert interpret(tiny_models.compiled_failure, name) is None


@pytest.mark.parametrize("name", ["llama", "gpt-oss"])
def test_half_precision_is_near_eager_attention(name: str) -> None:
    assert interpret(tiny_models.half_failure, name) is None
