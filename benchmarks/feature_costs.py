"""Measure what padding, sinks and a quantized cache cost on the GPU here: ``python -m benchmarks.feature_costs``.

Each line is one interleaved race of a problem with a feature and the same one without, both served untuned, over inputs
that rotate past the L2:

- ``padding``: ``attention`` over a batch padded to one length, by ``kv_lens`` and ``q_lens`` on the right or by
  ``kv_starts`` on the left, beside ``attention_varlen`` over its real tokens packed. Lengths are lognormal (sigma 0.8)
  up to the longest.
- ``sinks``: dense, packed and paged attention of gpt-oss (64/8 heads of 64), with a sink a head and without.
- ``fp8 cache``: ``paged_prefill`` over a cache of e4m3 and over one of bf16.

Wanted of the time with the feature over the one without: at most 1.05 of padding, 1.01 of sinks, and 1 / 0.95 of fp8
caches; exits with 1 above. The output is Markdown.
"""

import argparse
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from autotune.shape import AttentionShape, PagedShape, Shape
from autotune.varlen_shape import VarlenShape
from benchmarks.console import print_head, print_row, require_gpu
from benchmarks.racing import race_calls
from benchmarks.user_tables import tables_in

RACE_SECONDS: Final = 3.0
DEVICE: Final = "cuda"
SETS: Final = 3  # of inputs, each of more bytes than half the L2
SIGMA: Final = 0.8
WANTED: Final = {"padding": 1.05, "sinks": 1.01, "fp8 cache": 1 / 0.95}

HEADS: Final[dict[str, Any]] = {"heads": 32, "kv_heads": 8, "head_dim": 128, "dtype": "bfloat16"}
GPT_OSS: Final[dict[str, Any]] = {"heads": 64, "kv_heads": 8, "head_dim": 64, "dtype": "bfloat16"}
PADDED: Final = ((16, 4096), (64, 2048))  # sequences and the length that they are padded to
WITH_SINKS: Final[tuple[tuple[str, Shape], ...]] = (
    ("flash_attention", AttentionShape(batch=4, seq_q=4096, causal=True, **GPT_OSS)),
    ("flash_attention", AttentionShape(batch=4, seq_q=4096, causal=True, window=128, **GPT_OSS)),
    ("flash_attention_varlen", VarlenShape(batch=16, max_seq_q=4096, mean_seq_q=4096, causal=True, **GPT_OSS)),
    ("paged_prefill", PagedShape(batch=8, seq_q=512, max_context=4096, page_size=16, **GPT_OSS)),
    ("paged_decode", PagedShape(batch=64, max_context=8192, page_size=16, **GPT_OSS)),
)
OVER_CACHES: Final = (
    PagedShape(batch=1, seq_q=2048, max_context=8192, page_size=16, **HEADS),
    PagedShape(batch=8, seq_q=512, max_context=4096, page_size=16, **HEADS),
    PagedShape(batch=16, seq_q=1024, max_context=16384, page_size=64, **HEADS),
)

Calls = list[Callable[[], Any]]


class FeatureCost(NamedTuple):
    """A problem and its microseconds, with a feature and without."""

    feature: str
    problem: str
    with_us: float
    without_us: float

    @property
    def ratio(self) -> float:
        """The time with the feature over the one without."""
        return self.with_us / self.without_us

    @property
    def is_wanted(self) -> bool:
        return self.ratio <= WANTED[self.feature]


def draw_lengths(sequences: int, longest: int, seed: int) -> tuple[int, ...]:
    """Draw lognormal lengths from one token to ``longest``, which one of them has."""
    draw = random.Random(seed)
    weights = [draw.lognormvariate(0.0, SIGMA) for _ in range(sequences)]
    return tuple(max(1, round(weight * longest / max(weights))) for weight in weights)


def padded_calls(lengths: Sequence[int], causal: bool, side: str) -> dict[str, Calls]:
    """Return calls over a padded batch, and over the same tokens packed, each over sets of random inputs."""
    import torch

    import autotune

    longest, heads, kv_heads, width = max(lengths), HEADS["heads"], HEADS["kv_heads"], HEADS["head_dim"]
    lens = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
    starts = longest - lens
    offsets = torch.nn.functional.pad(lens.cumsum(0, dtype=torch.int32), (1, 0))
    positions = torch.arange(longest, device=DEVICE)
    is_token = positions < lens[:, None] if side == "right" else positions >= starts[:, None]
    # On the left, under ``causal``, the queries of padding see no key.
    options: dict[str, Any] = {"kv_lens": lens, "q_lens": lens} if side == "right" else {"kv_starts": starts}
    calls: dict[str, Calls] = {"with": [], "without": []}
    for _ in range(SETS):
        tensors = [
            torch.randn(len(lengths), longest, each, width, dtype=getattr(torch, HEADS["dtype"]), device=DEVICE)
            for each in (heads, kv_heads, kv_heads)
        ]
        packed = [each[is_token] for each in tensors]
        calls["with"].append(partial(autotune.attention, *tensors, causal=causal, **options))
        calls["without"].append(
            partial(autotune.attention_varlen, *packed, offsets, offsets, longest, longest, causal=causal)
        )
    return calls


def served_calls(operation: str, shape: Shape) -> Calls:
    """Return launches of what is served for a shape, over sets of inputs."""
    from autotune.dispatch import get_kernel
    from autotune.registry import load_definition, load_kernel

    served, definition = get_kernel(shape, operation=operation), load_definition(operation)
    kernel = load_kernel(operation, served.implementation)
    inputs = [definition.make_inputs(shape, seed=seed, device=DEVICE) for seed in range(SETS)]
    return [partial(kernel.launch, served.config, each, definition.empty_outputs(each)[:1]) for each in inputs]


def race(feature: str, problem: str, calls: dict[str, Calls]) -> FeatureCost:
    times = race_calls(calls, RACE_SECONDS)
    return FeatureCost(feature, problem, times["with"], times["without"])


def padding_costs(seed: int) -> Iterator[FeatureCost]:
    for sequences, longest in PADDED:
        lengths = draw_lengths(sequences, longest, seed)
        for causal, side in ((True, "right"), (False, "right"), (True, "left")):
            mask = "causal" if causal else "full"
            problem = f"{sequences} of {sum(lengths)} tokens, padded to {longest} on the {side}, {mask}"
            yield race("padding", problem, padded_calls(lengths, causal, side))


def sinks_costs() -> Iterator[FeatureCost]:
    for operation, shape in WITH_SINKS:
        with_sinks = type(shape)(**shape.as_dict() | {"sinks": True})
        calls = {"with": served_calls(operation, with_sinks), "without": served_calls(operation, shape)}
        yield race("sinks", f"{operation}: {shape}", calls)


def cache_costs() -> Iterator[FeatureCost]:
    for shape in OVER_CACHES:
        quantized = replace(shape, kv_dtype="float8_e4m3fn")
        calls = {"with": served_calls("paged_prefill", quantized), "without": served_calls("paged_prefill", shape)}
        yield race("fp8 cache", str(shape), calls)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.feature_costs", description=__doc__)
    parser.add_argument("features", nargs="*", metavar="FEATURE", help=f"{', '.join(WANTED)} [default: all]")
    parser.add_argument("--seed", type=int, default=0, help="of the lengths [default: %(default)s]")
    chosen = parser.parse_args(arguments)
    if unknown := [each for each in chosen.features if each not in WANTED]:
        parser.error(f"features: {unknown[0]!r} is none; expected {', '.join(WANTED)}")
    require_gpu("feature_costs")
    makers: dict[str, Callable[[], Iterator[FeatureCost]]] = {
        "padding": partial(padding_costs, chosen.seed),
        "sinks": sinks_costs,
        "fp8 cache": cache_costs,
    }
    found = []
    print_head("feature", "problem", "us with", "us without", "with over without", "wanted at most")
    with tables_in():
        for feature in chosen.features or WANTED:
            for each in makers[feature]():
                found.append(each)
                times = (f"{each.with_us:.1f}", f"{each.without_us:.1f}", f"{each.ratio:.3f}")
                print_row(each.feature, each.problem, *times, f"{WANTED[each.feature]:.3f}")
    return 0 if all(each.is_wanted for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
