"""Paged prefill as an operation: its shapes, the spread of queries over a batch, and its cost by formula."""

from collections import Counter
from dataclasses import replace
from functools import lru_cache
from typing import Final

from autotune.operation import Cost, Operation
from autotune.search_spaces.flash_attention.operation import paged_cost
from autotune.search_spaces.lengths import spread_lengths
from autotune.search_spaces.paged_decode.operation import COSTS, USUAL_CONTEXT, unsupported_cache
from autotune.shape import PagedShape

USUAL_CHUNK: Final = 2048  # of batch-invariant picks


def unsupported(shape: PagedShape) -> str | None:
    """Return why no kernel computes a shape, or None."""
    if shape.is_latent:
        return (
            f"head_dim={shape.head_dim} is of latents, which paged_prefill does not read; expected keys and values "
            "made of them, or paged_decode"
        )
    return unsupported_cache("paged_prefill", shape)


def query_counts(shape: PagedShape) -> tuple[int, ...]:
    """Return the new queries of each sequence: ``seq_q``, or in a ragged batch one each, and all others in the last.

    That is a mixed batch of serving: one chunk, no longer than ``max_context``, among sequences that decode.
    """
    if shape.batch == 1 or shape.mean_context == shape.max_context:
        return (shape.seq_q,) * shape.batch
    others = shape.batch - 1
    return (*(1,) * others, min(shape.batch * shape.seq_q - others, shape.max_context))


def lengths_of(shape: PagedShape) -> tuple[tuple[int, int], ...]:
    """Return the queries and the keys of each sequence, where ``max_context`` allows it no fewer keys than queries.

    In a ragged batch the sequence with the chunk, the last, has ``mean_context`` keys, and about that mean the others.
    """
    counts, longest = query_counts(shape), shape.max_context
    if counts[0] == counts[-1]:  # no chunk among them
        keys = spread_lengths(shape.batch, longest, shape.mean_context)
    else:
        keys = (*spread_lengths(shape.batch - 1, longest, shape.mean_context), shape.mean_context)
    return tuple((count, min(max(count, length), longest)) for count, length in zip(counts, keys, strict=True))


@lru_cache(maxsize=COSTS)
def cost(shape: PagedShape) -> Cost:
    """Return the FLOPs of both products over the visible scores; bytes of q, the output, and the keys and values
    that are seen, once each.

    It is that of the lengths of ``lengths_of``, aligned at their ends. 2 FLOPs a multiply-add, softmax not counted, as
    in ``flash_attention``.
    """
    counts = Counter(lengths_of(shape)).items()
    return paged_cost(shape, [(batch, queries, keys) for (queries, keys), batch in counts])


def usual_batch(shape: PagedShape) -> PagedShape:
    """Return the problem of one chunk of a usual length: a single sequence has no tiles of their own for short ones."""
    return replace(shape, batch=1, seq_q=USUAL_CHUNK, max_context=USUAL_CONTEXT, mean_context=USUAL_CONTEXT)


OPERATION: Final = Operation(
    name="paged_prefill",
    shape_class=PagedShape,
    cost=cost,
    definition="autotune.kernels.paged_prefill.definition:DEFINITION",
    baselines="autotune.kernels.baselines.lists:OF_PAGED_PREFILL",
    unsupported=unsupported,
    query_counts=query_counts,
    usual_batch=usual_batch,
)
