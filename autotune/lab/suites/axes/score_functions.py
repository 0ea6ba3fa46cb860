"""FlexAttention's score functions and masks, beside the no-op that changes nothing."""

import contextlib
import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from autotune import sheets
from autotune.correctness import TOLERATED, error_limit, largest_error
from autotune.errors import one_line
from autotune.kernels.baselines.flex import Flex
from autotune.kernels.flash_attention.flex.masks import alibi, causal_mask, document_mask, softcap, window_mask
from autotune.lab.bench.entrants import Run
from autotune.lab.bench.machines import Machine
from autotune.lab.suites.axes.kv_cache import HEADS, RUNS
from autotune.lab.suites.suite import SuiteSheet
from autotune.lab.suites.threads import time_by_threads

FLEX_GRID: Final = ((8, 8, 64), (16, 16, 128), (32, 32, 256))  # batch, sequence, hidden
NOT_COMPILED_RUNS: Final = 20
CAP: Final = 20.0
WINDOW: Final = 4  # keys on each side, the query's own one of them: fewer than the shortest sequence has
DOCUMENT: Final = 5  # tokens of each but the last: no length of the grid is a multiple
NO_OP: Final = "no-op"
ALIBI: Final = "ALiBi"
COMPILED_ON_CPU: Final = {FLEX_GRID[0]: (NO_OP, ALIBI)}  # each takes inductor 5 to 20 s
COLUMNS: Final = (
    *(sheets.number(name, "d") for name in ("batch", "sequence", "hidden")),
    *map(sheets.text, ("compiled", "function")),
    sheets.number("threads"),
    sheets.timing(),
    sheets.ratio("times no-op"),
    sheets.number("error", ".1e"),
)
SETUP: Final = f"attention of {HEADS} heads, float32, {RUNS} runs; error: the largest against fp64"
ON_GPU: Final = "inputs require gradients, as in the article"
ON_CPU: Final = (
    f"reduced: compiled at the first size alone, and of the functions {NO_OP} and {ALIBI}; where it is not compiled, "
    f"torch prepares each call anew, which is most of its time, and {NOT_COMPILED_RUNS} runs are made; "
    "without gradients, which FlexAttention refuses on a CPU"
)


class ScoreFunction(NamedTuple):
    """A function of the scores, or a mask of the keys; without both, the no-op."""

    score_mod: Any = None
    mask_mod: Any = None


class FlexTensors(NamedTuple):
    """Queries, keys and values ``[B, S, H, D]``."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor

    @property
    def scale(self) -> float:
        return float(self.q.shape[3] ** -0.5)


def flex_sheet(machine: Machine, grid: tuple[tuple[int, int, int], ...] = FLEX_GRID, runs: int = RUNS) -> SuiteSheet:
    rows: list[tuple[Any, ...]] = []
    failures: list[str] = []
    is_cpu = machine.kind == "cpu"
    missing = Flex().available()
    for size in grid:
        where = "score functions: batch {}, sequence {}, hidden {}".format(*size)
        if is_cpu:
            machine.on_step(f"{where}, not compiled")
            calls = flex_calls(*size, machine.kind)
            rows += _rows(machine, size, "no", calls, min(runs, NOT_COMPILED_RUNS), failures)
        if missing is None and (not is_cpu or size in COMPILED_ON_CPU):
            names = COMPILED_ON_CPU[size] if is_cpu else tuple(functions(size[1], machine.kind))
            machine.on_step(f"{where}, compiling {', '.join(names)}")
            calls = compiled_calls(*size, machine.kind, names, gradients=not is_cpu, failures=failures)
            rows += _rows(machine, size, "yes", calls, runs, failures)
        machine.release()
    notes = (SETUP, ON_CPU if is_cpu else ON_GPU, *((f"not compiled: {missing}",) if missing else ()))
    return SuiteSheet("score functions of FlexAttention", COLUMNS, tuple(rows), notes, tuple(failures))


def _rows(
    machine: Machine,
    size: tuple[int, int, int],
    compiled: str,
    calls: Mapping[str, Run],
    runs: int,
    failures: list[str],
) -> Iterator[tuple[Any, ...]]:
    """Time the calls of one size that are right, with each number of threads; the others become failures."""
    tensors, known = make_tensors(*size, machine.kind), functions(size[1], machine.kind)
    errors: dict[str, float] = {}
    right: dict[str, Run] = {}
    with _without_advice():
        for name, call in calls.items():
            exact, limit = reference(tensors, known[name])
            errors[name] = largest_error(call().detach(), exact)
            if errors[name] <= limit:
                right[name] = call
            else:
                failures.append(f"{size}, {name}: largest error {errors[name]:.3g} exceeds {limit:.3g}")
        for threads, times in time_by_threads(machine, right, runs):
            for name, timing in times.items():
                slower = timing.median_us / times[NO_OP].median_us if NO_OP in times else None
                yield (*size, compiled, name, threads, timing, slower, errors[name])


def functions(sequence: int, device: str) -> dict[str, ScoreFunction]:
    """Make the no-op, and the functions that are compared with it at a length.

    ALiBi's slopes are those of the paper (arXiv 2108.12409) for 4 heads. Documents follow one another in a sequence.
    """
    documents = torch.arange(sequence, device=device) // DOCUMENT
    slopes = torch.exp2(-8.0 * torch.arange(1, HEADS + 1, device=device) / HEADS)
    return {
        NO_OP: ScoreFunction(),
        ALIBI: ScoreFunction(score_mod=alibi(slopes)),
        "softcap": ScoreFunction(score_mod=softcap(CAP)),
        "causal mask": ScoreFunction(mask_mod=causal_mask()),
        "sliding window": ScoreFunction(mask_mod=window_mask(WINDOW)),
        "document mask": ScoreFunction(mask_mod=document_mask(documents, documents)),
    }


def make_tensors(batch: int, sequence: int, hidden: int, device: str, *, gradients: bool = False) -> FlexTensors:
    generator = torch.Generator(device=device).manual_seed(0)
    sizes = (batch, sequence, HEADS, hidden // HEADS)
    return FlexTensors(
        *(torch.randn(sizes, generator=generator, device=device).requires_grad_(gradients) for _ in range(3))
    )


def flex_calls(batch: int, sequence: int, hidden: int, device: str) -> dict[str, Run]:
    """Make a call of every function over tensors of a size: compiled and with gradients on a GPU, neither on a CPU."""
    known = functions(sequence, device)
    if device != "cpu":
        return compiled_calls(batch, sequence, hidden, device, tuple(known), gradients=True, failures=[])
    tensors = make_tensors(batch, sequence, hidden, device)
    return {name: _not_compiled(tensors, function) for name, function in known.items()}


def compiled_calls(
    batch: int, sequence: int, hidden: int, device: str, names: tuple[str, ...], *, gradients: bool, failures: list[str]
) -> dict[str, Run]:
    """Compile the named functions and run each once; what does not compile is added to ``failures``."""
    from autotune.kernels.flash_attention.flex.compiled import compile_attention  # needs triton

    tensors = make_tensors(batch, sequence, hidden, device, gradients=gradients)
    known = functions(sequence, device)
    calls = {}
    for name in names:
        score_mod, mask_mod = known[name]
        try:
            compiled = compile_attention(
                *tensors, scale=tensors.scale, score_mod=score_mod, mask_mod=mask_mod, gradients=gradients
            )
            calls[name] = compiled.bind(*tensors)
        except Exception as error:  # dynamo, inductor and the compilers have no exception in common
            failures.append(f"{(batch, sequence, hidden)}, {name}: {one_line(error)}")
    return calls


def _not_compiled(tensors: FlexTensors, function: ScoreFunction) -> Run:
    q, k, v = (tensor.transpose(1, 2) for tensor in tensors)
    mask = None
    if function.mask_mod is not None:
        mask = create_block_mask(function.mask_mod, None, None, q.shape[2], k.shape[2], device=q.device)

    def run() -> torch.Tensor:
        out: Any = flex_attention(q, k, v, score_mod=function.score_mod, block_mask=mask, scale=tensors.scale)
        return out.transpose(1, 2)  # type: ignore[no-any-return]

    return run


def reference(tensors: FlexTensors, function: ScoreFunction) -> tuple[torch.Tensor, float]:
    """Compute attention under a function in fp64, ``[B, S, H, D]``, and the largest error that is allowed."""
    exact = _dense(*(tensor.double() for tensor in tensors), function=function, scale=tensors.scale)
    eager = _dense(*tensors, function=function, scale=tensors.scale)
    return exact, TOLERATED * error_limit(exact, eager, torch.float32)


def _dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, function: ScoreFunction, scale: float) -> torch.Tensor:
    """Compute all scores at once: a function of one score takes a tensor of them, given tensors of places."""
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    scores = (q @ k.mT) * scale
    batch, head, query, key = (
        torch.arange(count, device=q.device).view([-1 if axis == place else 1 for axis in range(4)])
        for place, count in enumerate(scores.shape)
    )
    if function.score_mod is not None:
        scores = function.score_mod(scores, batch, head, query, key)
    if function.mask_mod is not None:
        scores = scores.masked_fill(~function.mask_mod(batch, head, query, key), -math.inf)
    return (torch.softmax(scores, -1) @ v).transpose(1, 2)


@contextlib.contextmanager
def _without_advice() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*flex_attention called without torch.compile.*")
        yield
