"""Named models are valid shapes, configs of every family are read, and every wrong one is refused in one line."""

import doctest
import importlib
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import InvalidShapeError, UnknownNameError, UsageError
from autotune.models import MODELS, ModelShape, find_model, get_model, load_config
from autotune.shape import AttentionShape, PagedShape

# Fields as published in each model's config.json; what is irrelevant here is left out.
LLAMA: dict[str, Any] = {"num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}
CONFIGS: dict[str, tuple[dict[str, Any], ModelShape]] = {
    "llama": (LLAMA, ModelShape("", 32, 8, 128)),
    "explicit-head-dim": ({**LLAMA, "hidden_size": 5120, "head_dim": 128}, ModelShape("", 32, 8, 128)),
    "null-is-absent": (
        {**LLAMA, "num_key_value_heads": None, "head_dim": None, "sliding_window": None},
        ModelShape("", 32, 32, 128),
    ),
    "mistral-window": (
        {**LLAMA, "sliding_window": 4096, "max_position_embeddings": 32768},
        ModelShape("", 32, 8, 128, window=4096),
    ),
    "qwen-window-unused": (
        {**LLAMA, "sliding_window": 32768, "use_sliding_window": False, "max_position_embeddings": 131072},
        ModelShape("", 32, 8, 128),
    ),
    "no-sliding-layer": (
        {**LLAMA, "sliding_window": 512, "layer_types": ["full_attention"]},
        ModelShape("", 32, 8, 128),
    ),
    "some-sliding-layers": (
        {**LLAMA, "sliding_window": 512, "layer_types": ["full_attention", "sliding_attention"]},
        ModelShape("", 32, 8, 128, window=512, mixes_windows=True),
    ),
    "every-layer-slides": (
        {**LLAMA, "sliding_window": 512, "layer_types": ["sliding_attention", "sliding_attention"]},
        ModelShape("", 32, 8, 128, window=512),
    ),
    "window-pattern": (
        {**LLAMA, "sliding_window": 512, "sliding_window_pattern": 6},
        ModelShape("", 32, 8, 128, window=512, mixes_windows=True),
    ),
    "window-pattern-of-one": (
        {**LLAMA, "sliding_window": 512, "sliding_window_pattern": 1},
        ModelShape("", 32, 8, 128, window=512),
    ),
    "qwen-window-from-a-layer-on": (
        {**LLAMA, "sliding_window": 512, "use_sliding_window": True, "max_window_layers": 28},
        ModelShape("", 32, 8, 128, window=512, mixes_windows=True),
    ),
    "qwen-window-everywhere": (
        {**LLAMA, "sliding_window": 512, "use_sliding_window": True, "max_window_layers": 0},
        ModelShape("", 32, 8, 128, window=512),
    ),
    "mixed-layers-of-no-window": (
        {**LLAMA, "sliding_window": None, "layer_types": ["full_attention", "linear_attention"]},
        ModelShape("", 32, 8, 128),
    ),
    "phi-window-beyond-reach": (
        {"num_attention_heads": 32, "hidden_size": 3072, "sliding_window": 262144, "max_position_embeddings": 131072},
        ModelShape("", 32, 32, 96),
    ),
    "gemma-2": (
        {
            "model_type": "gemma2",
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "hidden_size": 3584,
            "head_dim": 256,
            "sliding_window": 4096,
            "attn_logit_softcapping": 50,
        },
        ModelShape("", 16, 8, 256, window=4096, softcap=50.0, mixes_windows=True),
    ),
    "text-config": (
        {"hidden_size": 1, "text_config": {**LLAMA, "attn_logit_softcapping": None}, "vision_config": {"n_head": 2}},
        ModelShape("", 32, 8, 128),
    ),
    "text-config-without-heads": ({**LLAMA, "text_config": {"hidden_size": 2560}}, ModelShape("", 32, 8, 128)),
    "gpt-2": ({"n_head": 12, "n_embd": 768}, ModelShape("", 12, 12, 64)),
    "bloom": (
        {"model_type": "bloom", "n_head": 112, "hidden_size": 14336},
        ModelShape("", 112, 112, 128, alibi=True),
    ),
    "gpt-bigcode": ({"n_head": 48, "n_embd": 6144, "multi_query": True}, ModelShape("", 48, 1, 128)),
    "falcon-7b": (
        {
            "num_attention_heads": 71,
            "num_kv_heads": 71,
            "hidden_size": 4544,
            "multi_query": True,
            "new_decoder_architecture": False,
        },
        ModelShape("", 71, 1, 64),
    ),
    "falcon-40b": (
        {
            "num_attention_heads": 128,
            "num_kv_heads": 8,
            "hidden_size": 8192,
            "multi_query": True,
            "new_decoder_architecture": True,
        },
        ModelShape("", 128, 8, 64),
    ),
    "falcon-old-names": ({"n_head": 128, "n_head_kv": 8, "hidden_size": 8192}, ModelShape("", 128, 8, 64)),
    "mpt": (
        {"n_heads": 32, "d_model": 4096, "attn_config": {"kv_n_heads": 4, "alibi": True}},
        ModelShape("", 32, 4, 128, alibi=True),
    ),
    "mpt-without-alibi": (
        {"n_heads": 32, "d_model": 4096, "attn_config": {"alibi": False}},
        ModelShape("", 32, 32, 128),
    ),
    "chatglm": (
        {
            "num_attention_heads": 32,
            "hidden_size": 4096,
            "kv_channels": 128,
            "multi_query_attention": True,
            "multi_query_group_num": 2,
        },
        ModelShape("", 32, 2, 128),
    ),
    "chatglm-without-groups": (
        {
            "num_attention_heads": 32,
            "hidden_size": 4096,
            "multi_query_attention": False,
            "multi_query_group_num": 1,
        },
        ModelShape("", 32, 32, 128),
    ),
    "deepseek": (
        {
            "num_attention_heads": 128,
            "num_key_value_heads": 128,
            "hidden_size": 7168,
            "head_dim": 64,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "kv_lora_rank": 512,
        },
        ModelShape("", 128, 128, 192, head_dim_v=128, latent=True, latent_widths=(576, 512)),
    ),
    "gpt-oss": (
        {
            "model_type": "gpt_oss",
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "hidden_size": 2880,
            "head_dim": 64,
            "sliding_window": 128,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        ModelShape("", 64, 8, 64, window=128, mixes_windows=True, sinks=True),
    ),
    "falcon-alibi": (
        {"num_attention_heads": 32, "hidden_size": 2048, "alibi": True},
        ModelShape("", 32, 32, 64, alibi=True),
    ),
    "falcon-no-alibi": ({"num_attention_heads": 32, "hidden_size": 2048, "alibi": False}, ModelShape("", 32, 32, 64)),
}

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
CONFIGS |= BOTH_WAYS

WRONG_FIELDS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "no-heads": ({"hidden_size": 4096}, ["no num_attention_heads"]),
    "no-size": ({"num_attention_heads": 32}, ["neither head_dim nor hidden_size"]),
    "heads-as-text": ({**LLAMA, "num_attention_heads": "32"}, ["num_attention_heads='32'", "positive integer"]),
    "heads-as-fraction": ({**LLAMA, "num_attention_heads": 32.5}, ["num_attention_heads=32.5", "positive integer"]),
    "heads-as-truth": ({**LLAMA, "num_attention_heads": True}, ["num_attention_heads=True", "positive integer"]),
    "heads-zero": ({**LLAMA, "num_attention_heads": 0}, ["num_attention_heads=0", "positive integer"]),
    "kv-heads-negative": ({**LLAMA, "num_key_value_heads": -8}, ["num_key_value_heads=-8", "positive integer"]),
    "kv-heads-uneven": ({**LLAMA, "num_key_value_heads": 5}, ["32 heads", "5 KV heads"]),
    "head-dim-not-integral": ({**LLAMA, "hidden_size": 4100}, ["hidden_size=4100", "32 heads"]),
    "head-dim-as-list": ({**LLAMA, "head_dim": [128]}, ["head_dim=[128]", "positive integer"]),
    "window-as-text": ({**LLAMA, "sliding_window": "all\nof it"}, ["sliding_window='all\\nof it'", "positive integer"]),
    "window-zero": ({**LLAMA, "sliding_window": 0}, ["sliding_window=0", "positive integer"]),
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
    "softcap-zero": ({**LLAMA, "attn_logit_softcapping": 0}, ["attn_logit_softcapping=0", "positive number or null"]),
    "softcap-nan": ({**LLAMA, "attn_logit_softcapping": float("nan")}, ["attn_logit_softcapping=nan"]),
    "softcap-huge": ({**LLAMA, "attn_logit_softcapping": 10**400}, ["attn_logit_softcapping=1000"]),
}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_named_model_is_a_valid_shape_with_a_source(model: ModelShape) -> None:
    shape = AttentionShape(
        batch=1,
        heads=model.heads,
        kv_heads=model.kv_heads,
        seq_q=1024,
        head_dim=model.head_dim,
        head_dim_v=model.head_dim_v,
        causal=model.causal,
        window=model.window,
        softcap=model.softcap is not None,
    )
    assert shape.group * model.kv_heads == model.heads
    assert model.window is not None or not model.mixes_windows
    assert model.name == model.name.lower()
    assert model.source


@pytest.mark.parametrize(
    "model", [model for model in MODELS.values() if model.causal and not model.latent], ids=lambda model: model.name
)
def test_named_model_with_a_cache_is_a_valid_paged_shape(model: ModelShape) -> None:
    shape = PagedShape(
        batch=1,
        heads=model.heads,
        kv_heads=model.kv_heads,
        max_context=1024,
        head_dim=model.head_dim,
        head_dim_v=model.head_dim_v,
        window=model.window,
        softcap=model.softcap is not None,
        sinks=model.sinks,
        alibi=model.alibi,
    )
    assert shape.group * model.kv_heads == model.heads


def test_shapes_of_a_model_have_its_heads_and_features_and_what_is_given() -> None:
    gemma, oss = get_model("gemma-2-9b"), get_model("gpt-oss-20b").tensor_parallel(4)
    heads: dict[str, Any] = {"heads": 16, "kv_heads": 8, "head_dim": 256}
    dense = AttentionShape(batch=2, seq_q=512, causal=True, softcap=True, **heads)
    assert gemma.shape(AttentionShape, batch=2, seq_q=512) == dense
    assert gemma.shape(AttentionShape, batch=2, seq_q=512, window=4096) == replace(dense, window=4096)
    paged = PagedShape(batch=3, heads=16, kv_heads=2, max_context=700, head_dim=64, page_size=64, sinks=True)
    assert oss.shape(PagedShape, batch=3, max_context=700, page_size=64) == paged
    assert oss.shape(PagedShape, batch=3, max_context=700, page_size=64, sinks=False) == replace(paged, sinks=False)
    every_layer = get_model("phi-3-mini-4k").shape(PagedShape, batch=1, max_context=8192)
    assert (every_layer.window, every_layer.alibi) == (2047, False)
    assert get_model("mpt-7b").shape(PagedShape, batch=1, max_context=8192).alibi
    latent = get_model("kimi-k2").shape(AttentionShape, batch=1, seq_q=512)
    assert (latent.head_dim, latent.head_dim_v) == (192, 128)
    assert not get_model("bert-base").shape(AttentionShape, batch=1, seq_q=512).causal
    with pytest.raises(InvalidShapeError, match="pages is not a field of AttentionShape"):
        gemma.shape(AttentionShape, batch=1, seq_q=512, pages=1)


def test_what_no_size_tells_of_a_model() -> None:
    def having(feature: str) -> list[str]:
        return [name for name, model in MODELS.items() if getattr(model, feature)]

    assert having("sinks") == ["gpt-oss-20b", "gpt-oss-120b"]
    assert having("alibi") == ["mpt-7b", "bloom-176b", "baichuan-13b"]
    assert having("latent") == ["deepseek-v3", "kimi-k2"]
    assert get_model("gpt-oss-120b").tensor_parallel(8).sinks


def test_get_model_ignores_case_and_names_the_closest() -> None:
    assert get_model("LLaMA-3.1-8B") is MODELS["llama-3.1-8b"]
    with pytest.raises(UnknownNameError, match=r"model='llama-3\.1-8' is unknown; did you mean llama-3\.1-8b"):
        get_model("llama-3.1-8")
    with pytest.raises(UnknownNameError, match=r"known: llama-3\.1-8b, .*vit-large"):
        get_model("")


def test_find_model_tells_names_from_paths(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    assert find_model("phi-4") is MODELS["phi-4"]
    assert find_model(str(path)) == load_config(path)
    with pytest.raises(UsageError, match="does not exist"):
        find_model("absent.json")


def test_find_model_reads_the_config_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("mine", "phi-4", "owner/checkpoint", "empty"):
        (tmp_path / folder).mkdir(parents=True)
        if folder != "empty":
            (tmp_path / folder / "config.json").write_text(json.dumps(LLAMA))
    monkeypatch.chdir(tmp_path)
    for text in ("mine", "mine/", "./mine", str(tmp_path / "mine"), "owner/checkpoint", "./phi-4"):
        assert find_model(text) == load_config(Path(text) / "config.json")
    assert find_model("phi-4") is MODELS["phi-4"]  # a known name is that model, whatever lies here
    monkeypatch.chdir(tmp_path / "mine")
    assert find_model(".").heads == 32
    with pytest.raises(UnknownNameError, match="model='' is unknown"):
        find_model("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"model='empty/config\.json' does not exist"):
        find_model("empty/")
    for unknown in ("empty", "long" * 100):
        with pytest.raises(UnknownNameError, match=f"model='{unknown}' is unknown"):
            find_model(unknown)


@pytest.mark.parametrize(("fields", "expected"), CONFIGS.values(), ids=CONFIGS)
def test_load_config(tmp_path: Path, fields: dict[str, Any], expected: ModelShape) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(fields))
    model = load_config(path)
    assert model.name == model.source == str(path)
    assert model == replace(expected, name=str(path), source=str(path))


@pytest.mark.parametrize(("fields", "parts"), WRONG_FIELDS.values(), ids=WRONG_FIELDS)
def test_load_config_refuses_wrong_fields(tmp_path: Path, fields: dict[str, Any], parts: list[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(fields))
    with pytest.raises(InvalidShapeError) as caught:
        load_config(path)
    message = str(caught.value)
    assert message.startswith(f"model={str(path)!r} ")
    assert all(part in message for part in parts), message
    assert "\n" not in message
    assert len(message) < len(str(path)) + 240


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"\xff\xfe\xfa", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"num_attention_heads": ' + b"9" * 5000 + b"}", "is not JSON"),
        (b"[32, 8]", "JSON list; expected an object"),
        (b"null", "expected an object"),
    ],
    ids=["empty", "cut", "not-text", "deep", "endless-number", "list", "null"],
)
def test_load_config_refuses_what_is_no_object(tmp_path: Path, content: bytes, part: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        load_config(path)
    assert part in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_load_config_refuses_what_is_no_file(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo.json"
    os.mkfifo(fifo)
    for path, part in [
        (tmp_path / "absent.json", "does not exist"),
        (tmp_path, r"config\.json' does not exist"),
        (fifo, "is not a regular file"),
        (tmp_path / ("long" * 100), "cannot be read"),
    ]:
        with pytest.raises(UsageError, match=part) as caught:
            load_config(path)
        assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "degree", "expected"),
    [
        ("llama-3.1-70b", 1, (64, 8)),
        ("llama-3.1-70b", 8, (8, 1)),
        ("llama-3.1-70b", 16, (4, 1)),  # each KV head on two ranks
        ("qwen2.5-0.5b", 7, None),  # 2 KV heads can be neither split over 7 ranks nor replicated evenly
        ("phi-4", 5, (8, 2)),
        ("phi-4", 20, (2, 1)),
        ("phi-4", 4, None),
        ("falcon-7b", 71, (1, 1)),
        ("falcon-7b", 2, None),
        ("llama-3.1-8b", 64, None),
        ("llama-3.1-8b", 0, None),
        ("llama-3.1-8b", -2, None),
    ],
)
def test_tensor_parallel(name: str, degree: int, expected: tuple[int, int] | None) -> None:
    model = get_model(name)
    if expected is None:
        with pytest.raises(InvalidShapeError, match=rf"tp={degree} does not share .*; allowed: 1"):
            model.tensor_parallel(degree)
        return
    shard = model.tensor_parallel(degree)
    assert (shard.heads, shard.kv_heads) == expected
    assert (shard.head_dim, shard.window, shard.source) == (model.head_dim, model.window, model.source)
    assert shard.name == (name if degree == 1 else f"{name} tp{degree}")


def test_tensor_parallel_lists_what_is_allowed() -> None:
    with pytest.raises(InvalidShapeError, match=r"allowed: 1, 2, 5, 10, 20, 40$"):
        get_model("phi-4").tensor_parallel(3)


def test_docstring_examples() -> None:
    names = {"get_model": get_model, "AttentionShape": AttentionShape}
    results = [
        doctest.testmod(importlib.import_module(f"autotune.models.{name}"), extraglobs=names)
        for name in ("model", "named", "config_file")
    ]
    assert all(failed == 0 for failed, _ in results)
    assert sum(attempted for _, attempted in results) > 5


def test_names_of_the_hub_are_known_and_others_suggest_named_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b-instruct"):
        assert find_model(name) is MODELS["qwen2.5-7b"]
    assert find_model("google/gemma-3-4b-it") is find_model("google/gemma-3-4b") is MODELS["gemma-3-4b"]
    with pytest.raises(UnknownNameError, match=r"model='Qwn/Qwen2.5-7B' is unknown; did you mean qwen2\.5-7b\?"):
        find_model("Qwn/Qwen2.5-7B")
    with pytest.raises(UnknownNameError, match=r"'phi3' is unknown; did you mean phi-3-mini-4k\?"):
        find_model("phi3")
    with pytest.raises(UnknownNameError, match=r"'llama-3-8b' is unknown; did you mean llama-3"):
        find_model("llama-3-8b")
    for path in ("models/config.json", "/models/qwen2.5-7b", "./qwen2.5-7b"):
        with pytest.raises(UsageError, match="does not exist"):
            find_model(path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "llama").write_text(json.dumps(LLAMA))
    assert find_model("models/llama").heads == 32
