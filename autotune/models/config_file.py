"""Attention sizes read from a Hugging Face ``config.json``."""

import json
import os.path
import reprlib
import sys
from pathlib import Path
from typing import Any, Final

from autotune.errors import InvalidShapeError, UsageError
from autotune.models.encoders import encoder_decoder_reason, is_causal, window_both_ways
from autotune.models.model import ModelShape


def load_config(path: Path) -> ModelShape:
    """Read the attention sizes of a Hugging Face ``config.json``, or of the one in a folder.

    It reads the field names of Llama and its descendants, GPT-2, BLOOM, Falcon, MPT, ChatGLM, DeepSeek's latent
    attention, and a ``text_config`` nested in a multimodal model's. A window that the model never applies is left out:
    ``use_sliding_window`` is false (Qwen 2), no layer is of the kind ``sliding_attention``, or the window is at least
    as long as the longest sequence (Phi 3.5). A model mixes windows where ``layer_types`` says so, or a pattern, or the
    number of its first layers without one. A model is not causal where its ``model_type`` is an encoder's and
    ``is_decoder`` is not true, where it is trained to fill in what is masked, and where the file says so.

    Raises:
        UsageError: the file is absent, no file, unreadable or no JSON object.
        InvalidShapeError: a field is missing or has a value that no attention can have, or the model is an encoder and
            a decoder, which have no one attention.
    """
    # os.path, since pathlib's own raises where a path is too long.
    return _ConfigFile(path / "config.json" if os.path.isdir(path) else path).model()


_HEADS: Final = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_EVERY: Final = "global_attn_every_n_layers"  # ModernBERT: those have no window


class _ConfigFile:
    """Checked reads of one file's fields; every error names the file, the field, its value and what is allowed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fields = self._read()
        self._require_one_stack()
        self._architectures = self._fields.get("architectures")
        nested = self._fields.get("text_config")
        if isinstance(nested, dict) and any(name in nested for name in _HEADS):
            self._fields = nested
            self._require_one_stack()
            self._architectures = nested.get("architectures") or self._architectures
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
        causal = is_causal(self._fields, self._architectures)
        window = self._window(causal)
        kind = self._fields.get("model_type")  # it says what only the model's code does
        return ModelShape(
            name=str(self._path),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            head_dim_v=head_dim_v,
            window=window,
            softcap=self._softcap(),
            mixes_windows=window is not None and self._mixes_windows(),
            causal=causal,
            sinks=kind == "gpt_oss",
            alibi=kind == "bloom" or any(each.get("alibi") is True for each in (self._fields, self._inner)),
            latent=self._fields.get("qk_nope_head_dim") is not None,
            latent_widths=self._latent_widths(),
            source=str(self._path),
        )

    def _read(self) -> dict[str, Any]:
        path = self._path
        try:
            if path.is_dir():
                raise self._error("is a directory; expected a file", UsageError)
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

    def _require_one_stack(self) -> None:
        if (reason := encoder_decoder_reason(self._fields)) is not None:
            raise self._error(
                f"is an encoder-decoder ({reason}), whose encoder, decoder and cross attention differ; "
                "expected a decoder or an encoder alone, or each one's heads, head_dim and causal in place of a model"
            )

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
            hidden = self._integer("hidden_size", "n_embd", "d_model", "dim")
            if hidden is None:
                raise self._error("has neither head_dim nor hidden_size; expected one of them")
            if hidden % heads:
                raise self._error(f"has no head_dim, and hidden_size={hidden} is not a multiple of {heads} heads")
            head_dim = hidden // heads
        return head_dim, head_dim

    def _latent_widths(self) -> tuple[int, int] | None:
        rank = self._integer("kv_lora_rank")
        if rank is None or self._fields.get("qk_nope_head_dim") is None:
            return None
        return rank + (self._integer("qk_rope_head_dim") or 0), rank

    def _window(self, causal: bool) -> int | None:
        window, longest = self._stated_window(), self._integer("max_position_embeddings")
        if window is not None and not causal:
            window = window_both_ways(window, self._fields)
        layers = self._fields.get("layer_types")
        unused = (
            self._fields.get("use_sliding_window") is False
            or (isinstance(layers, list) and "sliding_attention" not in layers)
            or (not isinstance(layers, list) and self._fields.get(_EVERY) == 1)
            or (window is not None and longest is not None and window >= longest)
        )
        return None if unused else window

    def _stated_window(self) -> int | None:
        both_sides = self._integer("local_attention")  # ModernBERT and its decoder, whose code takes half of it
        return self._integer("sliding_window") if both_sides is None else both_sides // 2 or None

    def _mixes_windows(self) -> bool:
        layers = self._fields.get("layer_types")
        if isinstance(layers, list):
            return any(kind != "sliding_attention" for kind in layers)
        patterns = [self._fields.get(name) for name in ("sliding_window_pattern", "_sliding_window_pattern")]
        return (
            any(pattern not in (None, 1) for pattern in patterns)  # Gemma 3, Cohere 2, EXAONE 4
            or self._fields.get("max_window_layers") not in (None, 0)  # Qwen 2: the layers below it have none
            or self._fields.get("local_attention") is not None  # ModernBERT: the first layer has none
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
