"""Configs of models that attend both ways are read as such, and encoder-decoders are refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.models import ModelShape
from tests.config_files import LLAMA, check_read, check_refused

BERT: dict[str, Any] = {
    "model_type": "bert",
    "architectures": ["BertForMaskedLM"],
    "num_attention_heads": 12,
    "hidden_size": 768,
    "max_position_embeddings": 512,
}
ENCODER = ModelShape("", 12, 12, 64, causal=False)
MODERN_BERT: dict[str, Any] = {
    **BERT,
    "model_type": "modernbert",
    "architectures": ["ModernBertForMaskedLM"],
    "max_position_embeddings": 8192,
    "local_attention": 128,
    "global_attn_every_n_layers": 3,
}
EMBEDDING_GEMMA: dict[str, Any] = {
    "model_type": "gemma3_text",
    "architectures": ["Gemma3TextModel"],
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "sliding_window": 512,
    "_sliding_window_pattern": 6,
    "max_position_embeddings": 2048,
    "use_bidirectional_attention": True,
}
WINDOWED = ModelShape("", 12, 12, 64, window=65, mixes_windows=True, causal=False)  # transformers: 64 keys to each side
BOTH_WAYS: dict[str, tuple[dict[str, Any], ModelShape]] = {
    "bert": (BERT, ENCODER),
    "bert-without-architectures": ({**BERT, "architectures": None}, ENCODER),
    "bert-says-that-it-is-no-decoder": ({**BERT, "architectures": ["BertModel"], "is_decoder": False}, ENCODER),
    "bert-as-a-decoder": (
        {**BERT, "architectures": ["BertLMHeadModel"], "is_decoder": True},
        replace(ENCODER, causal=True),
    ),
    "xlm-roberta": ({**BERT, "model_type": "xlm-roberta", "architectures": ["XLMRobertaModel"]}, ENCODER),
    "distilbert": ({"model_type": "distilbert", "n_heads": 12, "dim": 768}, ENCODER),
    "nomic-bert": ({"model_type": "nomic_bert", "n_head": 12, "n_embd": 768}, ENCODER),
    "vit": ({**BERT, "model_type": "vit", "architectures": ["ViTForImageClassification"]}, ENCODER),
    "siglip-tower": ({**BERT, "model_type": "siglip_vision_model", "architectures": None}, ENCODER),
    "unknown-masked-model": ({**BERT, "model_type": "mine", "architectures": ["MineForMaskedLM"]}, ENCODER),
    "masked-model-around-its-text": (
        {"architectures": ["MineForMaskedLM"], "text_config": LLAMA},
        ModelShape("", 32, 8, 128, causal=False),
    ),
    "unknown-kind": ({**BERT, "model_type": ["bert"], "architectures": "ForMaskedLM"}, replace(ENCODER, causal=True)),
    "decoder-whose-file-says-no-decoder": (
        {**LLAMA, "model_type": "llama", "is_decoder": False},
        ModelShape("", 32, 8, 128),
    ),
    "gte-qwen2": ({**LLAMA, "model_type": "qwen2", "is_causal": False}, ModelShape("", 32, 8, 128, causal=False)),
    "window-inclusive": (
        {**LLAMA, "is_causal": False, "sliding_window": 64},
        ModelShape("", 32, 8, 128, window=65, causal=False),
    ),
    "modernbert": (MODERN_BERT, WINDOWED),
    "modernbert-layer-types": (
        {**MODERN_BERT, "global_attn_every_n_layers": None, "layer_types": ["full_attention", "sliding_attention"]},
        WINDOWED,
    ),
    "modernbert-global-layers": ({**MODERN_BERT, "global_attn_every_n_layers": 1}, ENCODER),
    "modernbert-decoder": (
        {**MODERN_BERT, "model_type": "modernbert-decoder", "architectures": ["ModernBertDecoderForCausalLM"]},
        replace(WINDOWED, window=64, causal=True),
    ),
    "embedding-gemma": (
        EMBEDDING_GEMMA,
        ModelShape("", 3, 1, 256, window=257, mixes_windows=True, causal=False),
    ),
    "embedding-gemma-2": (
        {**EMBEDDING_GEMMA, "model_type": "embedding_gemma2_text", "use_bidirectional_attention": None},
        ModelShape("", 3, 1, 256, window=513, mixes_windows=True, causal=False),
    ),
    "gemma-4-both-ways": (
        {**EMBEDDING_GEMMA, "model_type": "gemma4_text", "use_bidirectional_attention": "all"},
        ModelShape("", 3, 1, 256, window=257, mixes_windows=True, causal=False),
    ),
    "gemma-4-images": (
        {**EMBEDDING_GEMMA, "model_type": "gemma4_text", "use_bidirectional_attention": "vision"},
        ModelShape("", 3, 1, 256, window=512, mixes_windows=True),
    ),
    "gemma-3": (
        {**EMBEDDING_GEMMA, "use_bidirectional_attention": False},
        ModelShape("", 3, 1, 256, window=512, mixes_windows=True),
    ),
}
REFUSED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "t5": (
        {"model_type": "t5", "num_heads": 8, "d_model": 512},
        ["is an encoder-decoder (model_type='t5')", "expected"],
    ),
    "encoder-decoder": ({**LLAMA, "is_encoder_decoder": True}, ["is an encoder-decoder (is_encoder_decoder=true)"]),
    "whisper": (
        {"model_type": "whisper", "is_encoder_decoder": True, "encoder_attention_heads": 20, "d_model": 1280},
        ["is an encoder-decoder (is_encoder_decoder=true)", "a decoder or an encoder alone"],
    ),
    "text-of-an-encoder-decoder": (
        {"text_config": {"model_type": "bart", "num_attention_heads": 8}},
        ["is an encoder-decoder (model_type='bart')"],
    ),
    "local-attention-as-text": ({**MODERN_BERT, "local_attention": "128"}, ["local_attention='128'"]),
}


@pytest.mark.parametrize(("fields", "expected"), BOTH_WAYS.values(), ids=BOTH_WAYS)
def test_what_attends_both_ways_is_told(tmp_path: Path, fields: dict[str, Any], expected: ModelShape) -> None:
    check_read(tmp_path, fields, expected)


@pytest.mark.parametrize(("fields", "parts"), REFUSED.values(), ids=REFUSED)
def test_encoder_decoders_are_refused(tmp_path: Path, fields: dict[str, Any], parts: list[str]) -> None:
    check_refused(tmp_path, fields, parts, longest=240)
