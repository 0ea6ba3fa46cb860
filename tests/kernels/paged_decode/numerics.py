"""Runs the launcher and compares with dense attention in fp64, written here and nowhere near the kernel.

A slot that no key fills is NaN, a page index that no key needs leads far outside the cache.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from autotune.correctness import STATISTIC_UNITS, error_limit
from autotune.kernels.paged_cache.quantization import dequantize, quantize
from autotune.kernels.paged_decode.definition import DEFINITION
from autotune.kernels.paged_decode.inputs import CheckShape, permute_pages
from autotune.kernels.paged_decode.triton import KERNEL
from autotune.kernels.paged_decode.triton.launch import launch
from tests.contract.implementations.paged_decode_triton import config_of
from tests.kernels.numerics import compare, multiply
from tests.kernels.paged_decode.cases import SM_COUNT, Case

FAR_PAGE: Final = 2**31 - 1  # where nothing is mapped
HALF_STEPS: Final = 2 * (127 * 256 + 127)  # between 0 and the largest element of a query in two int8 parts


@dataclass(frozen=True, slots=True)
class Problem:
    """Dense keys and values ``[length, H_kv, D]`` of each sequence, and the same in pages, quantized or not."""

    q: torch.Tensor
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    k_scale: torch.Tensor | None
    v_scale: torch.Tensor | None
    page_table: torch.Tensor
    seq_lens: torch.Tensor


def dense_decode(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    absent: torch.Tensor | None = None,
    causal: bool = True,
    dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of the last queries ``[S_q, H, D]`` of one sequence over all its keys ``[length, H_kv, D]``.

    Positions are counted from the end, where the last query and the last key meet. No query sees an ``absent`` key.
    """
    group = q.shape[1] // k.shape[1]
    q, k, v = (tensor.to(dtype).transpose(0, 1) for tensor in (q, k, v))
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    scores = multiply(q, k.mT) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    query_age = torch.arange(q.shape[1], device=q.device).flip(0)[:, None]  # 0: the last one
    key_age = torch.arange(k.shape[1], device=q.device).flip(0)[None, :]
    apart = (key_age - query_age).abs()
    if alibi_slopes is not None:
        scores = scores - alibi_slopes.to(dtype)[:, None, None] * apart
    if causal:
        scores = scores.masked_fill(key_age < query_age, -math.inf)
    if window is not None:
        scores = scores.masked_fill(apart >= window, -math.inf)
    if absent is not None:
        scores = scores.masked_fill(absent, -math.inf)
    denominators = scores
    if sinks is not None:
        denominators = torch.cat([scores, sinks.to(dtype)[:, None, None].expand(-1, q.shape[1], 1)], 2)
    lse = torch.logsumexp(denominators, 2)
    weights = torch.exp(scores - lse[:, :, None]).nan_to_num(0.0)  # NaN: a query that sees nothing at all
    return multiply(weights, v).transpose(0, 1), lse.transpose(0, 1)


def make_problem(case: Case, device: str) -> Problem:
    """Random keys in shuffled pages of a pool of NaN."""
    generator = torch.Generator(device=device).manual_seed(1)
    dtype, page = getattr(torch, case.dtype), case.page_size

    def draw(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, generator=generator, device=device).to(dtype)

    counts = [-(-length // page) for length in case.lengths]
    order = torch.randperm(sum(counts) + 2, generator=generator, device=device)
    middle = (page, case.kv_heads) if case.layout == "NHD" else (case.kv_heads, page)
    # Rows of both caches are longer than their widths: no stride is what the sizes say.
    kv_dtype = getattr(torch, case.kv_dtype or case.dtype)
    k_cache, v_cache = (
        poisoned(len(order), *middle, width + 16, dtype=kv_dtype, device=device)[..., :width]
        for width in (case.head_dim, case.head_dim_v)
    )
    k_scale, v_scale = (empty_scale(case, cache, draw) for cache in (k_cache, v_cache))
    table = torch.full((len(counts), max(counts) + 3), FAR_PAGE, dtype=torch.int32, device=device)
    table[:, 1::2] = -1
    keys: list[torch.Tensor] = []
    values: list[torch.Tensor] = []
    taken = 0
    for sequence, (length, count) in enumerate(zip(case.lengths, counts, strict=True)):
        pages = order[taken : taken + count]
        taken += count
        unseen = 0 if case.window is None else max(0, length - case.seq_q - case.window + 1) // page
        table[sequence, unseen:count] = pages[unseen:].int()  # pages before every window are gone
        for cache, scale, rows in ((k_cache, k_scale, keys), (v_cache, v_scale, values)):
            tokens = draw(length, case.kv_heads, cache.shape[3])
            row_scale = None
            if scale is not None:
                tokens, row_scale = quantize(tokens, kv_dtype, None if kv_dtype == torch.int8 else scale)
            rows.append(tokens if row_scale is None else dequantize(tokens, row_scale, torch.float64))
            store(cache, tokens, pages, unseen, case)
            if scale is not None and row_scale is not None and scale.ndim == 3:
                store(scale, row_scale, pages, unseen, case)
    q = arrange(draw(len(counts), case.seq_q, case.group * case.kv_heads, case.head_dim), case.q_layout, case.kv_heads)
    lengths = torch.tensor(case.lengths, dtype=torch.int32, device=device)
    return Problem(q, keys, values, k_cache, v_cache, k_scale, v_scale, table, lengths)


def arrange(q: torch.Tensor, layout: str, kv_heads: int) -> torch.Tensor:
    """The same queries ``[..., H, D]``: as they are, cut out of a fused QKV, or head by head; NaN lies between them."""
    *others, heads, width = q.shape
    if layout == "fused":
        return q.new_full((*others, heads + 2 * kv_heads, width), math.nan)[..., :heads, :].copy_(q)
    if layout == "heads first":
        others[-1] += 1
        return q.new_full((heads, *others, width), math.nan)[..., :-1, :].movedim(0, -2).copy_(q)
    return q


def poisoned(*sizes: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """NaN everywhere, or the largest number of a type that has none; 480 for e4m3 in Triton's interpreter (3.6.0)."""
    if dtype.itemsize > 1:
        return torch.full(sizes, math.nan, dtype=dtype, device=device)
    return torch.full(sizes, 0x7F, dtype=torch.uint8, device=device).view(dtype)


def empty_scale(case: Case, cache: torch.Tensor, draw: Callable[..., torch.Tensor]) -> torch.Tensor | None:
    """NaN for each slot and head of int8, a scale for each head of other one-byte types, or one for all heads."""
    if case.kv_dtype is None:
        return None
    if cache.dtype == torch.int8:
        return torch.full(cache.shape[:3], math.nan, device=cache.device)
    scale = draw(case.kv_heads).float().abs() + 0.25
    return scale if case.lse else scale[:1].squeeze()


def store(cache: torch.Tensor, rows: torch.Tensor, pages: torch.Tensor, unseen: int, case: Case) -> None:
    """Put a sequence's rows ``[length, H_kv, ...]`` into its pages, but for those before every window."""
    if cache.itemsize == 1:
        cache, rows = cache.view(torch.uint8), rows.view(torch.uint8)
    slots = cache if case.layout == "NHD" else cache.transpose(1, 2)
    for index in range(unseen, len(pages)):
        part = rows[index * case.page_size : (index + 1) * case.page_size]
        slots[pages[index], : len(part)] = part


def case_failure(case: Case, device: str) -> str | None:
    """Run a case; what is wrong with its result, or None."""
    problem = make_problem(case, device)
    heads, dtype = case.group * case.kv_heads, getattr(torch, case.dtype)
    generator = torch.Generator(device=device).manual_seed(2)
    features: dict[str, Any] = {
        "scale": case.head_dim**-0.5 if case.scale is None else case.scale,
        "window": case.window,
        "softcap": case.softcap,
        "sinks": torch.randn(heads, generator=generator, device=device) if case.sinks else None,
        "alibi_slopes": torch.rand(heads, generator=generator, device=device) if case.alibi else None,
    }
    out = problem.q.new_full((*problem.q.shape[:3], case.head_dim_v), math.nan)
    lse = problem.q.new_full(problem.q.shape[:3], math.nan, dtype=torch.float32)
    launch(
        *(problem.q, problem.k_cache, problem.v_cache, problem.page_table, problem.seq_lens, out),
        lse if case.lse else None,
        **features,
        k_scale=problem.k_scale,
        v_scale=problem.v_scale,
        layout=case.layout,
        options=case.options,
        sm_count=SM_COUNT,
    )

    def truth(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        sequences = zip(problem.q, problem.keys, problem.values, strict=True)
        results = [dense_decode(*tensors, **features, dtype=dtype) for tensors in sequences]
        return tuple(map(torch.stack, zip(*results, strict=True)))

    expected, expected_lse = truth(torch.float64)
    found = compare(out, expected, error_limit(expected, truth(dtype)[0], dtype))
    if found is None and case.lse:
        limit = error_limit(expected_lse, truth(torch.float32)[1], torch.float32, units=STATISTIC_UNITS)
        if case.kv_dtype == "int8":
            limit += (
                8 * torch.finfo(torch.float32).eps
            )  # a scale's exponent is added to the largest score and taken off
            limit += query_rounding(problem, features["scale"])
        if case.softcap:  # tanh is as exact as its largest value, not as each of its own
            limit += 2 * torch.finfo(torch.float32).eps * case.softcap
        found = compare(lse, expected_lse, limit)
    return found


def query_rounding(problem: Problem, scale: float) -> float:
    """Error of scores allowed because int8 keys are multiplied by queries of 16 bits (docs/paged-attention.md)."""
    most = max((keys.abs().sum(-1).max().item() for keys in problem.keys if keys.numel()), default=0.0)
    return problem.q.abs().max().item() / HALF_STEPS * most * scale


def distant_failure(axis: str, stride: int, device: str) -> str | None:
    """Run over a cache whose neighbours along ``axis`` lie ``stride`` elements apart; as ``case_failure``.

    Both caches live in one allocation of which a CPU gives out only the pages that are touched.
    """
    lengths, width = (40, 25), 32
    shape = {"page": (5, 16, 1, width), "slot": (5, 16, 1, width), "head": (5, 16, 3, width)}[axis]
    place = ("page", "slot", "head").index(axis)
    strides = [shape[1] * shape[2] * width, shape[2] * width, width, 1]
    strides[place] = stride
    if axis == "slot":
        strides[0] = width  # pages between the slots
    gap = 2**17
    buffer = torch.empty(shape[place] * stride + 2 * gap, dtype=torch.float16, device=device)
    generator = torch.Generator(device=device).manual_seed(0)

    def draw(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, generator=generator, device=device).half()

    k_cache, v_cache = (buffer.as_strided(shape, strides, start).copy_(draw(*shape)) for start in (0, gap))
    table = torch.tensor([[4, 0, 2], [1, 3, FAR_PAGE]], dtype=torch.int32, device=device)
    q, seq_lens = draw(2, 1, shape[2], width), torch.tensor(lengths, dtype=torch.int32, device=device)
    out = torch.full_like(q, math.nan)
    options = dict(config_of("split", work=1, num_stages=1))
    features: dict[str, Any] = {"window": None, "softcap": None, "sinks": None, "alibi_slopes": None}
    launch(q, k_cache, v_cache, table, seq_lens, out, None, layout="NHD", scale=0.2, **features, options=options)
    for sequence, length in enumerate(lengths):
        pages = table[sequence, : -(-length // 16)].long()
        k, v = (torch.cat([cache[page] for page in pages.tolist()])[:length] for cache in (k_cache, v_cache))
        expected, eager = (
            dense_decode(q[sequence], k, v, scale=0.2, dtype=t)[0] for t in (torch.float64, torch.float16)
        )
        if (found := compare(out[sequence], expected, error_limit(expected, eager, torch.float16))) is not None:
            return found
    return None


def graph_failure(schedule: str, combine: str) -> str | None:
    """Capture a launch, change lengths and pages under it, replay: what the graph computes must follow."""
    sizes: dict[str, Any] = {"batch": 5, "heads": 8, "kv_heads": 2, "max_context": 900, "head_dim": 64}
    lengths = ((900, 0, 33, 64, 1), (16, 900, 0, 200, 450))
    shapes = [CheckShape(**sizes, dtype="float16", lengths=chosen) for chosen in lengths]
    captured, later = (DEFINITION.make_inputs(shape, seed=0, device="cuda") for shape in shapes)
    config = config_of(schedule, work=2, combine=combine)
    captured = replace(captured, k_cache=later.k_cache, v_cache=later.v_cache)
    out = DEFINITION.empty_outputs(captured)[0]
    KERNEL.launch(config, later, (out,))  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        KERNEL.launch(config, captured, (out,))
    captured.seq_lens.copy_(later.seq_lens)
    captured.page_table.copy_(later.page_table)
    captured.q.copy_(later.q)
    out.fill_(math.nan)
    graph.replay()
    expected, eager = (DEFINITION.reference(later, dtype=dtype)[0] for dtype in (None, torch.float16))
    return compare(out, expected, error_limit(expected, eager, torch.float16))


def poison_failure(kv_dtype: str, where: str, device: str) -> str | None:
    """One NaN among the queries, the keys or the values of the first sequence: its results show it, no other's do."""
    sizes: dict[str, Any] = {"batch": 2, "heads": 4, "kv_heads": 1, "max_context": 90, "head_dim": 64}
    shape = CheckShape(**sizes, dtype="float16", kv_dtype=kv_dtype, lengths=(70, 90))
    inputs = DEFINITION.make_inputs(shape, seed=0, device=device)
    page, slot = int(inputs.page_table[0, 2]), 5
    if where == "q":
        inputs.q[0, 0, :, 3] = math.nan
    elif kv_dtype == "int8":  # a token that held NaN has such a scale, and bytes that say nothing
        scale = {"k": inputs.k_scale, "v": inputs.v_scale}[where]
        assert scale is not None
        scale[page, slot] = math.nan
    else:
        {"k": inputs.k_cache, "v": inputs.v_cache}[where][page, slot, 0, 3] = math.nan
    for schedule in ("split", "flat"):
        out = DEFINITION.empty_outputs(inputs)[0]
        KERNEL.launch(config_of(schedule, work=4), inputs, (out,))
        if not out[0].isnan().any(-1).all():
            return f"{schedule}: NaN is lost"
        if out[1].isnan().any():
            return f"{schedule}: NaN is found in another sequence"
    return None


def streams_failure(schedule: str, combine: str) -> str | None:
    """Two graphs, replayed on two streams at once, again and again: neither disturbs the other."""
    sizes: dict[str, Any] = {"batch": 6, "heads": 8, "kv_heads": 2, "max_context": 2000, "head_dim": 64}
    shape = CheckShape(**sizes, dtype="float16", lengths=(2000, 0, 33, 640, 1, 700))
    config = config_of(schedule, work=2, combine=combine)
    problems = [DEFINITION.make_inputs(shape, seed=seed, device="cuda") for seed in (0, 1)]
    outputs = [DEFINITION.empty_outputs(problem)[0] for problem in problems]
    graphs = []
    for problem, out in zip(problems, outputs, strict=True):
        KERNEL.launch(config, problem, (out,))  # compiles
        torch.cuda.synchronize()
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1]):
            KERNEL.launch(config, problem, (out,))
    streams: list[Any] = [torch.cuda.Stream() for _ in graphs]  # type: ignore[no-untyped-call]
    expected = [DEFINITION.reference(problem)[0] for problem in problems]
    eager = [DEFINITION.reference(problem, dtype=torch.float16)[0] for problem in problems]
    for _ in range(50):
        for out in outputs:
            out.fill_(math.nan)
        torch.cuda.synchronize()
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        torch.cuda.synchronize()
        for out, truth, rounded in zip(outputs, expected, eager, strict=True):
            if (found := compare(out, truth, error_limit(truth, rounded, torch.float16))) is not None:
                return found
    return None


def order_failure(schedule: str, combine: str, device: str) -> str | None:
    """Move the pages about: the result must be the same to the bit."""
    lengths = (40, 0, 200, 3, 129)
    sizes: dict[str, Any] = {"batch": 5, "heads": 8, "kv_heads": 2, "max_context": 200, "head_dim": 64}
    shape = CheckShape(**sizes, dtype="float16", lengths=lengths, sm_count=4)
    inputs = DEFINITION.make_inputs(shape, seed=0, device=device)
    config = config_of(schedule, work=4, combine=combine)
    outputs = []
    for problem in (inputs, inputs, permute_pages(inputs, seed=1)):
        outputs.append(DEFINITION.empty_outputs(problem))
        KERNEL.launch(config, problem, outputs[-1])
    return (
        None if all(torch.equal(outputs[0][0], other[0]) for other in outputs[1:]) else "the bits depend on the order"
    )


def shared_failure(schedule: str, combine: str, device: str) -> str | None:
    """A page table of stride 0 over the batch: sequences are prefixes, of their own lengths, of the same pages."""
    lengths = (40, 0, 100, 3)
    sizes: dict[str, Any] = {"batch": 4, "heads": 4, "kv_heads": 1, "max_context": 100, "head_dim": 32}
    inputs = DEFINITION.make_inputs(
        CheckShape(**sizes, dtype="float16", lengths=lengths, sm_count=SM_COUNT), seed=0, device=device
    )
    row = inputs.page_table[2]  # of the longest
    shared = replace(inputs, page_table=row.expand(len(lengths), -1))
    assert shared.page_table.stride(0) == 0
    out = DEFINITION.empty_outputs(shared)[0]
    KERNEL.launch(config_of(schedule, work=2, combine=combine), shared, (out,))
    k, v = (cache[row.long()].flatten(0, 1) for cache in (inputs.k_cache, inputs.v_cache))

    def truth(dtype: torch.dtype) -> torch.Tensor:
        results = [
            dense_decode(q, k[:length], v[:length], scale=inputs.scale, dtype=dtype)[0]
            for q, length in zip(inputs.q, lengths, strict=True)
        ]
        return torch.stack(results)

    expected = truth(torch.float64)
    return compare(out, expected, error_limit(expected, truth(torch.float16), torch.float16))


def call_failure(device: str) -> str | None:
    """Call what ``bind`` returns: ``q`` with and without its axis of queries, with and without the logarithm."""
    config = config_of("flat", work=2, num_stages=1, kpack=None)
    lengths = (40, 1, 75)
    shape = CheckShape(
        batch=3, heads=4, kv_heads=2, max_context=75, head_dim=24, head_dim_v=16, dtype="float16", lengths=lengths
    )  # fmt: skip
    checks: list[tuple[dict[str, Any], Callable[[Any], dict[str, Any]]]] = [
        ({}, lambda inputs: {}),
        (
            {"softcap": True, "sinks": True, "alibi": True, "window": 30},
            lambda inputs: {name: getattr(inputs, name) for name in ("softcap", "sinks", "alibi_slopes")},
        ),
    ]
    for fields, options in checks:
        changed = replace(shape, **fields)
        inputs = DEFINITION.make_inputs(changed, seed=0, device=device)
        tensors = (inputs.k_cache, inputs.v_cache, inputs.page_table, inputs.seq_lens)
        call = KERNEL.bind(config, changed)
        features = options(inputs)
        out, lse = call(inputs.q, *tensors, **features, return_lse=True, check=True)
        alone, alone_lse = call(inputs.q[:, 0], *tensors, **features, return_lse=True)
        if not torch.equal(out[:, 0], alone) or not torch.equal(lse[:, 0], alone_lse):
            return "q [B, H, D] is not q [B, 1, H, D]"
        if not torch.equal(out, call(inputs.q, *tensors, **features)):
            return "the output depends on return_lse"
        expected, eager = DEFINITION.reference(inputs), DEFINITION.reference(inputs, dtype=torch.float16)
        if (found := compare(out, expected[0], error_limit(expected[0], eager[0], torch.float16))) is not None:
            return f"{fields}: {found}"
    return None
