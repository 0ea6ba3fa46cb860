"""Configs of every family of decoders are read, and every wrong one is refused in one line."""

import os
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import UsageError
from autotune.models import ModelShape, load_config
from tests.config_files import LLAMA, check_read, check_refused

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
    "softcap-zero": ({**LLAMA, "attn_logit_softcapping": 0}, ["attn_logit_softcapping=0", "positive number or null"]),
    "softcap-nan": ({**LLAMA, "attn_logit_softcapping": float("nan")}, ["attn_logit_softcapping=nan"]),
    "softcap-huge": ({**LLAMA, "attn_logit_softcapping": 10**400}, ["attn_logit_softcapping=1000"]),
}


@pytest.mark.parametrize(("fields", "expected"), CONFIGS.values(), ids=CONFIGS)
def test_load_config(tmp_path: Path, fields: dict[str, Any], expected: ModelShape) -> None:
    check_read(tmp_path, fields, expected)


@pytest.mark.parametrize(("fields", "parts"), WRONG_FIELDS.values(), ids=WRONG_FIELDS)
def test_load_config_refuses_wrong_fields(tmp_path: Path, fields: dict[str, Any], parts: list[str]) -> None:
    check_refused(tmp_path, fields, parts, longest=150)


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
