"""Shapes drawn by a seed, as users of the named models meet them: lengths no powers of two, batches 1 to 32."""

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from autotune.errors import UsageError
from autotune.models import MODELS, ModelShape
from autotune.operation import Operation
from autotune.shape import AttentionShape, PagedShape, Shape

MAX_BATCH: Final = 32
SEQS: Final = (128, 16384)  # tokens of a prompt
CONTEXTS: Final = (256, 131072)  # tokens of a cached sequence
PAGE_SIZES: Final = (16, 64, 256)
# Tokens of a whole batch of prompts, and the work of one call: 8 TFLOP take an H100 or H200 about 15 ms, of which a
# search of half a minute still times a hundred configs.
MAX_TOKENS: Final = 32768
MAX_FLOPS: Final = 8e12
MEMORY_SHARE: Final = 1 / 16  # of a GPU: what is checked and timed needs several copies, and the scores of a reference


def draw_shapes(
    operation: Operation[Any], count: int, seed: int, *, memory_mib: int, models: Sequence[ModelShape] = ()
) -> list[Shape]:
    """Draw distinct shapes of an operation; the same arguments give the same shapes, and more of them the same first.

    Heads are those of a model, all named ones by default. Batches and lengths are uniform in their logarithm, lengths
    no powers of two. Dense attention is causal or full, as a coin falls; of a paged decode one in two has sequences of
    uneven length, whose mean is half of the longest. Softcap is the model's, and so is the window, but of full
    attention, which has none; of a model that mixes windows a coin chooses the kind of layer. Types are bfloat16.

    Args:
        count: how many, 1 or more.
        memory_mib: memory of the GPU that is to hold them.

    Raises:
        UsageError: no shapes of the operation are drawn, no model has such a shape, too few fit, or ``count`` is none.

    Example:
        >>> draw_shapes(get_operation("flash_attention"), 60, seed=0, memory_mib=81559)
    """
    if not is_drawn(operation):
        raise UsageError(f"operation={operation.name!r}: no shapes are drawn of it; name sizes")
    if count < 1:
        raise UsageError(f"count={count!r} is not allowed; expected 1 or more shapes")
    is_dense = operation.shape_class is AttentionShape
    wanted = [each for each in models or MODELS.values() if is_dense or each.has_cache]
    if not wanted:
        names = ", ".join(each.name for each in models)
        raise UsageError(f"operation={operation.name!r}: no keys and values are cached by {names}")
    source = random.Random(f"{operation.name} {seed}")
    found: dict[Shape, None] = {}
    for _ in range(200 * count):
        shape = _MAKERS[operation.shape_class](source, source.choice(wanted))
        if operation.unsupported(shape) is None and is_measurable(operation, shape, memory_mib=memory_mib):
            found[shape] = None
        if len(found) == count:
            return list(found)
    raise UsageError(f"operation={operation.name!r}: only {len(found)} of {count} shapes fit {memory_mib} MiB")


def is_measurable(operation: Operation[Any], shape: Shape, *, memory_mib: int) -> bool:
    """Return True if a GPU with that memory holds a shape several times over, and no call takes too long to tune."""
    cost = operation.cost(shape)
    return cost.bytes <= memory_mib * 2**20 * MEMORY_SHARE and cost.flops <= MAX_FLOPS


def is_drawn(operation: Operation[Any]) -> bool:
    """Return True if shapes of the operation are drawn: dense ones, and decodes over a paged cache."""
    return operation.shape_class in _MAKERS and operation.query_counts is None


def _dense(source: random.Random, model: ModelShape) -> AttentionShape:
    batch = _between(source, 1, MAX_BATCH)
    seq = _odd_length(source, SEQS[0], min(SEQS[1], MAX_TOKENS // batch))
    is_causal = source.random() < 0.5
    window = source.choice(model.layer_windows) if is_causal else None
    return model.shape(AttentionShape, batch=batch, seq_q=seq, causal=is_causal, window=window)


def _decode(source: random.Random, model: ModelShape) -> PagedShape:
    batch, context = _between(source, 1, MAX_BATCH), _odd_length(source, *CONTEXTS)
    is_ragged = source.random() < 0.5 and batch > 1
    return model.shape(
        PagedShape,
        batch=batch,
        max_context=context,
        mean_context=context // 2 if is_ragged else context,
        page_size=source.choice(PAGE_SIZES),
        window=source.choice(model.layer_windows),
    )


_MAKERS: Final[Mapping[type[Shape], Callable[[random.Random, ModelShape], Shape]]] = {
    AttentionShape: _dense,
    PagedShape: _decode,
}


def _between(source: random.Random, low: int, high: int) -> int:
    """Draw an integer uniformly in its logarithm, both ends included."""
    return round(2 ** source.uniform(math.log2(low), math.log2(high)))


def _lengths(source: random.Random, low: int, high: int) -> Iterator[int]:
    while True:
        yield _between(source, low, high)


def _odd_length(source: random.Random, low: int, high: int) -> int:
    """Draw a length that is no power of two."""
    return next(length for length in _lengths(source, low, high) if length & (length - 1))
