"""Hugging Face configs of models that attend both ways, and of those that are two stacks at once."""

from collections.abc import Mapping
from typing import Any, Final

# Those whose ``modeling_<model>.py`` in transformers 5.24 has ``is_causal = False``, a ``create_bidirectional_mask`` or
# (DeBERTa, LayoutLM, WavLM) no causal mask at all; some of them, by ``is_decoder``, attend to the past alone. ``new``
# is the code of Alibaba-NLP/new-impl (GTE), ``neobert`` that of chandar-lab/NeoBERT.
ENCODERS: Final = frozenset(
    {
        # text
        *("bert", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "camembert", "distilbert"),
        *("albert", "electra", "deberta", "deberta-v2", "ernie", "esm", "ibert", "layoutlm", "megatron-bert", "mpnet"),
        *("rembert", "roformer", "modernbert", "nomic_bert", "eurobert", "jina_embeddings_v3", "gte", "new", "neobert"),
        *("embedding_gemma2", "embedding_gemma2_text", "siglip_text_model", "siglip2_text_model"),
        # images
        *("vit", "deit", "beit", "ijepa", "vit_mae", "dinov2", "dinov2_with_registers", "dinov3_vit"),
        *("clip_vision_model", "siglip_vision_model", "siglip2_vision_model"),
        # sound
        *("wav2vec2", "hubert", "wavlm", "audio-spectrogram-transformer"),
    }
)

# Those whose config of transformers 5.24 has ``is_encoder_decoder`` by default, for files that leave it out.
ENCODER_DECODERS: Final = frozenset(
    {
        *("t5", "mt5", "umt5", "longt5", "switch_transformers", "t5gemma", "t5gemma2", "pop2piano", "pix2struct"),
        *("bart", "mbart", "plbart", "mvp", "led", "pegasus", "pegasus_x", "bigbird_pegasus", "marian", "m2m_100"),
        *("nllb-moe", "blenderbot", "blenderbot-small", "prophetnet", "fsmt", "whisper", "moonshine", "speech_to_text"),
        *("encoder-decoder", "vision-encoder-decoder", "speech-encoder-decoder"),
    }
)


def is_causal(fields: Mapping[str, Any], architectures: object) -> bool:
    """Return True if a model's queries see the past alone; ``architectures`` are those that its config names."""
    bidirectional = fields.get("use_bidirectional_attention")  # Gemma; "vision" is of its images alone
    if bidirectional is True or bidirectional == "all" or fields.get("is_causal") is False:
        return False
    if fields.get("is_decoder") is True:
        return True
    return not _is_one_of(ENCODERS, fields.get("model_type")) and not _is_masked_model(architectures)


def encoder_decoder_reason(fields: Mapping[str, Any]) -> str | None:
    """Return the field that says that a model is an encoder and a decoder, with its value; None for other models."""
    if fields.get("is_encoder_decoder") is True:
        return "is_encoder_decoder=true"
    kind = fields.get("model_type")
    return f"model_type={kind!r}" if _is_one_of(ENCODER_DECODERS, kind) else None


def window_both_ways(window: int, fields: Mapping[str, Any]) -> int:
    """Return the window of a shape that is not causal, for the one that a config states of such a model.

    Ours leaves distances below it. The bidirectional masks of transformers keep those up to the window, so it is one
    more (``sliding_window_bidirectional_overlay``); Gemma 3 and 4 state the keys of both sides together, and halve them
    as their flag is on (``Gemma3TextConfig``).
    """
    is_gemma = str(fields.get("model_type")).startswith(("gemma3", "gemma4"))
    is_total = is_gemma and fields.get("use_bidirectional_attention") in (True, "all")
    return (window // 2 if is_total else window) + 1


def _is_one_of(kinds: frozenset[str], kind: object) -> bool:
    return isinstance(kind, str) and kind in kinds


def _is_masked_model(architectures: object) -> bool:
    return isinstance(architectures, list) and any(str(each).endswith("ForMaskedLM") for each in architectures)
