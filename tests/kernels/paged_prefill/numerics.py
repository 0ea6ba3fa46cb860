"""Runs the launcher and compares with dense attention in fp64, written in the tests of paged decode.

A slot that no key fills is NaN, a page index that no key needs leads far outside the cache.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import torch

from autotune.correctness import STATISTIC_UNITS, error_limit
from autotune.kernels.paged_cache.quantization import dequantize
from autotune.kernels.paged_decode.inputs import permute_pages
from autotune.kernels.paged_prefill.definition import DEFINITION
from autotune.kernels.paged_prefill.inputs import Inputs, check_shape
from autotune.kernels.paged_prefill.triton import KERNEL
from autotune.kernels.paged_prefill.triton.launch import launch
from autotune.kernels.tensors import launch_options
from autotune.shape import PagedShape
from autotune.space import Config
from tests.contract.implementations.paged_prefill_triton import CONFIG
from tests.kernels.numerics import compare
from tests.kernels.paged_decode.numerics import FAR_PAGE, arrange, dense_decode, poisoned
from tests.kernels.paged_prefill.cases import Case

PADDING: Final = 16  # elements between the rows of a cache


def make_problem(case: Case, device: str) -> Inputs:
    """The kernel's own inputs, in caches whose strides are not what their sizes say, under a hostile page table."""
    shape = PagedShape(
        batch=1,
        heads=case.group * case.kv_heads,
        kv_heads=case.kv_heads,
        max_context=1,
        head_dim=case.head_dim,
        head_dim_v=case.head_dim_v,
        page_size=case.page_size,
        dtype=case.dtype,
        kv_dtype=case.kv_dtype or case.dtype,
        causal=case.causal,
        window=case.window,
        softcap=case.softcap is not None,
        sinks=case.sinks,
        alibi=case.alibi,
        layout=case.layout,
    )
    inputs = DEFINITION.make_inputs(check_shape(shape, case.lengths, case.query_lengths), seed=1, device=device)
    caches = []
    for cache in (inputs.k_cache, inputs.v_cache):
        wide = poisoned(*cache.shape[:3], cache.shape[3] + PADDING, dtype=cache.dtype, device=device)
        caches.append(wide[..., : cache.shape[3]].copy_(cache))
    scales = [inputs.k_scale, inputs.v_scale]
    if case.kv_dtype not in (None, "int8") and not case.lse:  # one for all heads
        scales = [scale if scale is None else scale.max() for scale in scales]
    table = torch.nn.functional.pad(inputs.page_table, (0, 3), value=FAR_PAGE)
    if case.window is not None and case.causal:  # pages before every window are gone
        for row, length, queries in zip(table, case.lengths, case.query_lengths, strict=True):
            row[: max(0, length - queries - case.window + 1) // case.page_size] = FAR_PAGE
    return replace(
        inputs,
        q=arrange(inputs.q, case.q_layout, case.kv_heads),
        k_cache=caches[0],
        v_cache=caches[1],
        k_scale=scales[0],
        v_scale=scales[1],
        page_table=table,
        scale=case.head_dim**-0.5 if case.scale is None else case.scale,
        softcap=case.softcap,
    )


def dense_rows(inputs: Inputs, name: str, sequence: int) -> torch.Tensor:
    """A sequence's keys or values ``[length, H_kv, D]``: number j lies in slot ``j % page_size`` of its page."""
    cache, scale = getattr(inputs, f"{name}_cache"), getattr(inputs, f"{name}_scale")
    page_size = cache.shape[1 if inputs.layout == "NHD" else 2]
    place = torch.arange(int(inputs.seq_lens[sequence]), device=cache.device)
    found = inputs.page_table[sequence].long()[place // page_size]
    inside = (found >= 0) & (found < len(cache))  # not so where nobody may look

    def pick(paged: torch.Tensor) -> torch.Tensor:
        slots = paged if inputs.layout == "NHD" else paged.transpose(1, 2)
        bits = slots.view(torch.uint8) if slots.itemsize == 1 else slots  # torch picks no rows of 8-bit floats by index
        return bits[found * inside, place % page_size].view(paged.dtype)

    rows = pick(cache)
    if scale is not None:
        rows = dequantize(rows, pick(scale) if scale.ndim == 3 else scale, torch.float64)
    return torch.where(inside[:, None, None], rows, 0.0)


def truth(inputs: Inputs, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and logarithm, sequence by sequence."""
    bounds, results = inputs.cu_seqlens_q.tolist(), []
    for sequence in range(len(inputs.seq_lens)):
        k, v = (dense_rows(inputs, name, sequence) for name in "kv")
        results.append(
            dense_decode(
                inputs.q[bounds[sequence] : bounds[sequence + 1]],
                k,
                v,
                scale=inputs.scale,
                window=inputs.window,
                softcap=inputs.softcap,
                sinks=inputs.sinks,
                alibi_slopes=inputs.alibi_slopes,
                causal=inputs.causal,
                dtype=dtype,
            )
        )
    out, lse = (torch.cat(parts) for parts in zip(*results, strict=True))
    return out, lse


def case_failure(
    case: Case, device: str, launcher: Callable[..., Any] = launch, config: Config | None = None
) -> str | None:
    """Run a case, by its own config unless one is given; what is wrong with its result, or None."""
    inputs, dtype = make_problem(case, device), getattr(torch, case.dtype)
    out = DEFINITION.empty_outputs(inputs)[0]
    lse = torch.full(out.shape[:2], math.nan, device=device)
    caches = inputs.k_cache, inputs.v_cache
    launcher(
        *(inputs.q, *caches, inputs.page_table, inputs.seq_lens, inputs.cu_seqlens_q, out),
        lse if case.lse else None,
        **inputs.features,
        options=case.options if config is None else launch_options(config),
    )
    expected, expected_lse = truth(inputs, torch.float64)
    found = compare(out, expected, error_limit(expected, truth(inputs, dtype)[0], dtype))
    if found is None and case.lse:
        limit = error_limit(expected_lse, truth(inputs, torch.float32)[1], torch.float32, units=STATISTIC_UNITS)
        # A score is as exact as its partial sums are large, at most |q| |k|; keys are drawn as queries are.
        limit += torch.finfo(torch.float32).eps * inputs.scale * inputs.q.float().norm(dim=-1).max().item() ** 2
        if case.kv_dtype == "int8":  # a scale's exponent is added to the largest score and taken off
            limit += 8 * torch.finfo(torch.float32).eps
        if case.softcap:  # tanh is as exact as its largest value, not as each of its own
            limit += 2 * torch.finfo(torch.float32).eps * case.softcap
        found = compare(lse, expected_lse, limit)
    return found


SIZES: Final[dict[str, Any]] = {"batch": 1, "heads": 8, "kv_heads": 2, "max_context": 1, "head_dim": 64}
HALF: Final = PagedShape(**SIZES, dtype="float16")


def config_of(order: str) -> Config:
    return Config({**CONFIG, "order": order})


def order_failure(order: str, device: str) -> str | None:
    """Run twice, then with the pages moved about: the result must be the same to the bit."""
    shape = check_shape(HALF, (40, 0, 200, 3, 129), (40, 0, 60, 1, 1))
    inputs = DEFINITION.make_inputs(shape, seed=0, device=device)
    outputs = []
    for problem in (inputs, inputs, permute_pages(inputs, seed=1)):
        assert isinstance(problem, Inputs)
        outputs.append(DEFINITION.empty_outputs(problem))
        KERNEL.launch(config_of(order), problem, outputs[-1])
    return (
        None if all(torch.equal(outputs[0][0], other[0]) for other in outputs[1:]) else "the bits depend on the order"
    )


def company_failure(chunk: int, device: str) -> str | None:
    """One sequence in a batch, alone, and in two chunks, by one config without small tiles: always the same bits."""
    shape = check_shape(replace(HALF, window=100), (90, 150, 5), (90, 70, 1))
    inputs = DEFINITION.make_inputs(shape, seed=0, device=device)
    config = Config({**config_of("tile"), "SMALL_Q": 0})
    out = DEFINITION.empty_outputs(inputs)[0]
    KERNEL.launch(config, inputs, (out,))
    for length, first, last in ((150, 90, 160), (80 + chunk, 90, 90 + chunk), (150, 90 + chunk, 160)):
        part = replace(
            inputs,
            q=inputs.q[first:last],
            page_table=inputs.page_table[1:2],
            seq_lens=torch.tensor([length], dtype=torch.int32, device=device),
            cu_seqlens_q=torch.tensor([0, last - first], dtype=torch.int32, device=device),
        )
        found = DEFINITION.empty_outputs(part)[0]
        KERNEL.launch(config, part, (found,))
        if not torch.equal(found, out[first:last]):
            return f"queries {first} to {last} have other bits alone"
    return None


def poison_failure(kv_dtype: str, where: str, device: str) -> str | None:
    """One NaN among the queries, the keys or the values of the first sequence: its results show it, no other's do."""
    shape = check_shape(replace(HALF, kv_dtype=kv_dtype), (70, 90), (3, 9))
    inputs = DEFINITION.make_inputs(shape, seed=0, device=device)
    page, slot = int(inputs.page_table[0, 2]), 5
    if where == "q":
        inputs.q[:3, :, 3] = math.nan
    elif kv_dtype == "int8":  # a token that held NaN has such a scale, and bytes that say nothing
        getattr(inputs, f"{where}_scale")[page, slot] = math.nan
    else:
        getattr(inputs, f"{where}_cache")[page, slot, :, 3] = math.nan
    out = DEFINITION.empty_outputs(inputs)[0]
    KERNEL.launch(config_of("head"), inputs, (out,))
    if not out[:3].isnan().any(-1).all():
        return "NaN is lost"
    return "NaN is found in another sequence" if out[3:].isnan().any() else None


def scale_failure(kv_dtype: str, device: str) -> str | None:
    """Scales of 0, far apart, and of a head below 0: the result is attention over what the cache stands for."""
    shape = check_shape(replace(HALF, kv_dtype=kv_dtype), (200, 33), (20, 33))
    inputs = DEFINITION.make_inputs(shape, seed=0, device=device)
    for scale in (inputs.k_scale, inputs.v_scale):
        assert scale is not None
        if kv_dtype == "int8":
            scale[1::3] *= 2.0**-12
            scale[:, ::5] = 0.0
        else:
            scale[0], scale[1] = 0.0 if scale is inputs.k_scale else scale[0] * 2.0**-9, -scale[1]
    out, lse = DEFINITION.empty_outputs(inputs)
    KERNEL.launch(config_of("head"), inputs, (out, lse))
    (expected, log), eager = truth(inputs, torch.float64), truth(inputs, torch.float16)[0]
    return compare(out, expected, error_limit(expected, eager, torch.float16)) or compare(lse, log, 1e-4)


def shared_failure(device: str) -> str | None:
    """A page table of stride 0 over the batch: sequences are prefixes, of their own lengths, of the same pages."""
    inputs = DEFINITION.make_inputs(check_shape(HALF, (40, 0, 100, 3, 90), (40, 0, 20, 1, 1)), seed=0, device=device)
    shared = replace(inputs, page_table=inputs.page_table[2].expand(5, -1))  # that of the longest
    assert shared.page_table.stride(0) == 0
    out = DEFINITION.empty_outputs(shared)[0]
    KERNEL.launch(config_of("head"), shared, (out,))
    expected, eager = truth(shared, torch.float64)[0], truth(shared, torch.float16)[0]
    return compare(out, expected, error_limit(expected, eager, torch.float16))


def many_failure(device: str) -> str | None:
    """More sequences than a program looks at together, most of them without a query, and rows past the last offset."""
    counts = [3 if sequence % 90 == 89 else 1 if sequence % 7 == 0 else 0 for sequence in range(300)]
    shape = check_shape(replace(HALF, heads=2, head_dim=16, head_dim_v=16), [5] * 300, counts)
    inputs = DEFINITION.make_inputs(shape, seed=0, device=device)
    padded = replace(inputs, q=torch.nn.functional.pad(inputs.q, (0, 0, 0, 0, 0, 70)))  # as a CUDA graph may have them
    out = DEFINITION.empty_outputs(padded)[0]
    KERNEL.launch(Config({**config_of("head"), "BLOCK_K": 16}), padded, (out,))
    if not out[len(inputs.q) :].isnan().all():
        return "rows past the last offset were written"
    expected, eager = truth(inputs, torch.float64)[0], truth(inputs, torch.float16)[0]
    return compare(out[: len(inputs.q)], expected, error_limit(expected, eager, torch.float16))


def bounds_failure(device: str) -> str | None:
    """Lengths past the page table, and offsets past the queries: nothing outside is read or written."""
    shape = check_shape(HALF, (60, 90), (5, 20))
    inputs = DEFINITION.make_inputs(shape, seed=0, device=device)
    pages, config = 2, config_of("tile")
    results = []
    for foreign in (0, 1):  # what lies behind each row of the table
        table = torch.full((2, pages + 20), foreign, dtype=torch.int32, device=device)
        table[:, :pages] = inputs.page_table[:, :pages]
        out = DEFINITION.empty_outputs(inputs)[0]
        KERNEL.launch(config, replace(inputs, page_table=table[:, :pages]), (out,))
        results.append(out)
    if not torch.equal(*results):
        return "the result depends on what lies behind the page table"
    tokens = 8  # of 25 that the offsets speak of
    whole = DEFINITION.empty_outputs(inputs)[0]
    KERNEL.launch(config, replace(inputs, q=inputs.q[:tokens]), (whole[:tokens],))
    return None if whole[tokens:].isnan().all() else "rows past the queries were written"


def graph_failure(order: str) -> str | None:
    """Capture a launch, change lengths, pages and the division of the queries under it, replay: the graph follows."""
    lengths = ((900, 0, 64, 64, 1), (16, 900, 0, 200, 450))
    queries = ((60, 0, 3, 1, 1), (1, 40, 1, 23, 0))  # as many in all
    captured, later = (
        DEFINITION.make_inputs(check_shape(HALF, *sizes), seed=0, device="cuda")
        for sizes in zip(lengths, queries, strict=True)
    )
    captured = replace(captured, k_cache=later.k_cache, v_cache=later.v_cache)
    out = DEFINITION.empty_outputs(captured)[0]
    KERNEL.launch(config_of(order), later, (out,))  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        KERNEL.launch(config_of(order), captured, (out,))
    for name in ("seq_lens", "page_table", "q", "cu_seqlens_q"):
        getattr(captured, name).copy_(getattr(later, name))
    out.fill_(math.nan)
    graph.replay()
    expected, eager = truth(later, torch.float64)[0], truth(later, torch.float16)[0]
    return compare(out, expected, error_limit(expected, eager, torch.float16))


def call_failure(device: str) -> str | None:
    """Call what ``bind`` returns, with and without features and the logarithm, and without any query."""
    config = Config({**CONFIG, "BLOCK_Q": 32, "num_stages": 1, "kpack": None})
    sizes: dict[str, Any] = {**SIZES, "heads": 4, "head_dim": 24, "head_dim_v": 16, "dtype": "float16"}
    everything: dict[str, Any] = {"softcap": True, "sinks": True, "alibi": True, "window": 30}
    for fields in ({}, everything):
        shape = check_shape(PagedShape(**sizes, **fields), (40, 1, 75), (40, 1, 30))
        inputs = DEFINITION.make_inputs(shape, seed=0, device=device)
        tensors = (inputs.k_cache, inputs.v_cache, inputs.page_table, inputs.seq_lens)
        call = KERNEL.bind(config, shape)
        features = {name: getattr(inputs, name) for name in ("softcap", "sinks", "alibi_slopes")}
        out, lse = call(inputs.q, *tensors, inputs.cu_seqlens_q, **features, return_lse=True, check=True)
        if not torch.equal(out, call(inputs.q, *tensors, inputs.cu_seqlens_q, **features)):
            return "the output depends on return_lse"
        (expected, expected_lse), (eager, _) = truth(inputs, torch.float64), truth(inputs, torch.float16)
        found = compare(out, expected, error_limit(expected, eager, torch.float16)) or compare(lse, expected_lse, 1e-5)
        if found is not None:
            return f"{fields}: {found}"
        none = call(inputs.q[:0], *tensors, torch.zeros_like(inputs.cu_seqlens_q), **features, check=True)
        if none.shape != (0, 4, 16):
            return f"no query gives {tuple(none.shape)}"
    return None
