"""The space of paged prefill over pages laid side by side: that of packed sequences in Gluon for Hopper."""

from pathlib import Path
from typing import Final

from autotune.device import Device
from autotune.dtypes import ITEM_BYTES
from autotune.errors import InvalidShapeError
from autotune.implementation import Implementation
from autotune.search_spaces import bounds
from autotune.search_spaces.flash_attention_varlen import gluon_hopper as packed
from autotune.search_spaces.paged_prefill.operation import query_counts, unsupported
from autotune.search_spaces.sources import kernel_files
from autotune.shape import PagedShape
from autotune.space import Config, Space
from autotune.varlen_shape import MAX_WIDTH, VarlenShape

# Of the keys and values of a call, which are copied before they are read: 16 sequences of 16,384 tokens, 8 KV heads of
# 128. Beyond it the kernel that reads pages takes the call.
MOST_BYTES: Final = 2**30
# Of queries for each key, times the query heads of its KV head: a copy reads a key, writes it and reads it again, which
# takes about as long as the products of 200 rows gain. By formula, from 4.3 TB/s, and 666 TFLOP/s where the kernel that
# reads pages has 476: a chunk of 2,048 queries on 8,192 keys, 32/8 heads of 128 (NVIDIA H200, 2026-11-27, ``search``).
LEAST_ROWS: Final = 256
GATHERED_BYTES: Final = 2  # of an element: the dtypes of queries that the kernel takes


def gathered_bytes(batch: int, tokens: int, kv_heads: int, widths: int) -> int:
    """Return the bytes of so many tokens of each sequence side by side, keys and values together ``widths`` wide."""
    return batch * tokens * kv_heads * widths * GATHERED_BYTES


def unsupported_gathered(shape: PagedShape) -> str | None:
    """Return why the kernel computes a shape on no device, or None."""
    if (problem := unsupported(shape)) is not None:
        return problem
    if ITEM_BYTES[shape.dtype] != GATHERED_BYTES:
        return f"paged_prefill/gluon_hopper computes 16 bits, not {shape.dtype}"
    if shape.kv_dtype == "int8":
        return "paged_prefill/gluon_hopper takes a scale for each KV head, and caches of int8 have one for each token"
    if shape.alibi:
        return "paged_prefill/gluon_hopper has no ALiBi slopes"
    for name in ("head_dim", "head_dim_v"):
        width = getattr(shape, name)
        if width > MAX_WIDTH:
            return f"paged_prefill/gluon_hopper takes heads of up to {MAX_WIDTH}, not {name}={width}"
    taken = gathered_bytes(shape.batch, shape.max_context, shape.kv_heads, shape.head_dim + shape.head_dim_v)
    if taken > MOST_BYTES:
        return f"paged_prefill/gluon_hopper copies {MOST_BYTES} bytes of keys and values at most, not {taken}"
    return None


def supports(shape: PagedShape, device: Device) -> str | None:
    """Return why the kernel does not compute a shape on a device, or None."""
    if not device.has("wgmma"):
        return f"paged_prefill/gluon_hopper needs products of warp groups, which {device.arch} does not have"
    if (rows := min(query_counts(shape)) * shape.group) < LEAST_ROWS:
        return f"paged_prefill/gluon_hopper copies keys, which pays from {LEAST_ROWS} rows of queries, not for {rows}"
    return unsupported_gathered(shape) or bounds.lacks_cache_type(shape, device)


def reject(config: Config, shape: PagedShape, device: Device) -> str | None:
    """Return why a config cannot pay for this shape on this device, by bounds that need no compiler, or None."""
    return packed.reject(config, as_packed(shape), device)


def default(shape: PagedShape, device: Device) -> Config:
    """Return the default of packed sequences of these lengths."""
    if (problem := supports(shape, device)) is not None:
        raise InvalidShapeError(problem)
    return packed.default(as_packed(shape), device)


def as_packed(shape: PagedShape) -> VarlenShape:
    """Return the problem over keys that lie side by side."""
    names = ("batch", "heads", "kv_heads", "head_dim", "head_dim_v", "dtype", "causal", "window", "softcap", "sinks")
    counts = query_counts(shape)
    return VarlenShape(
        **{name: getattr(shape, name) for name in names},
        max_seq_q=max(counts),
        mean_seq_q=-(-sum(counts) // len(counts)),
        max_seq_kv=shape.max_context,
        mean_seq_kv=shape.mean_context,
    )


IMPLEMENTATION: Final = Implementation(
    name="gluon_hopper",
    operation="paged_prefill",
    space=Space(packed.PARAMETERS, reject, default),
    kernel="autotune.kernels.paged_prefill.gluon_hopper:KERNEL",
    sources=(
        *kernel_files("paged_prefill/gluon_hopper", "gather", "launch"),
        *kernel_files("paged_prefill/triton", "quantized"),
        *kernel_files("paged_cache", "layout"),
        *packed.IMPLEMENTATION.sources,
        Path(__file__),  # of what a copy may take
    ),
    entry=("launch_gathered",),
    supports=supports,
    can_interpret=False,
)
