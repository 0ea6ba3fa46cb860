"""Families of open models of 2025 and 2026, and the attention of each: what ``tests.test_model_families`` computes.

Heads, widths and features are those of the families' default configurations in transformers 5.23 and vLLM 0.33, or of a
release where the note says so. Lengths are short: no feature begins at a length. The choice of which keys a sparse
attention looks at is the model's own; over its choice attention is computed as over any pages.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from autotune.shape import AttentionShape, PagedShape, Shape
from autotune.varlen_shape import VarlenShape

FULL: Final = {"causal": False}


def dense(heads: int, kv_heads: int, width: int, width_v: int | None = None, **fields: Any) -> AttentionShape:
    """Prompts, and what is no decoder's."""
    sizes = {"batch": 1, "seq_q": 50, "causal": True}
    return AttentionShape(heads=heads, kv_heads=kv_heads, head_dim=width, head_dim_v=width_v or width, **sizes | fields)


def packed(heads: int, width: int, kv_heads: int | None = None, **fields: Any) -> VarlenShape:
    """Images, padded batches, and sequences one after another."""
    sizes = {"batch": 3, "max_seq_q": 60, "mean_seq_q": 30, "causal": False}
    return VarlenShape(heads=heads, kv_heads=kv_heads or heads, head_dim=width, **sizes | fields)


def decode(heads: int, kv_heads: int, width: int, width_v: int | None = None, **fields: Any) -> PagedShape:
    sizes = {"batch": 2, "max_context": 90, "head_dim_v": width_v or width}
    return PagedShape(heads=heads, kv_heads=kv_heads, head_dim=width, **sizes | fields)


def latent(heads: int, width: int = 576, **fields: Any) -> PagedShape:
    """A decode step over latents; a page of one token is a key that an index has chosen."""
    return PagedShape(heads=heads, kv_heads=1, head_dim=width, **{"batch": 2, "max_context": 90} | fields)


def decoder(heads: int, kv_heads: int, width: int, width_v: int | None = None, **fields: Any) -> tuple[Shape, ...]:
    """Prompts, decode steps and chunks between: the attention of a decoder's layer."""
    sizes = (heads, kv_heads, width, width_v)
    return dense(*sizes, **fields), decode(*sizes, **fields), decode(*sizes, seq_q=20, **fields)


@dataclass(frozen=True, slots=True)
class Family:
    """Models of one kind of attention.

    Attributes:
        shapes: what is computed.
        lacks: what is not, and why; a family that lacks a part of its attention counts as not covered.
    """

    name: str
    features: str
    shapes: tuple[Shape, ...]
    lacks: str = ""

    def named(self) -> Iterator[tuple[str, Shape]]:
        for shape in dict.fromkeys(self.shapes):
            yield self.name, shape


FAMILIES: Final = (
    Family("Llama 2, 3", "causal", decoder(32, 8, 128)),
    Family(
        "Llama 4",
        "chunks of 8,192 tokens in three layers of four, towers of 88",
        (*decoder(40, 8, 128), dense(40, 8, 128, attn_mask="boolean"), packed(16, 88)),
    ),
    Family("Mistral, Mixtral, Ministral", "windows of 4,096", decoder(32, 8, 128, window=24)),
    Family(
        "Mistral Small 4, Large 4",
        "latents of 320 and 576; indices of Large 4",
        (dense(32, 32, 128), latent(32, 320), latent(64), latent(64, page_size=1)),
    ),
    Family("Pixtral's tower", "images packed", (packed(16, 64),)),
    Family(
        "Qwen 2, 2.5, 3",
        "causal, groups of 2 to 16",
        (*decoder(16, 8, 128), *decoder(28, 4, 128), *decoder(64, 4, 128)),
    ),
    Family("Towers of Qwen 2.5-VL, 3-VL, 3.5", "images packed, heads of 80 and 72", (packed(16, 80), packed(16, 72))),
    Family("Qwen 3-Next, 3.5", "heads of 256 in one layer of four", decoder(16, 2, 256)),
    Family("Qwen 4-exp", "indices", (dense(16, 2, 256), decode(16, 2, 256), decode(16, 2, 256, page_size=1))),
    Family(
        "Gemma 2, VaultGemma",
        "softcap, windows in every other layer",
        (*decoder(8, 4, 256, softcap=True), *decoder(8, 4, 256, softcap=True, window=24)),
    ),
    Family(
        "Gemma 3, 3n",
        "windows in five layers of six, image blocks that see both ways",
        (
            *decoder(8, 4, 256),
            *decoder(8, 4, 256, window=24),
            dense(8, 4, 256, kv_ends=True),
            dense(8, 4, 256, window=24, kv_ends=True),
        ),
    ),
    Family(
        "Gemma 4",
        "heads of 512 in global layers, image blocks",
        (
            *decoder(8, 4, 256, window=24),
            *decoder(8, 4, 512),
            dense(8, 4, 512, seq_q=1, seq_kv=90),
            dense(8, 4, 512, attn_mask="boolean"),
            dense(8, 4, 256, kv_ends=True),
        ),
    ),
    Family(
        "EmbeddingGemma 1, 2",
        "windows both ways, padding",
        (
            dense(3, 1, 256, window=24, **FULL),
            packed(3, 256, 1, window=24),
            packed(3, 256, 1),
            dense(3, 1, 512, **FULL),
            dense(3, 1, 512, attn_mask="boolean", **FULL),
        ),
    ),
    Family(
        "gpt-oss",
        "sinks, windows of 128 in every other layer",
        (*decoder(64, 8, 64, sinks=True), *decoder(64, 8, 64, sinks=True, window=24)),
    ),
    Family("OpenAI's privacy filter", "sinks, windows both ways", (packed(14, 64, 2, window=24, sinks=True),)),
    Family("DeepSeek V2, V3, R1; Kimi K2", "latents of 576", (dense(128, 128, 192, 128), latent(128), latent(64))),
    Family("DeepSeek V3.2", "latents, indices", (dense(128, 128, 192, 128), latent(128, page_size=1))),
    Family(
        "DeepSeek V4",
        "heads of 512, keys that are values, windows of 128, sinks; compressed keys that an index chooses",
        decoder(64, 1, 512, window=24, sinks=True),
        lacks="one softmax over the window and the chosen compressed keys, which `merge_attention` makes of two",
    ),
    Family("GLM 4, 4.5, 4.6", "causal, groups of 12 and 16", (*decoder(32, 2, 128), *decoder(96, 8, 128))),
    Family("GLM 4.7-Flash, 5", "latents of 576, indices", (dense(20, 20, 256), latent(20), latent(64, page_size=1))),
    Family("Towers of GLM-4V and GLM-OCR", "images packed", (packed(12, 128),)),
    Family(
        "Phi 3, 4, MoE",
        "heads of 96 with windows of 2,047",
        (*decoder(32, 32, 96, window=24), *decoder(40, 10, 128)),
    ),
    Family(
        "OLMo 2, 3",
        "windows of 4,096 in three layers of four",
        (*decoder(32, 32, 128), *decoder(32, 32, 128, window=24)),
    ),
    Family(
        "Granite 3, 4, SWA",
        "a scale of its own; windows of 128 with sinks",
        (*decoder(32, 8, 128), *decoder(20, 4, 128, window=24, sinks=True)),
    ),
    Family("Kimi Linear", "latents of 576 in one layer of four", (dense(32, 32, 192, 128), latent(32))),
    Family(
        "MiniMax 1, M2, M3",
        "causal; blocks of 128 that an index chooses for each KV head",
        (*decoder(48, 8, 128), *decoder(64, 4, 128), decode(16, 1, 128, page_size=128)),
    ),
    Family("Nemotron, Nemotron-H", "causal", (*decoder(48, 8, 128), *decoder(32, 8, 128))),
    Family(
        "Cohere 2", "windows of 4,096 in three layers of four", (*decoder(64, 8, 128), *decoder(64, 8, 128, window=24))
    ),
    Family(
        "EXAONE 4, SmolLM 3, Seed-OSS, Apertus, Solar, Ernie 4.5, Arcee, AFMoE",
        "causal, windows in some",
        (*decoder(16, 4, 128, window=24), *decoder(80, 8, 128)),
    ),
    Family("HY V4", "latents, indices, sinks", (dense(64, 64, 256, sinks=True), latent(64, sinks=True, page_size=1))),
    Family(
        "MiMo-V2-Flash",
        "keys of 192 and values of 128, windows of 128 with sinks",
        (*decoder(64, 4, 192, 128), *decoder(64, 4, 192, 128, window=24, sinks=True)),
    ),
    Family(
        "Step 3.5, LongCat, Ling 2.5, MiniCPM 3",
        "causal; latents of 576 and 288",
        (*decoder(64, 8, 128), dense(40, 40, 96, 64), latent(40, 288), latent(64)),
    ),
    Family(
        "LFM 2, 3; Zamba 2; dots 1",
        "heads of 80, 144 and 160",
        (*decoder(32, 8, 80), *decoder(32, 32, 160), dense(32, 32, 144)),
    ),
    Family(
        "Muse, Laguna, Flint, Inkling",
        "windows of 512 and 2,048, sinks, a bias by relative position",
        (
            *decoder(128, 16, 64, window=24),
            *decoder(32, 4, 128, window=24, sinks=True),
            dense(64, 8, 128, attn_mask="additive"),
        ),
        lacks="Inkling's bias in decode steps: paged attention adds none",
    ),
    Family(
        "BERT, RoBERTa, XLM-R, Nomic, GTE, Jina, EuroBERT",
        "both ways, padding",
        (dense(12, 12, 64, **FULL), packed(12, 64)),
    ),
    Family("ModernBERT", "windows both ways in 14 layers of 22, padding", (packed(12, 64), packed(12, 64, window=17))),
    Family(
        "T5, mT5, UMT5, FLAN",
        "a bias by relative position, a scale of 1, cross attention",
        (
            dense(8, 8, 64, attn_mask="additive", **FULL),
            dense(8, 8, 64, attn_mask="additive"),
            dense(8, 8, 64, seq_q=8, **FULL),
        ),
    ),
    Family(
        "Whisper, Voxtral",
        "1,500 frames, cross attention",
        (dense(20, 20, 64, **FULL), dense(20, 20, 64, seq_q=8, seq_kv=70, **FULL), dense(20, 20, 64)),
    ),
    Family(
        "CLIP, SigLIP, ViT, DINO, SAM",
        "both ways, heads of 72; SAM's bias (not through transformers)",
        (dense(16, 16, 72, **FULL), dense(12, 12, 64, attn_mask="additive", **FULL)),
    ),
    Family(
        "FLUX, Qwen-Image, Hunyuan Video, Wan, SD 3",
        "both ways, a mask of the text",
        (dense(24, 24, 128, **FULL), dense(24, 24, 128, attn_mask="boolean", **FULL), dense(38, 38, 64, **FULL)),
    ),
)
