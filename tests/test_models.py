"""Named models are valid shapes, and are found by their names, those of the Hub, and paths."""

import doctest
import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import InvalidShapeError, UnknownNameError, UsageError
from autotune.models import MODELS, ModelShape, find_model, get_model, load_config
from autotune.shape import AttentionShape, PagedShape
from tests.config_files import LLAMA


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
