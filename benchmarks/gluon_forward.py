"""Time schedules of the Gluon kernel beside cuDNN and the Triton kernel: ``python -m benchmarks.gluon_forward``.

The cells are those of ``benchmarks.prefill``. In each the default and configs drawn by a seed are compiled, checked and
screened, and the best three are raced, interleaved, with the Triton kernel that is served and torch's SDPA backends.
Prints what every config that failed has failed by, and a Markdown table in TFLOP/s.
"""

import argparse
import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import geometric_mean
from typing import Any, Final

from autotune.device import Device
from autotune.dispatch import get_kernel
from autotune.executor import Executor
from autotune.implementation import Implementation
from autotune.registry import get_implementation, get_operation
from autotune.roofline import rates
from autotune.shape import AttentionShape
from autotune.trial import Candidate, Outcome, Status
from benchmarks.console import open_gpu, print_head, print_row, require_gpu
from benchmarks.prefill import LENGTHS, PEERS
from benchmarks.problem_parts import deal, parse_part
from benchmarks.shipped_problems import OPERATION, benchmark_shape

NAME: Final = "gluon_hopper"
FINALISTS: Final = 3
RACE_SECONDS: Final = 3.0


def draw(implementation: Implementation[Any], shape: AttentionShape, device: Device, seed: int) -> Iterator[Candidate]:
    """Yield the default, and then the valid configs in an order that the seed draws."""
    default = implementation.space.default(shape, device)
    others = [config for config in implementation.space.configs(shape, device) if config != default]
    random.Random(seed).shuffle(others)
    return (Candidate(NAME, config) for config in (default, *others))


def screen(executor: Executor, candidates: Iterator[Candidate], seconds: float) -> list[Outcome]:
    """Measure candidates, as many as fit, for so many seconds; return the outcomes as they came."""
    found: list[Outcome] = []
    in_flight, deadline = 0, time.monotonic() + seconds
    while True:
        is_open = time.monotonic() < deadline
        for candidate in itertools.islice(candidates, executor.capacity - in_flight if is_open else 0):
            executor.submit(candidate)
            in_flight += 1
        if in_flight == 0 or not is_open:
            return found
        if (outcome := executor.collect(max(0.0, deadline - time.monotonic()))) is not None:
            found.append(outcome)
            in_flight -= 1


def fastest(outcomes: Sequence[Outcome]) -> list[Candidate]:
    """Return the candidates with the least times of those that passed."""
    timed = [(each.timing.median_us, each.candidate) for each in outcomes if each.timing and each.status is Status.OK]
    return [candidate for _, candidate in sorted(timed, key=lambda item: item[0])[:FINALISTS]]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gluon_forward", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of screening a cell [default: 20]")
    parser.add_argument("--seed", type=int, default=0, help="of the configs' order [default: 0]")
    parser.add_argument("--part", type=parse_part, default=(1, 1), metavar="I/N", help="every N-th cell, from the I-th")
    given = parser.parse_args()
    require_gpu("gluon_forward")
    operation, implementation = get_operation(OPERATION), get_implementation(OPERATION, NAME)
    cells = deal(list(itertools.product((64, 128), (False, True), LENGTHS)), given.part)
    failures: Counter[str] = Counter()
    of_cudnn: list[float] = []
    with open_gpu("gluon_forward") as executor:
        columns = ("D", "causal", "S", *PEERS.values(), "Triton", "Gluon", "of cuDNN", "configs")
        print_head(*columns, "best")
        for head_dim, causal, seq in cells:
            shape = benchmark_shape(head_dim, causal, seq)
            executor.open(operation, shape)
            screened = screen(executor, draw(implementation, shape, executor.device, given.seed), given.seconds)
            failures.update(f"{each.status}: {each.message}" for each in screened if each.status is not Status.OK)
            finalists = fastest(screened)
            ours = get_kernel(shape, device=executor.device.name).candidate
            race = executor.race([*finalists, ours], seconds=RACE_SECONDS, baselines="every")
            times = {each.candidate: each.timing.median_us for each in race.outcomes if each.timing}
            peers = {each.name: each.timing.median_us for each in race.baselines if each.timing}
            best = min((each for each in finalists if each in times), key=lambda each: times[each], default=None)
            rated = [peers.get(name) for name in PEERS] + [times.get(ours), None if best is None else times[best]]
            if best is not None and "sdpa cudnn" in peers:
                of_cudnn.append(peers["sdpa cudnn"] / times[best])
            print_row(
                *(head_dim, "yes" if causal else "no", seq),
                *("" if took is None else f"{rates(operation.cost(shape), took)[0]:.0f}" for took in rated),
                *(f"{of_cudnn[-1]:.3f}" if of_cudnn else "", len(screened), best),
            )
    print(*(f"{count} of {reason}" for reason, count in failures.most_common()), sep="\n")
    if of_cudnn:
        print(f"Geometric mean of SDPA cuDNN's time over the Gluon kernel's: {geometric_mean(of_cudnn):.3f}")
    sys.exit(0 if len(of_cudnn) == len(cells) else 1)


if __name__ == "__main__":
    main()
