"""The problems whose winners and sweeps ship, by implementation; ``benchmarks.record`` records them.

Flash attention: FlashAttention's own benchmark, batch x seq = 16,384 and heads x head_dim = 2048, bf16, forward; the
chunks that paged prefill is compared with; whole prompts of a model; and float32. Packed sequences: the mixes of
``benchmarks.packed_sequences``, encoders of text and of images, and sinks. Paged decode: the problems of
``benchmarks.paged``, and the heads of models that are served, from one sequence to a full server. FlexAttention: common
uses, 16,384 tokens each but for one long prompt of Gemma 2. A group's first problems are those the others learn from.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final, NamedTuple

from autotune.models import ModelShape, get_model
from autotune.shape import AttentionShape, PagedShape, Shape
from autotune.varlen_shape import VarlenShape

OPERATION: Final = "flash_attention"
TRITON: Final = "triton"
TOKENS, WIDTH = 16384, 2048
HEAD_DIMS = (64, 128, 256)
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)

LLAMA: Final = get_model("llama-3.1-8b")
TP8: Final = get_model("llama-3.1-70b").tensor_parallel(8)
GEMMA: Final = get_model("gemma-2-9b")
MHA: Final = ModelShape("mha", 32, 32, 128)
GPT_OSS: Final = get_model("gpt-oss-120b")
OTHERS: Final = (get_model("qwen2.5-7b"), GPT_OSS, ModelShape("wide", 32, 8, 256))
BERT: Final = ModelShape("bert-base", 12, 12, 64, causal=False, source="google-bert/bert-base-uncased")
MODERNBERT: Final = ModelShape("modernbert-base", 12, 12, 64, causal=False, source="answerdotai/ModernBERT-base")
TOWER: Final = ModelShape("qwen2.5-vl tower", 16, 16, 80, causal=False, source="Qwen/Qwen2.5-VL-7B-Instruct")
PACKED_TOKENS: Final = 65_536
# The longest sequence over the mean of the mixes of ``benchmarks.packed_sequences``, rounded to a power of two.
LONGEST: Final = {16: 4, 64: 4, 256: 8, 512: 8}
CHUNK: Final = 2048  # new tokens of a chunked prefill
CACHED: Final = (0, 30720)  # tokens before them
MANY_KEYS: Final = 32768
FEW_QUERIES: Final = (1, 16, 64)
FEW_SEQUENCES: Final = (1, 4)
# Batch, heads, length, causal: what the suites of comparisons measure in float32 (docs/suites.md).
EXACT: Final = (
    *((1, 8, 1024, False), (1, 8, 512, False), (1, 8, 128, False)),
    *((1, 8, 2048, True), (2, 16, 1024, True), (4, 32, 512, True), (2, 16, 256, True), (1, 8, 128, True)),
)


class Cell(NamedTuple):
    """One problem, and the group of neighbours that it is recorded among."""

    group: str
    shape: Shape

    def __str__(self) -> str:
        return f"{self.group}: {self.shape}"


def benchmark_shape(head_dim: int, causal: bool, seq: int) -> AttentionShape:
    """Return one cell of FlashAttention's benchmark."""
    return AttentionShape(batch=TOKENS // seq, heads=WIDTH // head_dim, seq_q=seq, head_dim=head_dim, causal=causal)


def paged_shape(model: ModelShape, batch: int, context: int, **fields: Any) -> PagedShape:
    """Return a decode step of a model's layers that have no window."""
    return model.shape(PagedShape, batch=batch, max_context=context, **fields)


def ragged(model: ModelShape) -> PagedShape:
    """Return 64 sequences whose lengths are uniform between 1 and 8192."""
    return paged_shape(model, 64, 8192, mean_context=4096)


BESIDE_SHORT: Final = paged_shape(LLAMA, 64, 65536, mean_context=1500)  # one of 65,536 tokens among 63 short ones


def prefill_shape(cached: int) -> PagedShape:
    """Return one chunk after so many cached tokens."""
    return paged_shape(LLAMA, 1, cached + CHUNK, seq_q=CHUNK)


def mixed_shape() -> PagedShape:
    """Return 63 sequences that decode and one chunk of about CHUNK tokens."""
    return replace(ragged(LLAMA), seq_q=CHUNK // 64 + 1)


def dense_shape(model: ModelShape, seq: int, **fields: Any) -> AttentionShape:
    """Return attention of a model's layers that have no window, without pages."""
    return model.shape(AttentionShape, **{"batch": 1, "seq_q": seq} | fields)


def dense_chunk(cached: int) -> AttentionShape:
    """Return the attention of ``prefill_shape`` over contiguous tensors."""
    return dense_shape(LLAMA, CHUNK, seq_kv=cached + CHUNK)


def dense_prefill(seq: int) -> AttentionShape:
    """Return whole prompts of one model, as ``autotune bench --model`` measures them."""
    return dense_shape(LLAMA, seq, batch=TOKENS // seq)


def short_queries(batch: int, queries: int) -> AttentionShape:
    """Return so many queries of each sequence on many keys, without a mask."""
    return dense_shape(LLAMA, queries, batch=batch, seq_kv=MANY_KEYS, causal=False)


def packed(model: ModelShape, batch: int, longest: int, mean: int, **fields: Any) -> VarlenShape:
    """Return packed sequences in a model's layers."""
    return model.shape(VarlenShape, **{"batch": batch, "max_seq_q": longest, "mean_seq_q": mean} | fields)


def packed_prompts(sequences: int, *, causal: bool) -> VarlenShape:
    """Return a mix of prompts of very different lengths."""
    mean = PACKED_TOKENS // sequences
    return packed(LLAMA, sequences, LONGEST[sequences] * mean, mean, causal=causal)


def _cells(group: str, shapes: Iterable[Shape]) -> tuple[Cell, ...]:
    return tuple(Cell(group, shape) for shape in shapes)


def _pages(group: str, model: ModelShape, *sizes: tuple[int, int], **fields: Any) -> tuple[Cell, ...]:
    return _cells(group, (paged_shape(model, batch, context, **fields) for batch, context in sizes))


WINNERS: Final = {
    "flash_attention/triton": (
        *(
            Cell("causal" if causal else "full", benchmark_shape(head_dim, causal, seq))
            for head_dim in HEAD_DIMS
            for causal in (False, True)
            for seq in LENGTHS
        ),
        *_cells("chunk", map(dense_chunk, CACHED)),
        *_cells("llama", map(dense_prefill, (1024, 4096, 16384))),
        *_cells(
            "float32",
            (
                AttentionShape(batch=batch, heads=heads, seq_q=seq, head_dim=64, dtype="float32", causal=causal)
                for batch, heads, seq, causal in EXACT
            ),
        ),
    ),
    "flash_attention/gluon_hopper": (
        *(
            Cell("causal" if causal else "full", benchmark_shape(head_dim, causal, seq))
            for lengths in ((512, 1024, 4096, 16384), (2048, 8192))
            for head_dim in HEAD_DIMS
            for causal in (False, True)
            for seq in lengths
        ),
        *_cells("chunk", map(dense_chunk, CACHED)),
        *_cells("llama", map(dense_prefill, (1024, 4096, 16384))),
    ),
    "flash_attention/triton_split_keys": _cells(
        "short", (short_queries(batch, queries) for batch in FEW_SEQUENCES for queries in FEW_QUERIES)
    ),
    "flash_attention/flex": (
        *_cells("llama", map(dense_prefill, (1024, 4096))),
        Cell("full", benchmark_shape(128, False, 4096)),
        *_cells("causal", (benchmark_shape(head_dim, True, 2048) for head_dim in (64, 256))),
        Cell("window", replace(dense_prefill(8192), window=1024)),
        Cell("softcap", dense_shape(GEMMA, 4096)),
        Cell("encoder", AttentionShape(batch=32, heads=12, seq_q=512, head_dim=64)),  # BERT base's heads and length
    ),
    "flash_attention_varlen/triton": (
        *_cells("prompts", (packed_prompts(sequences, causal=True) for sequences in (64, 16, 256, 512))),
        *_cells("encoder", (packed_prompts(sequences, causal=False) for sequences in (64, 16, 256, 512))),
        *_cells("text", (packed(BERT, 256, 512, 128), packed(BERT, 64, 512, 256))),
        Cell("text", packed(MODERNBERT, 64, 2048, 512, window=65)),
        *_cells("images", (packed(TOWER, 16, 4096, 1024), packed(TOWER, 4, 16384, 4096))),
        *_cells("sinks", (packed(GPT_OSS, 64, 4096, 1024), packed(GPT_OSS, 64, 4096, 1024, window=128))),
    ),
    "paged_decode/triton": (
        *_pages("uniform", LLAMA, (64, 4096), (16, 4096)),
        *_cells("ragged", (ragged(LLAMA), BESIDE_SHORT)),
        *_pages("uniform", LLAMA, (64, 2048)),
        *_pages("one", LLAMA, *((1, context) for context in (8192, 4096, 32768, 131072, 2048, 512))),
        *_pages("uniform", LLAMA, (256, 2048), (16, 512)),
        *_pages("pages", LLAMA, (64, 4096), page_size=128),
        *_pages("pages", LLAMA, (64, 4096), page_size=1),
        *_pages("pages", LLAMA, (128, 8192), (1, 8192), page_size=64),
        *_pages("quantized", LLAMA, (64, 4096), kv_dtype="float8_e4m3fn"),
        *_pages("quantized", LLAMA, (64, 4096), kv_dtype="int8"),
        *_pages("quantized", LLAMA, (64, 4096), kv_dtype="float8_e5m2"),
        *_pages("quantized", LLAMA, (1, 8192), kv_dtype="float8_e4m3fn"),
        *_pages("tp8", TP8, (64, 4096)),
        Cell("tp8", ragged(TP8)),
        *_pages("tp8", TP8, (1, 8192)),
        *_pages("mha", MHA, (32, 4096), page_size=64),
        *_pages("mha", MHA, (16, 4096)),
        *(cell for model in OTHERS for cell in _pages(model.name, model, (64, 4096), (1, 8192))),
    ),
    "paged_prefill/triton": (*_cells("chunk", map(prefill_shape, CACHED)), Cell("mixed", mixed_shape())),
}
SWEEPS: Final = {
    "flash_attention/triton": tuple(  # a short and a long one of each kind
        Cell("causal" if causal else "full", benchmark_shape(head_dim, causal, seq))
        for head_dim in HEAD_DIMS
        for causal, at_128, at_others in ((False, (1024, 8192), (1024, 16384)), (True, (1024, 4096), (512, 4096)))
        for seq in (at_128 if head_dim == 128 else at_others)
    ),
    "flash_attention/gluon_hopper": tuple(  # of those; README's first
        Cell("causal" if causal else "full", benchmark_shape(head_dim, causal, seq))
        for head_dim, causal, lengths in (
            (128, True, (1024, 4096)),
            (128, False, (1024, 8192)),
            (64, True, (512, 4096)),
        )
        for seq in lengths
    ),
    "flash_attention/triton_split_keys": (),
    "flash_attention/flex": (),
    "flash_attention_varlen/triton": (),
    "paged_decode/triton": (Cell("tp8", ragged(TP8)), *_pages("tp8", TP8, (1, 8192))),
    "paged_prefill/triton": (),
}
