"""Time decode over latents on the GPU here: ``python -m benchmarks.latent_decode``.

The problem of DeepSeek-V3 on one GPU: 64 sequences of 8192 tokens in pages of 64, 128 heads on latents of 576, bf16. It
is searched, with an empty store; one interleaved race then holds what the search found, the default, and FlashInfer's
attention over latents where that is importable. *of bound* is the least time that the data sheet allows over ours.

Then the pattern of sparse attention (DSA): 2048 keys of each sequence by their indices, a page each, beside the same
keys copied side by side into pages of 64, both searched as well.

Wanted: 0.85 of FlashInfer's speed, and indices at most 1.1 times the time of keys side by side; exits with 1 beyond.
The output is Markdown. With the defaults it takes some three minutes.
"""

import argparse
import contextlib
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from autotune.errors import AutotuneError, BaselineUnavailableError, MissingDependencyError
from autotune.shape import PagedShape
from autotune.table import Store
from autotune.trial import Candidate
from benchmarks.console import print_head, print_row, require_gpu
from benchmarks.user_tables import tables_in

SHAPE: Final = PagedShape(batch=64, heads=128, max_context=8192, head_dim=576, page_size=64)
INDICES: Final = 2048  # keys that DeepSeek-V3.2 chooses for each query
TRIALS: Final = 40
SEARCH_SECONDS: Final = 60.0
SPARSE_SECONDS: Final = 25.0  # of each of the two searches of few keys
RACE_SECONDS: Final = 4.0
OF_PEER: Final = 0.85
OF_SIDE_BY_SIDE: Final = 1.1


class RacedLatents(NamedTuple):
    """Microseconds of one race by entrant, and the least that the data sheet allows; 0 of a device without one."""

    times: dict[str, float]
    bound_us: float = 0.0

    def ratio(self, one: str, other: str) -> float:
        """Return the time of one over another's; NaN where either was not raced."""
        return self.times.get(one, math.nan) / self.times.get(other, math.nan)


def sparse_shapes() -> tuple[PagedShape, PagedShape]:
    """Return the problem of indices, each key a page, and that of as many keys side by side."""
    few = replace(SHAPE, max_context=INDICES, mean_context=INDICES)
    return replace(few, page_size=1), few


def search(shape: PagedShape, seconds: float, trials: int) -> Candidate:
    """Search a shape with an empty store; return the winner."""
    from autotune.tuning import tune

    with tables_in() as folder:
        tuned = tune(shape, budget=seconds, trials=trials, store=Store(folder), must_measure=True)
    if (winner := tuned.results[0].winner) is None:
        raise AutotuneError(f"nothing was found for {shape}: {tuned.results[0].failure}")
    return winner.candidate


def measure(runs: dict[str, list[Any]]) -> dict[str, float]:
    """Race calls, each over inputs of its own that rotate past the L2; return the medians in microseconds."""
    from autotune import timing
    from autotune.trial import Policy

    with contextlib.ExitStack() as stack:
        watches = [stack.enter_context(timing.Stopwatch(each, Policy())) for each in runs.values()]
        found = timing.race(watches, contenders=0, seconds=RACE_SECONDS)
    return {name: each.median_us for name, each in zip(runs, found, strict=True)}


def kernel_of(shape: PagedShape, candidate: Candidate) -> Any:
    from autotune import get_kernel

    return get_kernel(shape, config=candidate.config, implementation=candidate.implementation)


def race_dense(candidate: Candidate) -> RacedLatents:
    """Race the winner, the default and FlashInfer over all keys."""
    from autotune import platforms
    from autotune.kernels.baselines.flash_infer_latent import FlashInferLatent
    from autotune.kernels.paged_decode.definition import DEFINITION
    from autotune.registry import get_implementation, get_operation
    from autotune.roofline import least_us

    device, operation = platforms.current_device(), get_operation("paged_decode")
    default = get_implementation("paged_decode", candidate.implementation).space.default(SHAPE, device)
    inputs = [DEFINITION.make_inputs(SHAPE, seed=seed, device="cuda") for seed in range(2)]
    kernels = {
        "ours": kernel_of(SHAPE, candidate),
        "default": kernel_of(SHAPE, Candidate(candidate.implementation, default)),
    }
    runs: dict[str, list[Any]] = {
        name: [partial(kernel, *each.tensors) for each in inputs] for name, kernel in kernels.items()
    }
    peer = FlashInferLatent()
    try:
        runs[peer.name] = [peer.prepare(SHAPE, each) for each in inputs]
    except (BaselineUnavailableError, MissingDependencyError) as error:
        print(f"{peer.name} is left out: {error}")
    return RacedLatents(measure(runs), least_us(operation.cost(SHAPE), device, SHAPE.dtype))


def race_sparse(by_index: Candidate, side_by_side: Candidate) -> RacedLatents:
    """Race random keys of each sequence, by their indices in a pool of all tokens, and copies of them side by side."""
    import torch

    indexed, dense = sparse_shapes()
    runs: dict[str, list[Any]] = {"by index": [], "side by side": []}
    lengths = torch.full((SHAPE.batch,), INDICES, dtype=torch.int32, device="cuda")
    for seed in range(2):
        generator = torch.Generator(device="cuda").manual_seed(seed)
        draw = partial(torch.randn, generator=generator, dtype=torch.bfloat16, device="cuda")
        pool = draw(SHAPE.batch * SHAPE.max_context, 1, 1, SHAPE.head_dim)
        q = draw(SHAPE.batch, SHAPE.heads, SHAPE.head_dim)
        order = torch.rand(SHAPE.batch, SHAPE.max_context, generator=generator, device="cuda").argsort(1)[:, :INDICES]
        table = (order + torch.arange(SHAPE.batch, device="cuda")[:, None] * SHAPE.max_context).int()
        copies = pool[table.long()].view(-1, dense.page_size, 1, SHAPE.head_dim)
        pages = torch.arange(copies.shape[0], dtype=torch.int32, device="cuda").view(SHAPE.batch, -1)
        for name, shape, candidate, cache, places in (
            ("by index", indexed, by_index, pool, table),
            ("side by side", dense, side_by_side, copies, pages),
        ):
            kernel = kernel_of(shape, candidate)
            runs[name].append(partial(kernel, q, cache, cache[..., : SHAPE.head_dim_v], places, lengths))
    return RacedLatents(measure(runs))


def is_wanted(all_keys: RacedLatents, few_keys: RacedLatents) -> bool:
    """Return True if both comparisons are as wanted; a peer that is not there decides nothing."""
    is_slow = all_keys.ratio("flashinfer mla", "ours") < OF_PEER
    return not is_slow and few_keys.ratio("by index", "side by side") <= OF_SIDE_BY_SIDE


def print_raced(all_keys: RacedLatents, few_keys: RacedLatents, candidates: Sequence[Candidate]) -> None:
    """Print a row for each entrant."""
    print_head("keys", "entrant", "us", "of bound", "config")
    found = dict(zip(("ours", "by index", "side by side"), candidates, strict=True))
    for keys, raced in ((SHAPE.max_context, all_keys), (INDICES, few_keys)):
        for name, microseconds in raced.times.items():
            of_bound = f"{raced.bound_us / microseconds:.3f}" if raced.bound_us else ""
            print_row(keys, name, f"{microseconds:.1f}", of_bound, found.get(name, ""))
    ratios = (all_keys.ratio("flashinfer mla", "ours"), few_keys.ratio("by index", "side by side"))
    print(f"\nFlashInfer's time over ours: {ratios[0]:.3f}; by index over side by side: {ratios[1]:.3f}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.latent_decode", description=__doc__)
    parser.add_argument("--trials", type=int, default=TRIALS, help="of each search [default: %(default)s]")
    parser.add_argument("--seconds", type=float, default=SEARCH_SECONDS, help="of the first [default: %(default)s]")
    chosen = parser.parse_args(arguments)
    require_gpu("latent_decode")
    # Before this process opens the GPU: its context would take part in what the searches measure.
    budgets = (chosen.seconds, *[min(SPARSE_SECONDS, chosen.seconds)] * 2)
    shapes = (SHAPE, *sparse_shapes())
    candidates = [search(shape, budget, chosen.trials) for shape, budget in zip(shapes, budgets, strict=True)]
    all_keys, few_keys = race_dense(candidates[0]), race_sparse(*candidates[1:])
    print_raced(all_keys, few_keys, candidates)
    return 0 if is_wanted(all_keys, few_keys) else 1


if __name__ == "__main__":
    sys.exit(main())
