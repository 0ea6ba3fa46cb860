"""Named model shapes: one sourced list for the command line, the benchmarks and the tests; and Hugging Face configs."""

import difflib
import json
import re
import reprlib
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from autotune.errors import InvalidShapeError, UnknownNameError, UsageError

_FOLLOWS: Any = None  # the default of a field that follows another one; resolved at construction


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The attention sizes of one model, as its configuration states them.

    ``window`` and ``softcap`` are those of the layers that have one; where ``mixes_windows`` (Gemma, GPT-OSS) the other
    layers run full attention. ``head_dim_v`` follows ``head_dim``. ``sinks``: each head has a learned logit without a
    value; ``alibi``: scores are biased by distance; ``latent``: what is cached are latents that keys and values are
    computed from (MLA). Chunked attention (Llama 4) changes no size and is not said here. ``source`` is the Hugging
    Face repository whose ``config.json`` holds the numbers, or says where else they are from.

    Example:
        >>> model = get_model("qwen2.5-7b")
        >>> model.heads, model.kv_heads, model.head_dim_v
        (28, 4, 128)
    """

    name: str
    heads: int
    kv_heads: int
    head_dim: int
    head_dim_v: int = _FOLLOWS
    window: int | None = None
    softcap: float | None = None
    mixes_windows: bool = False
    causal: bool = True
    sinks: bool = False
    alibi: bool = False
    latent: bool = False
    source: str = ""

    def __post_init__(self) -> None:
        if self.head_dim_v is None:
            object.__setattr__(self, "head_dim_v", self.head_dim)

    @property
    def layer_windows(self) -> tuple[int | None, ...]:
        """The window of each kind of its layers, None where they see all keys.

        Example:
            >>> get_model("gemma-2-9b").layer_windows
            (4096, None)
        """
        return (self.window, None) if self.mixes_windows else (self.window,)

    def tensor_parallel(self, degree: int) -> "ModelShape":
        """Return the part that one of ``degree`` ranks computes: its share of the heads.

        KV heads are split where there are enough of them, and otherwise replicated, so that each rank holds one; the
        rule of Megatron-LM and vLLM.

        Example:
            >>> shard = get_model("llama-3.1-70b").tensor_parallel(16)
            >>> shard.heads, shard.kv_heads
            (4, 1)

        Raises:
            InvalidShapeError: the heads cannot be shared evenly; the message lists the degrees that can.
        """
        if type(degree) is not int or not self._can_split(degree):
            allowed = [str(number) for number in range(1, self.heads + 1) if self._can_split(number)]
            raise InvalidShapeError(
                f"tp={degree!r} does not share {self.heads} heads and {self.kv_heads} KV heads of {self.name} evenly; "
                f"allowed: {', '.join(allowed)}"
            )
        if degree == 1:
            return self
        kv_heads = max(1, self.kv_heads // degree)
        return replace(self, name=f"{self.name} tp{degree}", heads=self.heads // degree, kv_heads=kv_heads)

    def _can_split(self, degree: int) -> bool:
        is_shared = degree >= 1 and self.heads % degree == 0
        return is_shared and (self.kv_heads % degree == 0 or degree % self.kv_heads == 0)  # split or replicated


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
        ModelShape("deepseek-v3", 128, 128, 192, head_dim_v=128, latent=True, source="deepseek-ai/DeepSeek-V3"),
        ModelShape("kimi-k2", 64, 64, 192, head_dim_v=128, latent=True, source="moonshotai/Kimi-K2-Instruct"),
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


def find_model(name_or_path: str) -> ModelShape:
    """Return the named model, or the one of a ``config.json`` where the text is a path."""
    path = Path(name_or_path)
    is_hub_name = re.fullmatch(r"[\w-]+/[\w.-]+(?<!\.json)", name_or_path) is not None and not path.exists()
    is_path = ("/" in name_or_path or name_or_path.endswith(".json")) and not is_hub_name
    return load_config(path) if is_path else get_model(name_or_path)


def get_model(name: str) -> ModelShape:
    """Return the model of that name, in any case.

    Example:
        >>> get_model("Llama-3.1-8B").kv_heads
        8

    Raises:
        UnknownNameError: no such model; the message names the closest ones, or all.
    """
    try:
        return MODELS[name.lower()]
    except KeyError:
        own_name = name.lower().rpartition("/")[2]  # without the owner of a name of the Hub
        close = difflib.get_close_matches(own_name, MODELS, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(MODELS)}"
        raise UnknownNameError(f"model={name!r} is unknown; {hint} (or give the path of a config.json)") from None


def load_config(path: Path) -> ModelShape:
    """Read the attention sizes of a Hugging Face ``config.json``.

    It reads the field names of Llama and its descendants, GPT-2, BLOOM, Falcon, MPT, ChatGLM, DeepSeek's latent
    attention, and a ``text_config`` nested in a multimodal model's. A window that the model never applies is left out:
    ``use_sliding_window`` is false (Qwen 2), no layer is of the kind ``sliding_attention``, or the window is at least
    as long as the longest sequence (Phi 3.5). A model mixes windows where ``layer_types`` says so, or a pattern, or the
    number of its first layers without one.

    Raises:
        UsageError: the file is absent, no file, unreadable or no JSON object.
        InvalidShapeError: a field is missing or has a value that no attention can have.
    """
    return _ConfigFile(path).model()


_HEADS: Final = ("num_attention_heads", "n_head", "n_heads", "num_heads")


class _ConfigFile:
    """Checked reads of one file's fields; every error names the file, the field, its value and what is allowed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fields = self._read()
        nested = self._fields.get("text_config")
        if isinstance(nested, dict) and any(name in nested for name in _HEADS):
            self._fields = nested
        inner = self._fields.get("attn_config")
        self._inner: dict[str, Any] = inner if isinstance(inner, dict) else {}  # MPT

    def model(self) -> ModelShape:
        heads = self._integer(*_HEADS)
        if heads is None:
            raise self._error("has no num_attention_heads; expected the number of query heads")
        kv_heads = self._kv_heads(heads)
        if heads % kv_heads:
            raise self._error(f"has {heads} heads, which is not a multiple of its {kv_heads} KV heads")
        head_dim, head_dim_v = self._head_dims(heads)
        window, kind = self._window(), self._fields.get("model_type")  # the kind says what only the model's code does
        return ModelShape(
            name=str(self._path),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            head_dim_v=head_dim_v,
            window=window,
            softcap=self._softcap(),
            mixes_windows=window is not None and self._mixes_windows(),
            sinks=kind == "gpt_oss",
            alibi=kind == "bloom" or any(each.get("alibi") is True for each in (self._fields, self._inner)),
            latent=self._fields.get("qk_nope_head_dim") is not None,
            source=str(self._path),
        )

    def _read(self) -> dict[str, Any]:
        path = self._path
        try:
            if path.is_dir():
                raise self._error("is a directory; expected the config.json in it", UsageError)
            if not path.exists():
                raise self._error("does not exist; expected a Hugging Face config.json", UsageError)
            if not path.is_file():
                raise self._error("is not a regular file; expected a config.json", UsageError)
            fields = json.loads(path.read_bytes())
        except OSError as error:
            raise self._error(f"cannot be read: {error.strerror}", UsageError) from None
        except UsageError:
            raise
        except (ValueError, RecursionError) as error:  # ValueError: syntax, encoding, or a number beyond all bounds
            raise self._error(f"is not JSON: {error}", UsageError) from None
        if not isinstance(fields, dict):
            raise self._error(f"holds a JSON {type(fields).__name__}; expected an object of fields", UsageError)
        return fields

    def _kv_heads(self, heads: int) -> int:
        # Falcon 7B says multi_query beside a number of KV heads that counts only in its newer architecture.
        if self._fields.get("multi_query") is True and self._fields.get("new_decoder_architecture") is not True:
            return 1
        names = ["num_key_value_heads", "num_kv_heads", "n_head_kv"]
        if self._fields.get("multi_query_attention") is not False:
            names.append("multi_query_group_num")  # ChatGLM
        return self._integer(*names) or self._integer("kv_n_heads", of=self._inner) or heads

    def _head_dims(self, heads: int) -> tuple[int, int]:
        latent = self._integer("qk_nope_head_dim")
        if latent is not None:  # DeepSeek: such configs may also have a head_dim, of the rotary part alone
            return latent + (self._integer("qk_rope_head_dim") or 0), self._integer("v_head_dim") or latent
        head_dim = self._integer("head_dim", "kv_channels", "attention_head_dim")
        if head_dim is None:
            hidden = self._integer("hidden_size", "n_embd", "d_model")
            if hidden is None:
                raise self._error("has neither head_dim nor hidden_size; expected one of them")
            if hidden % heads:
                raise self._error(f"has no head_dim, and hidden_size={hidden} is not a multiple of {heads} heads")
            head_dim = hidden // heads
        return head_dim, head_dim

    def _window(self) -> int | None:
        window, longest = self._integer("sliding_window"), self._integer("max_position_embeddings")
        layers = self._fields.get("layer_types")
        unused = (
            self._fields.get("use_sliding_window") is False
            or (isinstance(layers, list) and "sliding_attention" not in layers)
            or (window is not None and longest is not None and window >= longest)
        )
        return None if unused else window

    def _mixes_windows(self) -> bool:
        layers = self._fields.get("layer_types")
        if isinstance(layers, list):
            return any(kind != "sliding_attention" for kind in layers)
        patterns = [self._fields.get(name) for name in ("sliding_window_pattern", "_sliding_window_pattern")]
        return (
            any(pattern not in (None, 1) for pattern in patterns)  # Gemma 3, Cohere 2, EXAONE 4
            or self._fields.get("max_window_layers") not in (None, 0)  # Qwen 2: the layers below it have none
            or self._fields.get("model_type") == "gemma2"  # every second layer, by its code alone
        )

    def _softcap(self) -> float | None:
        value = self._fields.get("attn_logit_softcapping")
        if value is None:
            return None
        if type(value) not in (int, float) or not 0 < value <= sys.float_info.max:
            raise self._wrong("attn_logit_softcapping", value, "a positive number or null")
        return float(value)

    def _integer(self, *names: str, of: dict[str, Any] | None = None) -> int | None:
        """Return the first of these fields that is present and not null."""
        fields = self._fields if of is None else of
        for name in names:
            value = fields.get(name)
            if value is not None:
                if type(value) is not int or value < 1:
                    raise self._wrong(name, value, "a positive integer")
                return value
        return None

    def _wrong(self, name: str, value: object, allowed: str) -> UsageError:
        return self._error(f"has {name}={reprlib.repr(value)}; expected {allowed}")

    def _error(self, message: str, kind: type[UsageError] = InvalidShapeError) -> UsageError:
        return kind(f"model={str(self._path)!r} {message}")
