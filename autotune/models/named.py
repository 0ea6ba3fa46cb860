"""Named models, one sourced list for the command line, the benchmarks and the tests; and a look-up by name or path."""

import difflib
import os.path
import re
from pathlib import Path
from typing import Any, Final

from autotune.errors import UnknownNameError
from autotune.models.config_file import load_config
from autotune.models.model import ModelShape

_LATENT: Final[dict[str, Any]] = {"head_dim_v": 128, "latent": True, "latent_widths": (576, 512)}

MODELS: Final = {
    model.name: model
    for model in (
        ModelShape("llama-3.1-8b", 32, 8, 128, source="meta-llama/Llama-3.1-8B"),
        ModelShape("llama-3.1-70b", 64, 8, 128, source="meta-llama/Llama-3.1-70B"),
        ModelShape("llama-3.1-405b", 128, 8, 128, source="meta-llama/Llama-3.1-405B"),
        ModelShape("llama-3.2-1b", 32, 8, 64, source="meta-llama/Llama-3.2-1B"),
        ModelShape("llama-3.2-3b", 24, 8, 128, source="meta-llama/Llama-3.2-3B"),
        ModelShape("llama-4-scout", 40, 8, 128, source="meta-llama/Llama-4-Scout-17B-16E"),
        ModelShape("mistral-7b-v0.1", 32, 8, 128, window=4096, source="mistralai/Mistral-7B-v0.1"),
        ModelShape("mistral-7b-v0.3", 32, 8, 128, source="mistralai/Mistral-7B-v0.3"),
        ModelShape("mistral-small-24b", 32, 8, 128, source="mistralai/Mistral-Small-24B-Base-2501"),
        ModelShape("mistral-large", 96, 8, 128, source="mistralai/Mistral-Large-Instruct-2407"),
        ModelShape("qwen2.5-0.5b", 14, 2, 64, source="Qwen/Qwen2.5-0.5B"),
        ModelShape("qwen2.5-7b", 28, 4, 128, source="Qwen/Qwen2.5-7B"),
        ModelShape("qwen2.5-32b", 40, 8, 128, source="Qwen/Qwen2.5-32B"),
        ModelShape("qwen2.5-72b", 64, 8, 128, source="Qwen/Qwen2.5-72B"),
        ModelShape("qwen3-8b", 32, 8, 128, source="Qwen/Qwen3-8B"),
        ModelShape("qwen3-32b", 64, 8, 128, source="Qwen/Qwen3-32B"),
        ModelShape("qwen3-30b-a3b", 32, 4, 128, source="Qwen/Qwen3-30B-A3B"),
        ModelShape("qwen3-235b-a22b", 64, 4, 128, source="Qwen/Qwen3-235B-A22B"),
        ModelShape("qwen3-next-80b-a3b", 16, 2, 256, source="Qwen/Qwen3-Next-80B-A3B-Instruct"),
        ModelShape("gemma-2-9b", 16, 8, 256, window=4096, softcap=50.0, mixes_windows=True, source="google/gemma-2-9b"),
        ModelShape(
            "gemma-2-27b", 32, 16, 128, window=4096, softcap=50.0, mixes_windows=True, source="google/gemma-2-27b"
        ),
        ModelShape("gemma-3-4b", 8, 4, 256, window=1024, mixes_windows=True, source="google/gemma-3-4b-it"),
        ModelShape("gemma-3-12b", 16, 8, 256, window=1024, mixes_windows=True, source="google/gemma-3-12b-it"),
        ModelShape("gemma-3-27b", 32, 16, 128, window=1024, mixes_windows=True, source="google/gemma-3-27b-it"),
        ModelShape("gpt-oss-20b", 64, 8, 64, window=128, mixes_windows=True, sinks=True, source="openai/gpt-oss-20b"),
        ModelShape("gpt-oss-120b", 64, 8, 64, window=128, mixes_windows=True, sinks=True, source="openai/gpt-oss-120b"),
        ModelShape("phi-3-mini-4k", 32, 32, 96, window=2047, source="microsoft/Phi-3-mini-4k-instruct"),
        ModelShape("phi-4", 40, 10, 128, source="microsoft/phi-4"),
        # Multi-head latent attention, as its prefill computes it: 128 + 64 rotary dimensions against values of 128.
        ModelShape("deepseek-v3", 128, 128, 192, source="deepseek-ai/DeepSeek-V3", **_LATENT),
        ModelShape("kimi-k2", 64, 64, 192, source="moonshotai/Kimi-K2-Instruct", **_LATENT),
        ModelShape("glm-4-9b", 32, 2, 128, source="THUDM/glm-4-9b"),
        ModelShape("glm-4.5", 96, 8, 128, source="zai-org/GLM-4.5"),
        ModelShape("falcon-7b", 71, 1, 64, source="tiiuae/falcon-7b"),
        ModelShape("falcon-40b", 128, 8, 64, source="tiiuae/falcon-40b"),
        ModelShape("starcoder2-15b", 48, 4, 128, window=4096, source="bigcode/starcoder2-15b"),
        ModelShape("mpt-7b", 32, 32, 128, alibi=True, source="mosaicml/mpt-7b"),
        # That both use ALiBi stands in their papers and code (modeling_bloom.py, modeling_baichuan.py), not the config.
        ModelShape("bloom-176b", 112, 112, 128, alibi=True, source="bigscience/bloom"),
        ModelShape("baichuan-13b", 40, 40, 128, alibi=True, source="baichuan-inc/Baichuan-13B-Base"),
        ModelShape("grok-1", 48, 8, 128, softcap=30.0, source="github.com/xai-org/grok-1, run.py and model.py"),
        ModelShape("flux.1", 24, 24, 128, causal=False, source="black-forest-labs/FLUX.1-dev, transformer/config.json"),
        ModelShape("wan2.1-14b", 40, 40, 128, causal=False, source="Wan-AI/Wan2.1-T2V-14B"),
        ModelShape("hunyuan-video", 24, 24, 128, causal=False, source="tencent/HunyuanVideo, the transformer"),
        ModelShape("whisper-large-v3", 20, 20, 64, causal=False, source="openai/whisper-large-v3, the encoder"),
        ModelShape("bert-base", 12, 12, 64, causal=False, source="google-bert/bert-base-uncased"),
        ModelShape("vit-large", 16, 16, 64, causal=False, source="google/vit-large-patch16-224"),
    )
}


def _base_of(name: str) -> str:
    """Return a name of a model without what says that it was tuned to instructions, which leaves attention as it is."""
    return name.lower().removesuffix("-instruct").removesuffix("-it")


_ON_HUB: Final = {_base_of(model.source): model for model in MODELS.values()}


def find_model(name_or_path: str) -> ModelShape:
    """Return the named model, or the one of a ``config.json``, or of a folder that holds one, where the text is a path.

    A word is a path where it is no known name and a folder with a ``config.json`` is called so.
    """
    path = Path(name_or_path)
    is_hub_name = re.fullmatch(r"[\w-]+/[\w.-]+(?<!\.json)", name_or_path) is not None and not path.exists()
    is_path = ("/" in name_or_path or name_or_path.endswith(".json")) and not is_hub_name
    is_folder = bool(name_or_path) and _known(name_or_path) is None and os.path.isfile(path / "config.json")
    return load_config(path) if is_path or is_folder else get_model(name_or_path)


def get_model(name: str) -> ModelShape:
    """Return the model of that name, here or on the Hub, in any case; what is tuned to instructions is its base.

    Example:
        >>> get_model("Llama-3.1-8B").kv_heads
        8
        >>> get_model("meta-llama/Llama-3.1-8B-Instruct").name
        'llama-3.1-8b'

    Raises:
        UnknownNameError: no such model; the message names the closest ones, or all.
    """
    if (found := _known(name)) is not None:
        return found
    own_name = name.lower().rpartition("/")[2]  # without the owner of a name of the Hub
    close = _like(own_name)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(MODELS)}"
    raise UnknownNameError(f"model={name!r} is unknown; {hint} (or give the path of a config.json)")


def _known(name: str) -> ModelShape | None:
    base = _base_of(name)
    return MODELS.get(base) or _ON_HUB.get(base)


def _like(name: str) -> list[str]:
    """List known names that contain one, or else those that are spelt like it: three at most."""

    def letters(text: str) -> str:
        return re.sub(r"[^a-z0-9]", "", text)

    longer = [each for each in MODELS if letters(name) and letters(name) in letters(each)]
    return longer[:3] or difflib.get_close_matches(name, MODELS, n=3)
