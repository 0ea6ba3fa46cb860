"""The grid of model shapes that portfolios learn from, the most telling first; ``benchmarks.record grid`` measures it.

The list is a spread subset of a product, over which the models of a class take turns. Their heads and head dims, of 64,
96, 128, 192 over 128, and 256, are those of models (``autotune.models``, each sourced there, and two named here). Dense
attention: causal, full, and causal windows of 128, 512, 1024 and 4096, 512 to 32,768 tokens, batches of 1 to 32, and
as many long causal prompts again, whose tiles' order matters most and is the least known. Packed
sequences: 4 to 256 of 128 to 2,048 tokens in the mean, even and ragged, causal, full, and causal windows of 128 and
1024. Paged decode: contexts of 1,024 to 131,072 tokens, even and ragged, pages of 16, 64 and 256, caches of bfloat16
and float8_e4m3fn. Paged prefill: chunks of 512 to 8,192 tokens at the end of such contexts; its kernel reads no 8-bit
cache. Head dims of 192 over 128 are paged as MiMo-V2-Flash has them; MLA caches latents of 576 over 512, which no shape
here has. To these classes come small ones: of each head dim every other combination of features that a named model has
(softcap, sinks, ALiBi, and windows over pages), since a regret is expected only of shapes with the same features.

Of each class so many problems are taken: the first is the most usual; then in turn one that lies farthest from all
taken by ``likeness`` (farthest-first traversal; Gonzalez, Theoretical Computer Science 38, 1985), so that the ends of
every size are there early, and one drawn from the rest, so that what lies between is there as often as in the product.
Of the small classes none is drawn. Classes take turns, two at a time those of heads of 128, which most models have, and
those of decodes with sinks, which lose most untuned: a recording that ends early is spread as well. A problem that
would take more than ``MAX_SECONDS`` of the device (``device_seconds``), or more than ``MAX_CACHE_BYTES``, is not in the
product: 32,768 tokens are measured on the heads of one rank where those of the whole model take too long, since batch
and heads count by how many tiles they make.
"""

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final, NamedTuple

from autotune.device import NVIDIA_H200
from autotune.likeness import likeness
from autotune.models import MODELS as NAMED
from autotune.models import ModelShape, get_model
from autotune.registry import get_operation
from autotune.shape import AttentionShape, PagedShape, Shape
from autotune.varlen_shape import VarlenShape
from benchmarks.shipped_problems import Cell

Fields = dict[str, Any]
Widths = tuple[int, int]
Windows = tuple[int | None, ...]

DENSE, VARLEN, DECODE, PREFILL = "flash_attention", "flash_attention_varlen", "paged_decode", "paged_prefill"
USUAL: Final = (128, 128)  # head dims of the classes that have two turns
COUNTS: Final = {DENSE: 160, VARLEN: 54, DECODE: 120, PREFILL: 60}  # without the small classes
FEATURES: Final = ("window", "softcap", "sinks", "alibi")

LLAMA: Final = get_model("llama-3.1-8b")
QWEN_3B: Final = ModelShape("qwen2.5-3b", 16, 2, 128, source="Qwen/Qwen2.5-3B")
MIMO: Final = ModelShape("mimo-v2-flash", 64, 4, 192, head_dim_v=128, source="XiaomiMiMo/MiMo-V2-Flash")
# By head dim, the most usual first.
MODELS: Final = (
    *(LLAMA, get_model("qwen2.5-7b"), get_model("qwen2.5-32b"), get_model("llama-3.1-70b"), QWEN_3B),
    *(get_model("llama-3.1-70b").tensor_parallel(8), get_model("flux.1")),
    *(get_model("llama-3.2-1b"), get_model("falcon-40b"), get_model("whisper-large-v3")),
    get_model("falcon-7b"),
    get_model("phi-3-mini-4k"),
    *(get_model("deepseek-v3").tensor_parallel(8), MIMO),
    *(get_model("qwen3-next-80b-a3b"), get_model("gemma-3-12b"), get_model("gemma-3-4b")),
)
BATCHES: Final = (4, 1, 2, 8, 16, 32)
LENGTHS: Final = (2048, 512, 1024, 1536, 3000, 4096, 8192, 12288, 16384, 32768)
LONG: Final = (6144, 9216, 14336, 20480, 24576)
WINDOWS: Final = (1024, 128, 512, 4096)
SEQUENCES: Final = (64, 4, 16, 256)  # packed
MEANS: Final = (512, 128, 2048)
PACKED_WINDOWS: Final = (128, 1024)
MAX_PACKED: Final = 2**17  # tokens of all sequences
DECODE_BATCHES: Final = (32, 1, 2, 4, 8, 16, 64, 128)
PREFILL_BATCHES: Final = (1, 2, 4, 8, 16, 32)
CONTEXTS: Final = (4096, 1024, 2048, 8192, 16384, 32768, 65536, 131072)
CHUNKS: Final = (2048, 512, 8192)
PAGES: Final = (16, 64, 256)
CACHES: Final = ("bfloat16", "float8_e4m3fn")
RAGGED: Final = 4  # the longest of a ragged batch over its mean

SEED: Final = 18  # of what is drawn
MAX_SECONDS: Final = 7.0
MAX_CACHE_BYTES: Final = 6 * 2**30  # one input set; making it takes a few times that
# What the estimate assumes of a device: an H100's half of 989 TFLOP/s and 3.35 TB/s, and three quarters of the latter.
FLOPS, BYTES = 0.45e15, 2.5e12
# Recorded sweeps judge a config of 0.2 ms in 12 to 16 ms and one of 4.7 ms in 107 ms (medians of 160 to 490; NVIDIA
# H200, 2026-11-21, ``judge_seconds``): that is 12 ms and 20 launches.
SCREEN_SECONDS, SCREEN_LAUNCHES = 0.012, 20
SCREENED, RACED = 14, 8  # configs of a shape
RACE_LAUNCHES: Final = 34  # of each: 15 rounds, each behind another replay, and warming up
SHAPE_SECONDS: Final = 1.2  # opening it, finding binaries in the cache twice, numbers of the race (assumed)
# The reference in fp64 and the eager one pass some 25 times over every score (counted in ``reference.py``), 8 bytes and
# 2 bytes each, and multiply at a tenth of the device's speed.
REFERENCE_BYTES: Final = 25 * 10


class GridCell(NamedTuple):
    """One problem of the grid."""

    operation: str
    group: str
    shape: Shape

    def __str__(self) -> str:
        return f"{self.operation} {self.group}: {self.shape}"


def launch_seconds(operation: str, shape: Shape) -> float:
    """Estimate one launch from the formula of the cost."""
    cost = get_operation(operation).cost(shape)
    return max(cost.flops / FLOPS, cost.bytes / BYTES) + 5e-6


def device_seconds(operation: str, shape: Shape) -> float:
    """Estimate how long the device takes to measure an implementation's configs, without a search beyond them."""
    sample = max(launch_seconds(operation, shape), 2e-4)
    scores = _scores(shape)
    screened = SCREENED * (SCREEN_SECONDS + SCREEN_LAUNCHES * launch_seconds(operation, shape))
    return SHAPE_SECONDS + screened + RACED * RACE_LAUNCHES * sample + scores * REFERENCE_BYTES / BYTES


def _scores(shape: Shape) -> float:
    """Count the scores that the reference computes, masked or not."""
    if isinstance(shape, PagedShape):
        return shape.batch * shape.heads * shape.seq_q * shape.mean_context
    if isinstance(shape, VarlenShape):
        return shape.batch * shape.heads * shape.mean_seq_q * shape.mean_seq_kv / shape.evenness
    assert isinstance(shape, AttentionShape)
    return shape.batch * shape.heads * shape.seq_q * shape.seq_kv


class Class(NamedTuple):
    """Problems that are alike but for their sizes: the models that take turns, and the sizes."""

    group: str
    models: Sequence[ModelShape]
    points: Sequence[Fields]
    turns: int
    is_small: bool = False

    def shapes(self, operation: str) -> list[Shape]:
        """Return a problem for each point; a model with which it is beyond the budget gives way to the next one."""
        found: dict[Shape, None] = {}
        for place, fields in enumerate(self.points):
            turn = place + place // len(self.models)  # or one model would have all problems of a batch
            for step in range(len(self.models)):
                model = self.models[(turn + step) % len(self.models)]
                shape = model.shape(get_operation(operation).shape_class, **fields)
                if _is_within_budget(operation, shape) and _keeps_window(shape, fields, model):
                    found[shape] = None
                    break
        return list(found)


def _classes(operation: str) -> Iterator[Class]:
    """Yield the classes of an operation, those of all models first."""
    is_dense = operation in (DENSE, VARLEN)
    widths: dict[Widths, list[ModelShape]] = {}
    for model in MODELS:
        if is_dense or model.has_cache:
            # Its heads alone: windows are among the sizes.
            widths.setdefault((model.head_dim, model.head_dim_v), []).append(replace(model, window=None))
    for width, models in widths.items():
        for group, points in _points(operation).items():
            yield Class(group, models, points, turns=2 if width == USUAL else 1)
    usual = next(iter(_points(operation).values()))
    featured: dict[tuple[Widths, tuple[str, ...]], list[ModelShape]] = {}
    for layer in _layers():
        fields = get_operation(operation).shape_class.__dataclass_fields__
        named = tuple(name for name in FEATURES if name in fields and getattr(layer, name))
        if layer.has_cache and named and not (is_dense and named == ("window",)):
            featured.setdefault(((layer.head_dim, layer.head_dim_v), named), []).append(layer)
    for (_, named), layers in featured.items():
        # Left out, decodes with sinks lost 6.3 % in the mean of 25, those of heads of 128 2.1 % of 186 (NVIDIA H200,
        # 2026-11-29, `left_out_regret` of what `benchmarks.fit_decode` writes).
        turns = 2 if operation == DECODE and "sinks" in named else 1
        yield Class(" ".join(named), layers, usual, turns=turns, is_small=True)


def _layers() -> Iterator[ModelShape]:
    """Yield each kind of layers of the named models as a model of its own."""
    for model in NAMED.values():
        for window in model.layer_windows:
            yield replace(model, window=window, mixes_windows=False)


def _points(operation: str) -> dict[str, list[Fields]]:
    """Return the sizes of the main classes, by mask or by what is cached."""
    if operation == DENSE:
        points = {group: list(_dense_points(group != "full", windows)) for group, windows in _masks(WINDOWS)}
        return {**points, "long": list(_dense_points(True, (None,), LONG))}
    if operation == VARLEN:
        return {group: list(_packed_points(group != "full", windows)) for group, windows in _masks(PACKED_WINDOWS)}
    pages = itertools.cycle(PAGES)
    if operation == PREFILL:
        quantized = list(_prefill_points(itertools.cycle(PAGES)))
        return {
            "chunk": list(_prefill_points(pages)),
            CACHES[1]: [{**fields, "kv_dtype": CACHES[1]} for fields in quantized],
        }
    return {kept: list(_decode_points(kept, pages)) for kept in CACHES}


def _masks(windows: Windows) -> tuple[tuple[str, Windows], ...]:
    return (("causal", (None,)), ("full", (None,)), ("window", windows))


def _dense_points(is_causal: bool, windows: Windows, lengths: Sequence[int] = LENGTHS) -> Iterator[Fields]:
    for length, window, batch in itertools.product(lengths, windows, BATCHES):
        if window is None or window < length:
            yield {"batch": batch, "seq_q": length, "causal": is_causal} | _window(window)


def _packed_points(is_causal: bool, windows: Windows) -> Iterator[Fields]:
    for mean, window, ragged, batch in itertools.product(MEANS, windows, (RAGGED, 1), SEQUENCES):
        longest = mean * ragged
        if batch * mean <= MAX_PACKED and batch >= ragged and (window is None or window < longest):
            lengths = {"max_seq_q": longest, "mean_seq_q": mean}
            yield {"batch": batch, "causal": is_causal} | lengths | _window(window)


def _keeps_window(shape: Shape, fields: Fields, model: ModelShape) -> bool:
    """Return True unless a window was asked for that hides nothing: without it the shape is of another class."""
    return shape.as_dict()["window"] == fields.get("window", model.window)


def _window(window: int | None) -> Fields:
    return {} if window is None else {"window": window}


def _prefill_points(pages: Iterator[int]) -> Iterator[Fields]:
    for context, chunk, batch in itertools.product(CONTEXTS, CHUNKS, PREFILL_BATCHES):
        if chunk <= context:
            yield {"batch": batch, "seq_q": chunk, "max_context": context, "page_size": next(pages)}


def _decode_points(kept: str, pages: Iterator[int]) -> Iterator[Fields]:
    for context, ragged, batch in itertools.product(CONTEXTS, (1, RAGGED), DECODE_BATCHES):
        if batch >= ragged:
            lengths = {"max_context": context, "mean_context": context // ragged}
            yield {"batch": batch, "kv_dtype": kept, "page_size": next(pages)} | lengths


def _cache_bytes(shape: PagedShape) -> int:
    item = 2 if shape.kv_dtype == shape.dtype else 3  # quantized ones are drawn in 16 bits
    return shape.batch * shape.mean_context * shape.kv_heads * (shape.head_dim + shape.head_dim_v) * item


def _is_within_budget(operation: str, shape: Shape) -> bool:
    if isinstance(shape, PagedShape) and _cache_bytes(shape) > MAX_CACHE_BYTES:
        return False
    return device_seconds(operation, shape) <= MAX_SECONDS


def spread(shapes: Sequence[Shape], count: int, *, draws: bool = True) -> list[Shape]:
    """Return the first shape, then the one that is farthest from all taken, of equals the first, in turn with one that
    is drawn from the rest; without ``draws`` only the former."""
    places = [likeness(shape, NVIDIA_H200) for shape in shapes]
    nearest, left = [math.inf] * len(shapes), list(range(len(shapes)))
    draw, taken = random.Random(SEED), list[int]()
    while left and len(taken) < count:
        if not taken:
            place = left[0]
        elif len(taken) % 2 or not draws:
            place = max(left, key=lambda each: (nearest[each], -each))
        else:
            place = draw.choice(left)
        taken.append(place)
        left.remove(place)
        nearest = [min(known, each.distance(places[place])) for known, each in zip(nearest, places, strict=True)]
    return [shapes[place] for place in taken]


def _take_turns(operation: str) -> tuple[Cell, ...]:
    """Return the problems of an operation: classes in turn, each of them ``spread``."""
    classes = list(_classes(operation))
    main = [each for each in classes if not each.is_small]
    rounds = -(-COUNTS[operation] // sum(each.turns for each in main))
    queues = [
        (each.turns, iter([Cell(each.group, shape) for shape in _problems(each, operation, rounds)]))
        for each in classes
    ]
    return tuple(cell for _ in range(rounds) for turns, queue in queues for cell in itertools.islice(queue, turns))


def _problems(each: Class, operation: str, rounds: int) -> list[Shape]:
    return spread(each.shapes(operation), rounds * each.turns, draws=not each.is_small)


@cache
def grid() -> dict[str, tuple[Cell, ...]]:
    """Return the problems of each operation, the most telling first."""
    return {operation: _take_turns(operation) for operation in COUNTS}


def in_order(operation: str | None = None) -> list[GridCell]:
    """Return the problems of all operations, or of one, so that each has its part of any beginning of the list."""
    places = [
        ((number + 0.5) / len(cells), GridCell(name, *cell))
        for name, cells in grid().items()
        if operation in (None, name)
        for number, cell in enumerate(cells)
    ]
    return [found for _, found in sorted(places, key=lambda item: (item[0], item[1].operation))]
