"""Compares the shipped winners with torch's SDPA backends on the GPU here: ``python -m benchmarks.prefill``.

Prints a Markdown table over the 16 cells of FlashAttention's grid (head_dim 64 and 128, causal or not, four lengths;
batch x seq = 16,384, heads x head_dim = 2048, bf16), in TFLOP/s; each row is one interleaved race, so its ratios were
taken in one run.
"""

import math
import sys

from autotune import platforms
from autotune.dispatch import get_kernel
from autotune.executor.gpu import GpuExecutor
from autotune.executor.select import NO_GPU
from autotune.registry import get_operation
from autotune.roofline import rates
from autotune.table import shipped_winners
from autotune.trial import Timing
from benchmarks.grids import OPERATION, TRITON, grid_shape

LENGTHS = (512, 1024, 4096, 16384)
SECONDS = 4.0


def main() -> None:
    """Entry of the command."""
    if not platforms.has_gpu():
        sys.exit(f"benchmarks.prefill: {NO_GPU}")
    operation = get_operation(OPERATION)
    executor = GpuExecutor()
    against: dict[str, list[float]] = {"sdpa cudnn": [], "sdpa flash": []}
    print(f"{executor.device.name}, {executor.toolchain}\n")
    header = "D | causal | S | SDPA flash | SDPA efficient | SDPA cuDNN | autotune | of cuDNN | of flash"
    print(f"| {header} | BLOCK_Q x BLOCK_K / warps / stages |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    try:
        for head_dim in (64, 128):
            for causal in (False, True):
                for seq in LENGTHS:
                    shape = grid_shape(head_dim, causal, seq)
                    kernel = get_kernel(shape, device=executor.device.name)
                    executor.open(operation, shape)
                    race = executor.race([kernel.candidate], seconds=SECONDS, baselines="every")
                    ours = race.outcomes[0].timing
                    assert ours is not None, race.outcomes[0]
                    peers = {baseline.name: baseline.timing for baseline in race.baselines}
                    ratios = {name: _ratio(peers.get(name), ours) for name in against}
                    for name, ratio in ratios.items():
                        against[name].append(ratio)

                    def rate(timing: Timing | None, shape: object = shape) -> str:
                        return "" if timing is None else f"{rates(operation.cost(shape), timing.median_us)[0]:.0f}"

                    cells = [
                        str(head_dim),
                        "yes" if causal else "no",
                        str(seq),
                        *(rate(peers.get(name)) for name in ("sdpa flash", "sdpa efficient", "sdpa cudnn")),
                        rate(ours),
                        *(f"{ratios[name]:.3f}" for name in against),
                        "{BLOCK_Q} x {BLOCK_K} / {num_warps} / {num_stages}".format(**kernel.config),
                    ]
                    print(f"| {' | '.join(cells)} |", flush=True)
    finally:
        executor.close()
    print(f"\nGeometric mean of SDPA cuDNN's time over ours: {_geometric_mean(against['sdpa cudnn']):.3f}")
    print(f"Least ratio of SDPA flash's time over ours: {min(against['sdpa flash']):.3f}")
    gains = [
        winner.default_timing.median_us / winner.timing.median_us
        for winner in shipped_winners(OPERATION, implementation=TRITON)
        if winner.timing and winner.default_timing
    ]
    print(f"Shipped winners against the default: {_geometric_mean(gains):.2f}x, {min(gains):.2f}x to {max(gains):.2f}x")


def _ratio(peer: Timing | None, ours: Timing) -> float:
    return math.nan if peer is None else peer.median_us / ours.median_us


def _geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


if __name__ == "__main__":
    main()
