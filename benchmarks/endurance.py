"""Launch schedules ten thousand times, defaults a thousand times for equal bits: ``python -m benchmarks.endurance``.

On the GPU here, for heads of 64, 128 and 256, full and causal, and for few queries on many keys: of each implementation
of ours the default is run over the same inputs again and again, and every output must be the same to the bit; then the
default and every valid config that differs from it in one parameter is launched ``--launches`` times in a row, by CUDA
graphs. Launches are made by a process of its own, which is killed where a schedule hangs: then the last config it named
is the one. All is compiled before, in parallel, the next implementation while one is launched. Exits with 1 after a
difference, an error or a hang, or if one that is named supports nothing here.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from autotune import platforms
from autotune.executor.compile_pool import COMPILE_SECONDS, CompilePool, limit_jobs
from autotune.implementation import Implementation
from autotune.registry import get_operation, load_definition, load_kernel, our_implementations
from autotune.shape import AttentionShape
from autotune.space import Config
from autotune.trial import Candidate
from benchmarks.console import parse_count, require_gpu
from benchmarks.live import processes
from benchmarks.model_grid.knowledge import neighbours

OPERATION: Final = "flash_attention"
MODULE: Final = "benchmarks.endurance"
LAUNCHES, REPEATS = 10_000, 1000
GRAPH_LAUNCHES: Final = 125  # launches of a graph, between two waits for the device
# 62 schedules of triton took 196 s and 81 of gluon_hopper 139 s, once compiled (NVIDIA H200, 2026-11-28).
SECONDS: Final = 400.0
REFUSED: Final = "  not launched: "  # begins the line below a config that the toolchain refuses
SHAPES: Final = tuple(
    AttentionShape(batch=2, heads=16, kv_heads=4, seq_q=1000, head_dim=head_dim, causal=causal)
    for head_dim in (64, 128, 256)
    for causal in (False, True)
) + tuple(
    AttentionShape(batch=1, heads=16, kv_heads=4, seq_q=16, seq_kv=4096, head_dim=head_dim, causal=True)
    for head_dim in (64, 128, 256)
)


def shapes_of(implementation: Implementation[AttentionShape]) -> list[AttentionShape]:
    """Return the shapes that an implementation supports on the device here."""
    return [shape for shape in SHAPES if implementation.supports(shape, platforms.current_device()) is None]


def configs_of(implementation: Implementation[AttentionShape], shape: AttentionShape) -> list[Config]:
    """Return the default for a shape on the device here, then the valid configs one step from it."""
    device, space = platforms.current_device(), implementation.space
    default = space.default(shape, device)
    return [default, *neighbours(space, default, shape, device)]


def compile_all(implementation: Implementation[AttentionShape]) -> None:
    """Fill the compiler's cache; what does not compile says so when it is launched."""
    pool = CompilePool(platforms.current_device(), jobs=limit_jobs(None).count, timeout=COMPILE_SECONDS)
    try:
        for shape in shapes_of(implementation):
            pool.open(get_operation(OPERATION), shape)
            for config in configs_of(implementation, shape):
                pool.submit(Candidate(implementation.name, config), every_output=True)
            while pool.in_flight:
                pool.receive(COMPILE_SECONDS)
    finally:
        pool.close()


def launch_all(implementation: Implementation[AttentionShape], launches: int, repeats: int) -> int:
    """Launch everything, saying what comes next; return how many configs failed."""
    return sum(
        _fails(implementation, config, shape, launches, 0 if number else repeats)
        for shape in shapes_of(implementation)
        for number, config in enumerate(configs_of(implementation, shape))
    )


def _fails(
    implementation: Implementation[AttentionShape], config: Config, shape: AttentionShape, launches: int, repeats: int
) -> bool:
    import torch

    from autotune.errors import is_toolchain_refusal

    print(f"{implementation.name} {shape}: {config}", flush=True)
    definition, kernel = load_definition(OPERATION), load_kernel(OPERATION, implementation.name)
    inputs = definition.make_inputs(shape, seed=0, device="cuda")
    first, outputs = definition.empty_outputs(inputs), definition.empty_outputs(inputs)
    try:
        kernel.launch(config, inputs, first)
    except Exception as error:
        if not is_toolchain_refusal(error):
            raise
        print(f"{REFUSED}{str(error).splitlines()[0]}")
        return False
    _launch_often(lambda: kernel.launch(config, inputs, outputs), launches)
    differs = torch.zeros((), dtype=torch.bool, device="cuda")
    for _ in range(repeats):
        for output in outputs:
            output.zero_()
        kernel.launch(config, inputs, outputs)
        for one, other in zip(first, outputs, strict=True):
            differs |= (one != other).any()
    if is_different := bool(differs.item()):
        print(f"  differs within {repeats} runs")
    return is_different


def _launch_often(launch: Callable[[], object], launches: int) -> None:
    """Launch so many times in a row, by a graph as far as its launches divide them: Python leaves time between."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(min(GRAPH_LAUNCHES, launches)):
            launch()
    times, rest = divmod(launches, min(GRAPH_LAUNCHES, launches))
    for _ in range(times):
        graph.replay()
        torch.cuda.synchronize()
    for _ in range(rest):
        launch()
    torch.cuda.synchronize()


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, then launch in a process of its own for each implementation; return the exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__)
    names = [each.name for each in our_implementations(OPERATION)]
    parser.add_argument("implementations", nargs="*", metavar="NAME", help=f"[default: {' '.join(names)}]")
    parser.add_argument(
        "--launches", type=parse_count, default=LAUNCHES, help=f"of each schedule [default: {LAUNCHES}]"
    )
    parser.add_argument("--repeats", type=parse_count, default=REPEATS, help=f"of each default [default: {REPEATS}]")
    parser.add_argument("--launch", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if strange := set(given.implementations) - set(names):
        parser.error(f"{', '.join(sorted(strange))} is unknown; expected some of {', '.join(names)}")
    require_gpu("endurance")
    chosen = [each for each in our_implementations(OPERATION) if each.name in (given.implementations or names)]
    able = [each for each in chosen if shapes_of(each)]
    if given.implementations and len(able) < len(chosen):
        sys.exit(f"{MODULE}: {', '.join(each.name for each in chosen if each not in able)}: no shape is supported here")
    if given.launch:
        return 1 if sum(launch_all(each, given.launches, given.repeats) for each in able) else 0
    ahead = ThreadPoolExecutor(1)
    try:
        compiled = [ahead.submit(compile_all, each) for each in able]
        codes = [
            endure(each, compiling, given.launches, given.repeats)
            for each, compiling in zip(able, compiled, strict=True)
        ]
    finally:
        ahead.shutdown(cancel_futures=True)
    return max(codes, default=0)


def endure(
    implementation: Implementation[AttentionShape], compiling: "Future[None]", launches: int, repeats: int
) -> int:
    """Launch a compiled implementation by a process of its own, and print how that ended; return 1 if not well."""
    compiling.result()
    name = implementation.name
    words = (name, "--launch", f"--launches={launches}", f"--repeats={repeats}")
    ended = processes.run(MODULE, *words, seconds=SECONDS)
    lines = ended.output.splitlines()
    refused = sum(line.startswith(REFUSED) for line in lines)
    count = sum(line.startswith(name) for line in lines) - refused
    how = {None: "hung", 0: "all well"}.get(ended.code, f"ended with {ended.code}")
    runs = f"{len(shapes_of(implementation))} defaults of {repeats} runs in {ended.seconds:.0f} s"
    print(f"{name}: {count} schedules of {launches} launches, {refused} not launched, {runs}: {how}", flush=True)
    if ended.code == 0:
        return 0
    print(ended.tail(), flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
