"""Paged decode as an operation: its shapes, and its cost by formula."""

from collections import Counter
from dataclasses import replace
from functools import lru_cache
from typing import Final

from autotune.dtypes import KV_ITEM_BYTES
from autotune.operation import Cost, Operation
from autotune.search_spaces.flash_attention.operation import paged_cost
from autotune.search_spaces.lengths import spread_lengths
from autotune.shape import PagedShape

MAX_QUERIES: Final = 8  # of a sequence in one step: speculative decoding asks for a few
# Of batch-invariant picks. Few long sequences are split, which short and many ones do not need.
USUAL_BATCH, USUAL_CONTEXT = 8, 8192
COSTS: Final = 1024  # shapes whose cost is kept: that of a batch of 1024 lengths takes milliseconds


def unsupported(shape: PagedShape) -> str | None:
    """Return why no kernel computes a shape, or None."""
    if not shape.causal:
        return "causal=False is not supported by paged_decode; paged_prefill computes it, of any number of queries"
    if shape.seq_q > MAX_QUERIES:
        return f"seq_q={shape.seq_q} is not supported by paged_decode; expected 1 to {MAX_QUERIES}"
    return unsupported_cache("paged_decode", shape)


def unsupported_cache(operation: str, shape: PagedShape) -> str | None:
    """Return why no kernel of an operation reads a cache of that type, or None: that of the queries, or of one byte."""
    allowed = [shape.dtype]
    if shape.is_latent and shape.dtype == "float32":
        return "dtype='float32' is not supported for latents, which leave it no registers; expected float16 or bfloat16"
    if shape.is_latent and shape.kv_dtype != shape.dtype:
        return f"kv_dtype={shape.kv_dtype!r} is not supported for latents; expected {shape.dtype}, the dtype of queries"
    if shape.dtype != "float32":
        allowed += [name for name, size in KV_ITEM_BYTES.items() if size == 1]
    if shape.kv_dtype in allowed:
        return None
    return (
        f"kv_dtype={shape.kv_dtype!r} is not supported by {operation} with dtype={shape.dtype!r}; "
        f"expected {', '.join(allowed)}"
    )


def why_latent(shape: PagedShape) -> str | None:
    """Return the reason why an implementation of keys and values apart does not compute a shape, or None."""
    if not shape.is_latent:
        return None
    return f"head_dim={shape.head_dim} is of latents, which are keys and values at once: paged_decode/triton_latent"


def lengths_of(shape: PagedShape) -> tuple[int, ...]:
    """Return the keys of each sequence, ascending; those of random inputs are these in a random order.

    Only the problems that numbers are checked on have other ones.
    """
    return spread_lengths(shape.batch, shape.max_context, shape.mean_context)


@lru_cache(maxsize=COSTS)
def cost(shape: PagedShape) -> Cost:
    """Return the FLOPs of both products over the visible keys, and the bytes of those, their values, q and the output.

    It is that of the lengths of ``lengths_of``: a window sees less of uneven ones than of as many of their mean. 2
    FLOPs a multiply-add, softmax not counted, as in ``flash_attention``.
    """
    counts = Counter(lengths_of(shape)).items()
    return paged_cost(shape, [(count, shape.seq_q, length) for length, count in counts])


def usual_batch(shape: PagedShape) -> PagedShape:
    """Return the problem of a usual batch, of sequences of one usual length."""
    return replace(shape, batch=USUAL_BATCH, max_context=USUAL_CONTEXT, mean_context=USUAL_CONTEXT)


OPERATION: Final = Operation(
    name="paged_decode",
    shape_class=PagedShape,
    cost=cost,
    definition="autotune.kernels.paged_decode.definition:DEFINITION",
    baselines="autotune.kernels.baselines.lists:OF_PAGED_DECODE",
    unsupported=unsupported,
    usual_batch=usual_batch,
)
