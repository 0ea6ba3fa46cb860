"""Compare the shipped winners of the paged operations on the GPU here: ``python -m benchmarks.paged [PART...]``.

Paged decode stands beside its default, one config for all problems, cuDNN's paged attention (its first plan, and the
best of all its plans) and FlashInfer, where they are installed, in one interleaved race for each problem, and beside a
tuned kernel that only reads as many bytes; caches rotate past the L2, launches are replayed by CUDA graph. Paged
prefill stands beside our dense flash attention of the same shape, and for a mixed batch beside a launch for the decode
rows and one for the chunk. The output is Markdown.

Winners come from the shipped tables alone, whatever you have tuned. The column *served* is the rung of ``get_kernel``'s
ladder: ``exact`` for the winner of that very shape, ``nearest`` for that of another one.
"""

import argparse
import math
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from autotune.dispatch import TunedKernel, get_kernel
from autotune.executor.gpu import GpuExecutor
from autotune.registry import get_implementation, get_operation, load_definition, load_kernel
from autotune.shape import PagedShape, Shape
from autotune.timing import Stopwatch
from autotune.trial import Candidate, Policy
from benchmarks.console import open_gpu, print_head, print_row
from benchmarks.shipped_problems import (
    BESIDE_SHORT,
    CACHED,
    CHUNK,
    LLAMA,
    MHA,
    TP8,
    dense_chunk,
    mixed_shape,
    paged_shape,
    prefill_shape,
    ragged,
)
from benchmarks.user_tables import tables_in

PEERS: Final = ("cudnn", "cudnn best plan", "flashinfer")
COMMON: Final = paged_shape(LLAMA, 64, 4096)  # whose winner stands beside every other's, as one config for all
SECONDS: Final = 3.0  # of each race
ROUNDS: Final = 3  # of what takes turns
PARTS: Final[dict[str, tuple[tuple[str, PagedShape], ...]]] = {
    "uniform": (
        ("32/8, page 16, 16 x 4096", paged_shape(LLAMA, 16, 4096)),
        ("32/8, page 16, 64 x 2048", paged_shape(LLAMA, 64, 2048)),
        ("32/8, page 16, 64 x 4096", paged_shape(LLAMA, 64, 4096)),
        ("32/8, page 64, 128 x 8192", paged_shape(LLAMA, 128, 8192, page_size=64)),
        ("32/32, page 64, 32 x 4096", paged_shape(MHA, 32, 4096, page_size=64)),
        ("8/1, page 16, 64 x 4096", paged_shape(TP8, 64, 4096)),
    ),
    "ragged": (
        ("32/8, 64 x 1..8192", ragged(LLAMA)),
        ("8/1, 64 x 1..8192", ragged(TP8)),
        ("32/8, one of 65536 among 63 short", BESIDE_SHORT),
        ("32/8, uniform of that total", paged_shape(LLAMA, 64, 1500)),
    ),
    "one": tuple(
        (f"1 x {context}", paged_shape(LLAMA, 1, context)) for context in (512, 2048, 4096, 8192, 32768, 131072)
    ),
    "pages": tuple((f"page {size}", paged_shape(LLAMA, 64, 4096, page_size=size)) for size in (1, 16, 128)),
    "quantized": tuple(
        (kv_dtype, paged_shape(LLAMA, 64, 4096, kv_dtype=kv_dtype))
        for kv_dtype in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "int8")
    ),
}
ALL_PARTS: Final = (*PARTS, "prefill", "mixed")
MIXED_CONTEXTS: Final = tuple(130 * number for number in range(1, 64))  # cached tokens of 63 sequences that decode


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paged", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", type=parse_part, metavar="PART", help=f"{', '.join(ALL_PARTS)} [default: all]"
    )
    wanted = parser.parse_args().parts or ALL_PARTS
    with tables_in():
        with open_gpu("paged") as executor:
            for part in wanted:
                if part in PARTS:
                    compare_decode(executor, part)
                elif part == "prefill":
                    compare_prefill(executor)
        if "mixed" in wanted:
            compare_mixed()


def parse_part(name: str) -> str:
    """Return the name of a part; raise ArgumentTypeError if there is none."""
    if name not in ALL_PARTS:
        raise argparse.ArgumentTypeError(f"{name!r} is unknown; allowed: {', '.join(ALL_PARTS)}")
    return name


def compare_decode(executor: GpuExecutor, part: str) -> None:
    from benchmarks.stream_read import fastest_read

    print(f"\n## {part}\n")
    times = ("us", "TB/s", "of reading", "default", "one for all", *PEERS, "ours faster")
    print_head("problem", "MB", *times, "served", "config")
    operation, triton = get_operation("paged_decode"), get_implementation("paged_decode", "triton")
    common = get_kernel(COMMON).candidate
    for name, shape in PARTS[part]:
        kernel = get_kernel(shape)
        default = Candidate(triton.name, triton.space.default(shape, executor.device))
        (ours, *others), peers = race(executor, shape, "paged_decode", [kernel.candidate, default, common], PEERS)
        assert ours is not None
        size = operation.cost(shape).bytes
        reading, _ = fastest_read(size / 1e6)
        found = [peers.get(peer) for peer in PEERS]
        best = min((time for time in found if time), default=None)
        print_row(
            name,
            f"{size / 1e6:.0f}",
            f"{ours:.1f}",
            f"{size / ours / 1e6:.2f}",
            f"{reading / ours:.3f}",
            *("" if time is None else f"{time:.1f}" for time in (*others, *found)),
            "" if best is None else f"{best / ours:.3f}",
            rungs(kernel),
            kernel.config,
        )


def compare_prefill(executor: GpuExecutor) -> None:
    """Print a chunk over pages beside the same over contiguous tensors."""
    print(f"\n## prefill: {CHUNK} new tokens, 32/8 heads of 128\n")
    print_head("cached", "paged us", "dense us", "of dense", "served", "config")
    for cached in CACHED:
        kernels = [get_kernel(shape) for shape in (prefill_shape(cached), dense_chunk(cached))]
        pages, tensors = take_turns([partial(time_alone, executor, kernel) for kernel in kernels])
        times = (f"{pages:.1f}", f"{tensors:.1f}", f"{tensors / pages:.3f}")
        print_row(cached, *times, rungs(*kernels), kernels[0].config)


def compare_mixed() -> None:
    """Print one launch for 63 sequences that decode and one chunk beside two launches, each in a graph."""
    from autotune.kernels.paged_decode.inputs import CheckShape
    from autotune.kernels.paged_prefill.inputs import check_shape

    prefill, decode, chunk = load_definition("paged_prefill"), load_definition("paged_decode"), prefill_shape(0)
    rows = paged_shape(LLAMA, len(MIXED_CONTEXTS), max(MIXED_CONTEXTS), mean_context=statistics.mean(MIXED_CONTEXTS))
    fields: dict[str, Any] = {**rows.as_dict(), "lengths": MIXED_CONTEXTS, "sm_count": None}
    mixed = check_shape(
        paged_shape(LLAMA, 64, max(MIXED_CONTEXTS)), (*MIXED_CONTEXTS, CHUNK), (*(1 for _ in MIXED_CONTEXTS), CHUNK)
    )
    served = [get_kernel(shape) for shape in (mixed_shape(), rows, chunk)]
    inputs = [prefill.make_inputs(mixed, seed=0, device="cuda")]
    inputs += [decode.make_inputs(CheckShape(**fields), seed=0, device="cuda")]
    inputs += [prefill.make_inputs(chunk, seed=0, device="cuda")]
    together, *apart = map(launch_of, served, inputs)
    one, two = take_turns([partial(measure, together), partial(measure, lambda: [launch() for launch in apart])])
    print("\n## mixed: 63 sequences that decode and one chunk\n")
    print_head("one launch us", "two launches us", "ratio", "served", "config")
    print_row(f"{one:.1f}", f"{two:.1f}", f"{two / one:.3f}", rungs(*served), served[0].config)


def launch_of(kernel: TunedKernel, inputs: Any) -> Callable[[], None]:
    outputs = load_definition(kernel.operation).empty_outputs(inputs)[:1]
    return partial(load_kernel(kernel.operation, kernel.implementation).launch, kernel.config, inputs, outputs)


def rungs(*kernels: TunedKernel) -> str:
    """Return the rungs that configs are served from: ``exact`` for the winner of that very shape."""
    return ", ".join(kernel.provenance.rung for kernel in kernels)


def take_turns(timers: Sequence[Callable[[], float]]) -> list[float]:
    """Call all timers in turn, several times, so that a drift meets all alike; return the median of each."""
    rounds = [[timer() for timer in timers] for _ in range(ROUNDS)]
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def time_alone(executor: GpuExecutor, kernel: TunedKernel) -> float:
    (found,), _ = race(executor, kernel.shape, kernel.operation, [kernel.candidate])
    return found or math.nan


def race(
    executor: GpuExecutor, shape: Shape, operation: str, candidates: Sequence[Candidate], peers: Sequence[str] = ()
) -> tuple[list[float | None], dict[str, float]]:
    """Race candidates and peers; return the microseconds of each candidate (None if it cannot run) and of the peers."""
    executor.open(get_operation(operation), shape)
    found = executor.race(list(dict.fromkeys(candidates)), seconds=SECONDS, baselines=tuple(peers))
    times = {outcome.candidate: outcome.timing.median_us for outcome in found.outcomes if outcome.timing}
    theirs = {baseline.name: baseline.timing.median_us for baseline in found.baselines if baseline.timing}
    return [times.get(candidate) for candidate in candidates], theirs


def measure(launch: Callable[[], Any]) -> float:
    """Return the microseconds of a launch that reads more than the L2 holds, by CUDA-graph replay."""
    with Stopwatch([launch], Policy()) as stopwatch:
        stopwatch.warm_up()
        return statistics.median(stopwatch.sample() for _ in range(15))


if __name__ == "__main__":
    main()
