"""Compare the shipped winners with torch's SDPA backends on the GPU here: ``python -m benchmarks.prefill``.

Print a Markdown table over 16 cells of FlashAttention's benchmark (head_dim 64 and 128, causal or not, four lengths;
batch x seq = 16,384, heads x head_dim = 2048, bf16), in TFLOP/s; each row is one interleaved race, so its ratios were
taken in one run.
"""

import itertools
import math
from statistics import geometric_mean

from autotune.dispatch import get_kernel
from autotune.registry import get_operation
from autotune.roofline import rates
from autotune.table import shipped_winners
from benchmarks.console import open_gpu, print_head, print_row
from benchmarks.shipped_problems import OPERATION, TRITON, benchmark_shape

LENGTHS = (512, 1024, 4096, 16384)
SECONDS = 4.0
PEERS = {"sdpa flash": "SDPA flash", "sdpa efficient": "SDPA efficient", "sdpa cudnn": "SDPA cuDNN"}


def main() -> None:
    operation = get_operation(OPERATION)
    against: dict[str, list[float]] = {"sdpa cudnn": [], "sdpa flash": []}
    with open_gpu("prefill") as executor:
        print()
        columns = ("D", "causal", "S", *PEERS.values(), "autotune", "of cuDNN", "of flash")
        print_head(*columns, "served")
        for head_dim, causal, seq in itertools.product((64, 128), (False, True), LENGTHS):
            shape = benchmark_shape(head_dim, causal, seq)
            kernel = get_kernel(shape, device=executor.device.name)
            executor.open(operation, shape)
            race = executor.race([kernel.candidate], seconds=SECONDS, baselines="every")
            ours = race.outcomes[0].timing
            assert ours is not None, race.outcomes[0]
            times = {found.name: found.timing.median_us for found in race.baselines if found.timing}
            for name, ratios in against.items():
                ratios.append(times.get(name, math.nan) / ours.median_us)
            rated = [times.get(name) for name in PEERS] + [ours.median_us]
            print_row(
                head_dim,
                "yes" if causal else "no",
                seq,
                *("" if time is None else f"{rates(operation.cost(shape), time)[0]:.0f}" for time in rated),
                *(f"{ratios[-1]:.3f}" for ratios in against.values()),
                kernel.candidate,
            )
    print(f"\nGeometric mean of SDPA cuDNN's time over ours: {geometric_mean(against['sdpa cudnn']):.3f}")
    print(f"Least ratio of SDPA flash's time over ours: {min(against['sdpa flash']):.3f}")
    gains = [
        winner.default_timing.median_us / winner.timing.median_us
        for winner in shipped_winners(OPERATION, implementation=TRITON)
        if winner.timing and winner.default_timing
    ]
    print(f"Shipped winners against the default: {geometric_mean(gains):.2f}x, {min(gains):.2f}x to {max(gains):.2f}x")


if __name__ == "__main__":
    main()
