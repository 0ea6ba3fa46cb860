"""Runs the launcher over lengths and offsets that no batch has, and pages that no cache has: what lies outside its
tensors is neither read nor written."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import torch

from autotune.implementation import Kernel
from autotune.kernels.paged_prefill.definition import DEFINITION
from autotune.kernels.paged_prefill.inputs import check_shape
from autotune.kernels.paged_prefill.triton import KERNEL
from autotune.space import Config
from tests.kernels.paged_decode.caches import amid_nan, differing, with_entry
from tests.kernels.paged_prefill.numerics import HALF, config_of

HEAD, TILE = config_of("head"), config_of("tile")
QUERIES: Final = (20, 30, 10)
LENGTHS: Final = (60, 90, 40)
HOSTILE: Final = {
    "offsets that fall": ((0, 961, 42, 60), LENGTHS),
    "offsets below 0": ((-40, 20, 50, 60), LENGTHS),
    "offsets past the queries": ((0, 20, 900, 60), LENGTHS),
    "a length below 0": ((0, 20, 50, 60), (60, -(2**31), 40)),
    "a length past the table": ((0, 20, 50, 60), (60, 2**31 - 1, 40)),
}


def first_offset_failure(device: str, kernel: Kernel = KERNEL, config: Config = HEAD) -> str | None:
    """Leave out the first sequence but not its queries: their rows are not written, the others are as they were."""
    inputs = DEFINITION.make_inputs(check_shape(HALF, LENGTHS, QUERIES), seed=0, device=device)
    tail = replace(
        inputs,
        page_table=inputs.page_table[1:],
        seq_lens=inputs.seq_lens[1:],
        cu_seqlens_q=inputs.cu_seqlens_q[1:],
    )
    outputs = []
    for problem in (inputs, tail):
        outputs.append(DEFINITION.empty_outputs(problem)[0])
        kernel.launch(config, problem, (outputs[-1],))
    whole, last = outputs
    if not last[: QUERIES[0]].isnan().all():
        return "rows before the first offset were written"
    return None if torch.equal(last[QUERIES[0] :], whole[QUERIES[0] :]) else "rows behind the first offset differ"


def hostile_failure(
    offsets: Sequence[int], lengths: Sequence[int], device: str, kernel: Kernel = KERNEL, config: Config = TILE
) -> str | None:
    """Two tables that differ only behind their rows give the same bits, and rows past the queries are not written."""
    inputs = DEFINITION.make_inputs(check_shape(HALF, LENGTHS, QUERIES), seed=0, device=device)
    tokens, pages = sum(QUERIES), inputs.page_table.shape[1]
    results = []
    for foreign in (0, 1):
        table = torch.full((len(LENGTHS), pages + 80), foreign, dtype=torch.int32, device=device)
        table[:, :pages] = inputs.page_table.clamp(0, len(inputs.k_cache) - 1)
        out = inputs.q.new_full((tokens + 50, *inputs.q.shape[1:]), float("nan"))
        problem = replace(
            inputs,
            page_table=table[:, :pages],
            cu_seqlens_q=torch.tensor(offsets, dtype=torch.int32, device=device),
            seq_lens=torch.tensor(lengths, dtype=torch.int32, device=device),
        )
        kernel.launch(config, problem, (out[:tokens],))
        if not out[tokens:].isnan().all():
            return "rows past the queries were written"
        results.append(out[:tokens].nan_to_num(12345.0))
    return None if torch.equal(*results) else "the result depends on what lies behind the page table"


def pages_failure(
    entry: int | None, kv_dtype: str, device: str, kernel: Kernel = KERNEL, config: Config = TILE
) -> str | None:
    """The bits are those of the last page, in a cache between two pages of NaN; the first page past it is None."""
    shape = replace(HALF, kv_dtype=kv_dtype)
    inputs = amid_nan(DEFINITION.make_inputs(check_shape(shape, LENGTHS, QUERIES), seed=0, device=device))
    last = len(inputs.k_cache) - 1
    results = []
    for each in (last + 1 if entry is None else entry, last):
        problem = replace(inputs, page_table=with_entry(inputs.page_table.clamp(0, last), each))
        results.append(DEFINITION.empty_outputs(problem))
        kernel.launch(config, problem, results[-1])
    return f"the page {entry} is not the last one" if differing(*results) else None


def no_pages_failure(device: str) -> str | None:
    """A cache without a page has no keys, whatever lengths say."""
    inputs = DEFINITION.make_inputs(check_shape(HALF, LENGTHS, QUERIES), seed=0, device=device)
    problem = replace(inputs, k_cache=inputs.k_cache[:0], v_cache=inputs.v_cache[:0])
    outputs = DEFINITION.empty_outputs(problem)
    KERNEL.launch(config_of("tile"), problem, outputs)
    is_empty = not outputs[0].any() and all(bool((each == -torch.inf).all()) for each in outputs[1:])
    return None if is_empty else f"output {outputs}"
