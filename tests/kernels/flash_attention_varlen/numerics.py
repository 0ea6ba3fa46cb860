"""Attention over packed sequences: the truth by dense attention, one sequence at a time, and layouts of its tensors."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Final

import torch

from autotune.correctness import STATISTIC_UNITS, error_limit
from autotune.implementation import Kernel
from autotune.kernels.flash_attention_varlen.definition import DEFINITION
from autotune.kernels.flash_attention_varlen.inputs import Inputs, check_shape
from autotune.kernels.flash_attention_varlen.triton import KERNEL
from autotune.space import Config
from autotune.varlen_shape import VarlenShape
from tests.kernels.numerics import compare, dense_attention

CONFIG: Final = Config(
    BLOCK_Q=32, BLOCK_K=32, sequences="packed", order="head", num_warps=2, num_stages=2, loads="pointer", kpack=None
)
HALF: Final = VarlenShape(batch=1, heads=4, kv_heads=2, max_seq_q=64, head_dim=32, dtype="float16", causal=True)
# Every order of sequences and of programs, and each way to load.
ORDERS: Final = (("packed", "head", "pointer"), ("packed", "tile", "descriptor"), ("longest", "tile", "pointer"))


def config_of(sequences: str, order: str, loads: str) -> Config:
    return Config({**CONFIG, "sequences": sequences, "order": order, "loads": loads})


def truth(inputs: Inputs, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """The output ``[T, H, D_v]`` and the logarithm ``[T, H]``; a sink takes its share of a finished softmax."""
    features = {name: getattr(inputs, name) for name in ("causal", "window", "softcap", "scale")}
    out = torch.zeros(*inputs.q.shape[:2], inputs.v.shape[2], dtype=dtype, device=inputs.q.device)
    lse = torch.zeros(inputs.q.shape[:2], dtype=dtype, device=inputs.q.device)
    bounds = (pairwise(offsets.tolist()) for offsets in (inputs.cu_seqlens_q, inputs.cu_seqlens_k))
    for (begin, end), (first, last) in zip(*bounds, strict=True):
        if first == last:
            lse[begin:end] = -math.inf
        elif begin < end:
            q, k, v = inputs.q[None, begin:end], inputs.k[None, first:last], inputs.v[None, first:last]
            found, logarithms = dense_attention(q, k, v, **features, dtype=dtype)
            out[begin:end], lse[begin:end] = found[0], logarithms[0].T
    if inputs.sinks is not None:
        ahead = lse - inputs.sinks.to(dtype)
        out = out * torch.sigmoid(ahead)[..., None]
        lse = inputs.sinks.to(dtype) + torch.logaddexp(ahead, torch.zeros_like(ahead))
    return out, lse


@dataclass(frozen=True, slots=True)
class Runner:
    """A kernel, and configs of every order of sequences and of programs, and of each way to load."""

    kernel: Kernel
    configs: tuple[Config, ...]


TRITON: Final = Runner(KERNEL, tuple(config_of(*order) for order in ORDERS))


def launched(inputs: Inputs, config: Config = CONFIG, kernel: Kernel = KERNEL) -> tuple[torch.Tensor, ...]:
    outputs = DEFINITION.empty_outputs(inputs)
    kernel.launch(config, inputs, outputs)
    return outputs


def failure(inputs: Inputs, config: Config, kernel: Kernel = KERNEL) -> str | None:
    """Say how an output misses its truth, or None."""
    for index, (found, true) in enumerate(
        zip(launched(inputs, config, kernel), truth(inputs, torch.float64), strict=True)
    ):
        rounded = truth(inputs, found.dtype)[index]
        limit = error_limit(true, rounded, found.dtype, **({"units": STATISTIC_UNITS} if index else {}))
        if (problem := compare(found, true, limit)) is not None:
            return f"output {index}: {problem}"
    return None


def lengths_failure(
    lengths: Sequence[tuple[int, int]], fields: dict[str, Any], device: str, runner: Runner = TRITON
) -> str | None:
    """Run sequences of these queries and keys in every order: the truth, and the same bits in each."""
    inputs = DEFINITION.make_inputs(check_shape(replace(HALF, **fields), lengths), seed=1, device=device)
    first: tuple[torch.Tensor, ...] | None = None
    for config in runner.configs:
        if (problem := failure(inputs, config, runner.kernel)) is not None:
            return f"{config}: {problem}"
        found = launched(inputs, config, runner.kernel)
        first = first or found
        if not all(torch.equal(*pair) for pair in zip(first, found, strict=True)):
            return f"{config}: other bits than in the first order"
    return None


def many_failure(count: int, config: Config, device: str, kernel: Kernel = KERNEL) -> str | None:
    """Run about as many sequences as a program looks at together, or more, most of them empty."""
    lengths = [(0, 0)] * count
    for number in (0, 100, 254, count - 2):
        lengths[number] = (3, 7)
    lengths[count - 1] = (40, 90)
    shape = check_shape(replace(HALF, heads=1, kv_heads=1), lengths)
    return failure(DEFINITION.make_inputs(shape, seed=1, device=device), config, kernel)


def strides_failure(device: str, config: Config = CONFIG, kernel: Kernel = KERNEL) -> str | None:
    """Run slices of one fused projection ``[T, H + 2 H_kv, D]``, between which lies NaN, by one of its heads."""
    inputs = DEFINITION.make_inputs(check_shape(HALF, [(40, 40), (7, 7), (0, 0)]), seed=1, device=device)
    tokens, width = inputs.q.shape[0], HALF.head_dim
    fused = inputs.q.new_full((tokens, 9, width + 8), math.nan)
    slices: dict[str, Any] = {"q": fused[:, :4, :width], "k": fused[:, 4:6, :width], "v": fused[:, 6:8, :width]}
    for name, room in slices.items():
        room.copy_(getattr(inputs, name))
    found, expected = launched(replace(inputs, **slices), config, kernel), launched(inputs, config, kernel)
    same = all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
    return None if same else "strides change the result"


def neighbours_failure(device: str, runner: Runner = TRITON) -> str | None:
    """A sequence of NaN beside one that is finite leaves that as it was: nothing of another is loaded."""
    inputs = DEFINITION.make_inputs(check_shape(HALF, [(20, 20), (33, 33), (20, 20)]), seed=1, device=device)
    for config in runner.configs:
        whole = launched(inputs, config, runner.kernel)
        for name in ("q", "k", "v"):
            spoiled: dict[str, Any] = {each: getattr(inputs, each).clone() for each in ("q", "k", "v")}
            spoiled[name][20:53] = math.nan
            found = launched(replace(inputs, **spoiled), config, runner.kernel)
            for one, other in zip(whole, found, strict=True):
                if not torch.equal(one[:20], other[:20]) or not torch.equal(one[53:], other[53:]):
                    return f"{config}: {name} of another sequence reached a result"
    return None


# Of 300 queries and 340 keys: captured, then replayed, first with more tiles than were captured.
DIVISIONS: Final[tuple[tuple[tuple[int, int], ...], ...]] = (
    ((300, 300), (0, 30), (0, 10)),
    ((1, 3), (129, 167), (170, 170)),
    ((0, 80), (300, 200), (0, 60)),
)


def graph_failure(runner: Runner = TRITON) -> str | None:
    """Replay a captured launch, and a captured call on another stream, after the offsets have changed: they compute the
    new division."""
    shape = check_shape(HALF, DIVISIONS[0])
    inputs = DEFINITION.make_inputs(shape, seed=1, device="cuda")
    streams = (torch.cuda.current_stream(), torch.cuda.Stream())  # type: ignore[no-untyped-call]
    for config in runner.configs:
        outputs, called = DEFINITION.empty_outputs(inputs), torch.empty_like(inputs.q)
        graphs = (
            captured(partial(runner.kernel.launch, config, inputs, outputs)),
            captured(partial(runner.kernel.bind(config, shape), *inputs.tensors, out=called)),
        )
        for division in DIVISIONS[1:]:
            for offsets, lengths in zip(inputs.tensors[3:], zip(*division, strict=True), strict=True):
                offsets.copy_(torch.tensor([0, *accumulate(lengths)]))
            for found, graph, stream in zip((outputs[0], called), graphs, streams, strict=True):
                found.fill_(math.nan)
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    graph.replay()
                torch.cuda.current_stream().wait_stream(stream)
            expected, eager = (truth(inputs, dtype)[0] for dtype in (torch.float64, torch.float16))
            for name, found in (("launch", outputs[0]), ("call", called)):
                if (problem := compare(found, expected, error_limit(expected, eager, torch.float16))) is not None:
                    return f"{config}, {name} of {division}: {problem}"
    return None


def captured(call: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    """Capture a call that was made twice before, so that it is compiled, and known if it is one of a signature."""
    call()
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


HOSTILE: Final = {
    "offsets that fall": ((0, 961, 42, 60), (0, 60, 30, 90)),
    "offsets below 0": ((-40, 20, 50, 60), (-9, 30, 60, 90)),
    "offsets past the rows": ((0, 20, 900, 60), (0, 30, 2**31 - 1, 90)),
    "offsets at the ends of 32 bits": ((0, 2**31 - 1, -(2**31), 60), (0, -(2**31), 2**31 - 1, 90)),
}


def hostile_failure(name: str, device: str, runner: Runner = TRITON) -> str | None:
    """Rows past the queries are not written, and no key past the last is read, whatever the offsets say."""
    q_offsets, kv_offsets = HOSTILE[name]
    inputs = DEFINITION.make_inputs(check_shape(HALF, [(20, 30), (30, 30), (10, 30)]), seed=0, device=device)
    room = {each: torch.full((400, *getattr(inputs, each).shape[1:]), math.nan).half() for each in ("k", "v")}
    placed: dict[str, Any] = {each: rows.to(device)[:90].copy_(getattr(inputs, each)) for each, rows in room.items()}
    changed = {"cu_seqlens_q": q_offsets, "cu_seqlens_k": kv_offsets}
    offsets: dict[str, Any] = {
        each: torch.tensor(values, dtype=torch.int32, device=device) for each, values in changed.items()
    }
    for config in runner.configs:
        out = inputs.q.new_full((110, *inputs.q.shape[1:]), -7.0)
        runner.kernel.launch(config, replace(inputs, **placed, **offsets), (out[:60],))
        if not bool((out[60:] == -7.0).all()):
            return f"{config}: rows past the queries were written"
        if out[:60].isnan().any():
            return f"{config}: keys past the last were read"
    return None
