"""Time decode over latents on the GPU here: ``python -m benchmarks.latent_decode``.

The problem of DeepSeek-V3 on one GPU: 64 sequences of 8192 tokens in pages of 64, 128 heads on latents of 576, bf16.
Each implementation is searched, with an empty store; one interleaved race then holds the best of each, its default, and
FlashInfer's attention over latents where that is importable. *ours* is the fastest of ours, *of bound* the least time
that the data sheet allows over a time.

Then the pattern of sparse attention (DSA): 2048 keys of each sequence by their indices, a page each, beside the same
keys copied side by side into pages of 64, both searched as well.

Wanted: 0.85 of FlashInfer's speed, and indices at most 1.1 times the time of keys side by side; exits with 1 beyond.
The output is Markdown. With the defaults it takes some four minutes.
"""

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from autotune import platforms
from autotune.device import Device
from autotune.errors import AutotuneError, BaselineUnavailableError, MissingDependencyError
from autotune.registry import our_implementations
from autotune.shape import PagedShape
from autotune.table import Store
from autotune.trial import Candidate
from benchmarks.console import print_head, print_row, require_gpu
from benchmarks.racing import race_calls
from benchmarks.user_tables import tables_in

SHAPE: Final = PagedShape(batch=64, heads=128, max_context=8192, head_dim=576, page_size=64)
INDICES: Final = 2048  # keys that DeepSeek-V3.2 chooses for each query
TRIALS: Final = 40
SEARCH_SECONDS: Final = 60.0  # of each implementation
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


def implementations_of(shape: PagedShape, device: Device) -> list[str]:
    """Return the names of ours that compute a shape."""
    found = our_implementations("paged_decode")
    return [each.name for each in found if each.supports(shape, device) is None]


def search(shape: PagedShape, seconds: float, trials: int, among: Sequence[str] = ()) -> Candidate:
    """Search a shape with an empty store, among implementations of these names or all of ours; return the winner."""
    from autotune.tuning import tune

    with tables_in() as folder:
        store = Store(folder)
        tuned = tune(shape, implementations=among, budget=seconds, trials=trials, store=store, must_measure=True)
    if (winner := tuned.results[0].winner) is None:
        raise AutotuneError(f"nothing was found for {shape}: {tuned.results[0].failure}")
    return winner.candidate


def kernel_of(shape: PagedShape, candidate: Candidate) -> Any:
    from autotune import get_kernel

    return get_kernel(shape, config=candidate.config, implementation=candidate.implementation)


def race_dense(candidates: Sequence[Candidate]) -> RacedLatents:
    """Race winners of implementations, their defaults, and FlashInfer over all keys."""
    from autotune.kernels.baselines.flash_infer_latent import FlashInferLatent
    from autotune.kernels.paged_decode.definition import DEFINITION
    from autotune.registry import get_implementation, get_operation
    from autotune.roofline import least_us

    device, operation = platforms.current_device(), get_operation("paged_decode")
    inputs = [DEFINITION.make_inputs(SHAPE, seed=seed, device="cuda") for seed in range(2)]
    runs: dict[str, list[Any]] = {}
    for candidate in candidates:
        name = candidate.implementation
        default = Candidate(name, get_implementation("paged_decode", name).space.default(SHAPE, device))
        for entrant, each in ((name, candidate), (f"{name} default", default)):
            runs[entrant] = [partial(kernel_of(SHAPE, each), *drawn.tensors) for drawn in inputs]
    peer = FlashInferLatent()
    try:
        runs[peer.name] = [peer.prepare(SHAPE, each) for each in inputs]
    except (BaselineUnavailableError, MissingDependencyError) as error:
        print(f"{peer.name} is left out: {error}")
    times = race_calls(runs, RACE_SECONDS)
    fastest = min(times[each.implementation] for each in candidates)
    return RacedLatents({"ours": fastest} | times, least_us(operation.cost(SHAPE), device, SHAPE.dtype))


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
    return RacedLatents(race_calls(runs, RACE_SECONDS))


def is_wanted(all_keys: RacedLatents, few_keys: RacedLatents) -> bool:
    """Return True if both comparisons are as wanted; a peer that is not there decides nothing."""
    is_slow = all_keys.ratio("flashinfer mla", "ours") < OF_PEER
    return not is_slow and few_keys.ratio("by index", "side by side") <= OF_SIDE_BY_SIDE


def print_raced(all_keys: RacedLatents, few_keys: RacedLatents, candidates: Mapping[str, Candidate]) -> None:
    """Print a row for each entrant; ``candidates`` are by their names."""
    print_head("keys", "entrant", "us", "of bound", "config")
    for keys, raced in ((SHAPE.max_context, all_keys), (INDICES, few_keys)):
        for name, microseconds in raced.times.items():
            of_bound = f"{raced.bound_us / microseconds:.3f}" if raced.bound_us else ""
            print_row(keys, name, f"{microseconds:.1f}", of_bound, candidates.get(name, ""))
    ratios = (all_keys.ratio("flashinfer mla", "ours"), few_keys.ratio("by index", "side by side"))
    print(f"\nFlashInfer's time over ours: {ratios[0]:.3f}; by index over side by side: {ratios[1]:.3f}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.latent_decode", description=__doc__)
    parser.add_argument("--trials", type=int, default=TRIALS, help="of each search [default: %(default)s]")
    parser.add_argument("--seconds", type=float, default=SEARCH_SECONDS, help="of the first [default: %(default)s]")
    chosen = parser.parse_args(arguments)
    require_gpu("latent_decode")
    # Before this process opens the GPU: its context would take part in what the searches measure.
    names = implementations_of(SHAPE, platforms.current_device())
    found = {name: search(SHAPE, chosen.seconds, chosen.trials, (name,)) for name in names}
    seconds = min(SPARSE_SECONDS, chosen.seconds)
    few = {
        name: search(shape, seconds, chosen.trials)
        for name, shape in zip(("by index", "side by side"), sparse_shapes(), strict=True)
    }
    all_keys, few_keys = race_dense(list(found.values())), race_sparse(*few.values())
    print_raced(all_keys, few_keys, found | few)
    return 0 if is_wanted(all_keys, few_keys) else 1


if __name__ == "__main__":
    sys.exit(main())
