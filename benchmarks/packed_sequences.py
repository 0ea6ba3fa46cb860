"""Compare packed sequences with our dense kernel and FlexAttention: ``python -m benchmarks.packed_sequences``.

The mixes have 16 to 512 sequences of 65,536 tokens in all, their lengths lognormal (sigma 0.8, the spread of prompts
that serve), 32/8 heads of 128, bf16. Each is searched for so many seconds (0: what is served untuned), with an empty
store. One interleaved race then holds ``attention_varlen``, ``attention`` over as many sequences of one length that
have the same FLOPs (served as it ships), torch's own varlen attention and FlexAttention under a document mask.

Wanted of each mix: at least 0.95 of the dense kernel's FLOP/s, and 1.3 times the speed of the document mask; exits with
1 below. The output is Markdown.
"""

import argparse
import math
import random
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from autotune.errors import AutotuneError
from autotune.shape import AttentionShape
from autotune.table import Store
from autotune.varlen_shape import VarlenShape
from benchmarks.console import print_head, print_row, require_gpu
from benchmarks.racing import race_calls
from benchmarks.user_tables import tables_in

SEQUENCES: Final = (16, 64, 256, 512)
TOKENS: Final = 65_536
SIGMA: Final = 0.8
HEADS: Final[dict[str, Any]] = {"heads": 32, "kv_heads": 8, "head_dim": 128}
SEARCH_SECONDS: Final = 15.0
RACE_SECONDS: Final = 3.0
PEERS: Final = ("torch varlen", "flex documents")
OF_DENSE: Final = 0.95
OVER_FLEX: Final = 1.3


class RacedMix(NamedTuple):
    """A mix, microseconds of each entrant by name, and what the FLOPs of the mix are to those of the dense problem."""

    shape: VarlenShape
    lengths: tuple[int, ...]
    dense: AttentionShape
    config: str
    times: dict[str, float]
    flops_ratio: float

    @property
    def of_dense(self) -> float:
        """The FLOP/s of packed sequences as a part of the dense kernel's."""
        return self.flops_ratio * self.times["dense"] / self.times["ours"]

    def over(self, peer: str) -> float:
        """The time of a peer over ours; NaN where it cannot."""
        return self.times.get(peer, math.nan) / self.times["ours"]


def draw_lengths(sequences: int, seed: int) -> tuple[int, ...]:
    """Draw lognormal lengths of at least one token whose sum is ``TOKENS``."""
    draw = random.Random(seed)
    weights = [draw.lognormvariate(0.0, SIGMA) for _ in range(sequences)]
    lengths = [max(1, int(weight * TOKENS / sum(weights))) for weight in weights]
    lengths[lengths.index(max(lengths))] += TOKENS - sum(lengths)
    return tuple(lengths)


def problem(lengths: Sequence[int], causal: bool) -> tuple[VarlenShape, AttentionShape]:
    """Return the shape of a mix, and the dense one of as many sequences with its FLOPs, but for rounding."""
    mean = math.ceil(sum(lengths) / len(lengths))
    shape = VarlenShape(
        batch=len(lengths), max_seq_q=max(lengths), mean_seq_q=mean, causal=causal, dtype="bfloat16", **HEADS
    )
    alike = round(math.sqrt(sum(length**2 for length in lengths) / len(lengths)))
    return shape, AttentionShape(batch=len(lengths), seq_q=alike, causal=causal, dtype="bfloat16", **HEADS)


def search(shape: VarlenShape, seconds: float) -> Any:
    """Return the winner of a search with an empty store, or None for what is served untuned."""
    if not seconds:
        return None
    from autotune.tuning import tune

    with tables_in() as folder:
        tuned = tune(shape, budget=seconds, trials=None, store=Store(folder), must_measure=True)
    if (winner := tuned.results[0].winner) is None:
        raise AutotuneError(f"nothing was found for {shape}: {tuned.results[0].failure}")
    return winner.candidate


def race(lengths: tuple[int, ...], causal: bool, candidate: Any) -> RacedMix:
    """Race a mix beside the dense kernel and the peers, each over inputs of its own that rotate past the L2."""
    import torch

    from autotune import get_kernel
    from autotune.kernels.baselines.lists import OF_VARLEN
    from autotune.kernels.flash_attention_varlen.definition import DEFINITION as PACKED
    from autotune.kernels.flash_attention_varlen.inputs import check_shape

    shape, dense = problem(lengths, causal)
    chosen = {} if candidate is None else {"config": candidate.config, "implementation": candidate.implementation}
    ours, fixed = get_kernel(shape, **chosen), get_kernel(dense)
    packed = check_shape(shape, [(length, length) for length in lengths])
    inputs = [PACKED.make_inputs(packed, seed=seed, device="cuda") for seed in range(2)]
    sizes = (dense.batch, dense.seq_q)
    beside = [
        [
            torch.randn(*sizes, heads, dense.head_dim, dtype=torch.bfloat16, device="cuda")
            for heads in (dense.heads, dense.kv_heads, dense.kv_heads)
        ]
        for _ in range(2)
    ]
    runs: dict[str, list[Any]] = {
        "ours": [partial(ours, *each.tensors) for each in inputs],
        "dense": [partial(fixed, *each) for each in beside],
    }
    for peer in OF_VARLEN:
        if peer.name in PEERS and peer.available() is None and peer.unsupported(shape) is None:
            runs[peer.name] = [peer.prepare(shape, each) for each in inputs]
    times = race_calls(runs, RACE_SECONDS)
    flops_ratio = sum(length**2 for length in lengths) / (len(lengths) * dense.seq_q**2)
    return RacedMix(shape, lengths, dense, str(ours.config), times, flops_ratio)


def is_wanted(found: Sequence[RacedMix]) -> bool:
    """Return True if each mix is as fast as wanted; a peer that cannot compute it decides nothing."""
    return all(each.of_dense >= OF_DENSE and not each.over("flex documents") < OVER_FLEX for each in found)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.packed_sequences", description=__doc__)
    parser.add_argument("--seconds", type=float, default=SEARCH_SECONDS, help="of each search [default: %(default)s]")
    parser.add_argument("--sequences", type=int, nargs="+", choices=SEQUENCES, default=SEQUENCES)
    parser.add_argument("--masks", nargs="+", choices=("causal", "full"), default=("causal", "full"))
    parser.add_argument("--seed", type=int, default=0, help="of the lengths [default: %(default)s]")
    chosen = parser.parse_args(arguments)
    require_gpu("packed_sequences")
    mixes = [
        (draw_lengths(count, chosen.seed), mask == "causal") for mask in chosen.masks for count in chosen.sequences
    ]
    # Before this process opens the GPU: its context would take part in what the searches measure.
    candidates = [search(problem(*mix)[0], chosen.seconds) for mix in mixes]
    found = []
    print_head(
        "sequences", "longest", "mask", "us", "dense us", "of dense", *(f"{peer} / ours" for peer in PEERS), "config"
    )
    for mix, candidate in zip(mixes, candidates, strict=True):
        found.append(one := race(*mix, candidate))
        print_row(
            *(len(one.lengths), max(one.lengths), "causal" if one.shape.causal else "full"),
            *(f"{one.times['ours']:.1f}", f"{one.times['dense']:.1f}", f"{one.of_dense:.3f}"),
            *("" if math.isnan(one.over(peer)) else f"{one.over(peer):.2f}" for peer in PEERS),
            one.config,
        )
    return 0 if is_wanted(found) else 1


if __name__ == "__main__":
    sys.exit(main())
