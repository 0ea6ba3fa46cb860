"""The problems whose winners and sweeps ship, by implementation; ``benchmarks.record`` records them.

Flash attention: FlashAttention's own benchmark, batch x seq = 16,384 and heads x head_dim = 2048, bf16, forward; the
chunks that paged prefill is compared with; whole prompts of a model; and float32. Paged decode: what
``benchmarks.paged`` compares, and the heads of models that are served, from one sequence to a full server.
FlexAttention: what its users run, 16,384 tokens each but for one long prompt of Gemma 2. A group's first problems are
those the others learn from.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

from autotune.models import ModelShape, get_model
from autotune.shape import AttentionShape, PagedShape, Shape

TOKENS, WIDTH = 16384, 2048
HEAD_DIMS = (64, 128, 256)
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)

LLAMA: Final = get_model("llama-3.1-8b")
TP8: Final = get_model("llama-3.1-70b").tensor_parallel(8)
GEMMA: Final = get_model("gemma-2-9b")
MHA: Final = ModelShape("mha", 32, 32, 128)
OTHERS: Final = (get_model("qwen2.5-7b"), get_model("gpt-oss-120b"), ModelShape("wide", 32, 8, 256))
CHUNK: Final = 2048  # new tokens of a chunked prefill
CACHED: Final = 30720  # tokens before them
PREFILLS: Final = (1024, 4096, 16384)
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


def grid_shape(head_dim: int, causal: bool, seq: int) -> AttentionShape:
    """One cell of flash attention's grid."""
    return AttentionShape(
        batch=TOKENS // seq, heads=WIDTH // head_dim, seq_q=seq, head_dim=head_dim, dtype="bfloat16", causal=causal
    )


def paged_shape(model: ModelShape, batch: int, context: int, **fields: Any) -> PagedShape:
    """A decode step of a model's layers that have no window."""
    return PagedShape(
        batch=batch,
        heads=model.heads,
        kv_heads=model.kv_heads,
        max_context=context,
        head_dim=model.head_dim,
        dtype="bfloat16",
        sinks=model.sinks,
        **fields,
    )


def ragged(model: ModelShape) -> PagedShape:
    """64 sequences whose lengths are uniform between 1 and 8192."""
    return paged_shape(model, 64, 8192, mean_context=4096)


BESIDE_SHORT: Final = paged_shape(LLAMA, 64, 65536, mean_context=1500)  # one of 65,536 tokens among 63 short ones


def prefill_shape(cached: int) -> PagedShape:
    """One chunk after so many cached tokens."""
    return replace(paged_shape(LLAMA, 1, cached + CHUNK), seq_q=CHUNK)


def mixed_shape() -> PagedShape:
    """63 sequences that decode and one chunk of about CHUNK tokens."""
    return replace(paged_shape(LLAMA, 64, 8192, mean_context=4096), seq_q=CHUNK // 64 + 1)


def dense_chunk(cached: int) -> AttentionShape:
    """The same attention over contiguous tensors."""
    return AttentionShape(
        batch=1,
        heads=LLAMA.heads,
        kv_heads=LLAMA.kv_heads,
        seq_q=CHUNK,
        seq_kv=cached + CHUNK,
        head_dim=LLAMA.head_dim,
        causal=True,
    )


def dense_prefill(seq: int) -> AttentionShape:
    """Whole prompts of one model, as ``autotune bench --model`` measures them."""
    return AttentionShape(
        batch=TOKENS // seq, heads=LLAMA.heads, kv_heads=LLAMA.kv_heads, seq_q=seq, head_dim=LLAMA.head_dim, causal=True
    )


def _flash_cells() -> Iterator[Cell]:
    for head_dim in HEAD_DIMS:
        for causal in (False, True):
            for seq in LENGTHS:
                yield Cell("causal" if causal else "full", grid_shape(head_dim, causal, seq))
    yield from (Cell("chunk", dense_chunk(cached)) for cached in (0, CACHED))
    yield from (Cell("llama", dense_prefill(seq)) for seq in PREFILLS)
    for batch, heads, seq, causal in EXACT:
        shape = AttentionShape(batch=batch, heads=heads, seq_q=seq, head_dim=64, dtype="float32", causal=causal)
        yield Cell("float32", shape)


def _paged_cells() -> Iterator[Cell]:
    yield from (Cell("uniform", paged_shape(LLAMA, batch, 4096)) for batch in (64, 16))
    yield Cell("ragged", ragged(LLAMA))
    yield Cell("ragged", BESIDE_SHORT)
    yield Cell("uniform", paged_shape(LLAMA, 64, 2048))
    for context in (8192, 4096, 32768, 131072, 2048, 512):
        yield Cell("one", paged_shape(LLAMA, 1, context))
    yield Cell("uniform", paged_shape(LLAMA, 256, 2048))
    yield Cell("uniform", paged_shape(LLAMA, 16, 512))
    yield Cell("pages", paged_shape(LLAMA, 64, 4096, page_size=128))
    yield Cell("pages", paged_shape(LLAMA, 64, 4096, page_size=1))
    yield Cell("pages", paged_shape(LLAMA, 128, 8192, page_size=64))
    yield Cell("pages", paged_shape(LLAMA, 1, 8192, page_size=64))
    for kv_dtype in ("float8_e4m3fn", "int8", "float8_e5m2"):
        yield Cell("quantized", paged_shape(LLAMA, 64, 4096, kv_dtype=kv_dtype))
    yield Cell("quantized", paged_shape(LLAMA, 1, 8192, kv_dtype="float8_e4m3fn"))
    yield Cell("tp8", paged_shape(TP8, 64, 4096))
    yield Cell("tp8", ragged(TP8))
    yield Cell("tp8", paged_shape(TP8, 1, 8192))
    yield Cell("mha", paged_shape(MHA, 32, 4096, page_size=64))
    yield Cell("mha", paged_shape(MHA, 16, 4096))
    for model in OTHERS:
        yield Cell(model.name, paged_shape(model, 64, 4096))
        yield Cell(model.name, paged_shape(model, 1, 8192))


def _flex_cells() -> Iterator[Cell]:
    """Prompts with and without a window, a softcap, the usual head dims with and without a mask, an encoder."""
    yield from (Cell("llama", dense_prefill(seq)) for seq in (1024, 4096))
    yield Cell("full", grid_shape(128, False, 4096))
    yield from (Cell("causal", grid_shape(head_dim, True, 2048)) for head_dim in (64, 256))
    yield Cell("window", replace(dense_prefill(8192), window=1024))
    softcap = AttentionShape(
        batch=1,
        heads=GEMMA.heads,
        kv_heads=GEMMA.kv_heads,
        seq_q=4096,
        head_dim=GEMMA.head_dim,
        causal=True,
        softcap=True,
    )
    yield Cell("softcap", softcap)
    yield Cell("encoder", AttentionShape(batch=32, heads=12, seq_q=512, head_dim=64))  # BERT base's heads and length


def _flash_sweeps() -> Iterator[Cell]:
    """A short and a long one of each kind."""
    for head_dim in HEAD_DIMS:
        yield from (
            Cell("full", grid_shape(head_dim, False, seq)) for seq in (1024, 8192 if head_dim == 128 else 16384)
        )
        yield from (Cell("causal", grid_shape(head_dim, True, seq)) for seq in (1024 if head_dim == 128 else 512, 4096))


OPERATION: Final = "flash_attention"
TRITON: Final = "triton"
WINNERS: Final = {
    "flash_attention/triton": tuple(_flash_cells()),
    "flash_attention/flex": tuple(_flex_cells()),
    "paged_decode/triton": tuple(_paged_cells()),
    "paged_prefill/triton": (
        *(Cell("chunk", prefill_shape(cached)) for cached in (0, CACHED)),
        Cell("mixed", mixed_shape()),
    ),
}
SWEEPS: Final = {
    "flash_attention/triton": tuple(_flash_sweeps()),
    "flash_attention/flex": (),
    "paged_decode/triton": (Cell("tp8", ragged(TP8)), Cell("tp8", paged_shape(TP8, 1, 8192))),
    "paged_prefill/triton": (),
}
