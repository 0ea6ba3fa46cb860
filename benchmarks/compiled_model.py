"""A two-layer model compiled end to end beside the same in eager mode: ``python -m benchmarks.compiled_model``.

Layers are Llama 3.1 8B's (its published config.json) at a quarter of its width, in bfloat16, batch 1; attention is
``autotune.attention``. Both run from Python, interleaved, so that host time counts as it does for a user. One function,
compiled with ``fullgraph=True, dynamic=True``, takes all lengths. Prints for each length eager's time over the compiled
model's (wanted: at least 1), the same of a model with torch's SDPA, how much more that gains a layer by compiling (what
our op costs beside one in C++), and how far the outputs of ours differ; exits with 1 where it is slower or more than
two compiles were needed.
"""

import argparse
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Final

import torch

import autotune
from autotune.timing import Stopwatch, race
from autotune.trial import Policy
from benchmarks.console import require_gpu

HEADS, KV_HEADS, HEAD_DIM, INNER = 8, 2, 128, 3584
LAYERS: Final = 2
WIDTH: Final = HEADS * HEAD_DIM
LENGTHS: Final = (96, 250, 512, 1100, 2048, 4096)
MOST_COMPILES: Final = 2
WANTED: Final = 1.0
WARM: Final = Policy(mode="eager", cache="warm")


class Layer(torch.nn.Module):
    """Attention and a gated feed-forward network over ``[B, S, WIDTH]``, each added to its input and behind a norm."""

    def __init__(self, attend: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.attend = attend
        self.norms = torch.nn.ModuleList([torch.nn.RMSNorm(WIDTH) for _ in range(2)])
        self.inward = torch.nn.Linear(WIDTH, (HEADS + 2 * KV_HEADS) * HEAD_DIM, bias=False)
        self.outward = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = torch.nn.Linear(WIDTH, 2 * INNER, bias=False)
        self.down = torch.nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        heads = self.inward(self.norms[0](hidden)).unflatten(2, (-1, HEAD_DIM))
        q, k, v = heads.split((HEADS, KV_HEADS, KV_HEADS), 2)
        hidden = hidden + self.outward(self.attend(q, k, v).flatten(2))
        gate, value = self.up(self.norms[1](hidden)).chunk(2, -1)
        added: torch.Tensor = self.down(torch.nn.functional.silu(gate) * value)
        return hidden + added


def ours(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return autotune.attention(q, k, v, causal=True)


def torchs(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    queries, keys, values = (each.transpose(1, 2) for each in (q, k, v))
    sdpa = torch.nn.functional.scaled_dot_product_attention
    return sdpa(queries, keys, values, is_causal=True, enable_gqa=True).transpose(1, 2)


def make_models(attend: Callable[..., torch.Tensor]) -> list[Callable[[torch.Tensor], torch.Tensor]]:
    """Return the model in eager mode and compiled."""
    torch.manual_seed(0)
    eager = torch.nn.Sequential(*[Layer(attend) for _ in range(LAYERS)]).to("cuda", torch.bfloat16)
    return [eager, torch.compile(eager, fullgraph=True, dynamic=True)]


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compiled_model", description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each length's race [default: 2]")
    seconds = parser.parse_args().seconds
    require_gpu("compiled_model")
    from torch._dynamo.utils import counters  # takes seconds to import

    (eager, compiled), others = make_models(ours), make_models(torchs)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    slower, compiles = [], 0
    for length in LENGTHS:
        hidden = torch.randn(1, length, WIDTH, device="cuda", dtype=torch.bfloat16)
        counters.clear()
        expected, found = eager(hidden), compiled(hidden)
        compiles += counters["stats"]["unique_graphs"]
        error = (found - expected).float().norm() / expected.float().norm()
        with ExitStack() as stack:
            calls = [partial(call, hidden) for call in (eager, compiled, *others)]
            stopwatches = [stack.enter_context(Stopwatch([call], WARM)) for call in calls]
            before, after, *of_torch = (each.median_us for each in race(stopwatches, contenders=0, seconds=seconds))
        ahead = (of_torch[0] - of_torch[1] - (before - after)) / LAYERS
        print(
            f"{before / after:.2f}x  {length:5} tokens: {after:.0f} us, eager {before:.0f} us; {error:.1e} apart; "
            f"with SDPA {of_torch[0] / of_torch[1]:.2f}x: {of_torch[1]:.0f} us, eager {of_torch[0]:.0f} us, "
            f"which gains {ahead:+.0f} us a layer more"
        )
        if before < WANTED * after:
            slower.append(str(length))
    print(f"{compiles} compiles for {len(LENGTHS)} lengths")
    if slower or compiles > MOST_COMPILES:
        sys.exit(
            f"benchmarks.compiled_model: slower than eager at {', '.join(slower) or 'no'} tokens, {compiles} compiles; "
            f"wanted: never slower, at most {MOST_COMPILES}"
        )


if __name__ == "__main__":
    main()
