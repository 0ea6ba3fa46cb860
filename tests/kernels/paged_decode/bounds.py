"""Runs the launcher over lengths that no sequence has, and pages that no cache has: nothing else is read."""

from dataclasses import replace
from typing import Final

import torch

from autotune.kernels.paged_decode.definition import DEFINITION
from autotune.kernels.paged_decode.inputs import CheckShape
from autotune.kernels.paged_decode.triton import KERNEL
from tests.contract.implementations.paged_decode_triton import config_of
from tests.kernels.paged_decode.caches import amid_nan, differing, with_entry
from tests.kernels.paged_decode.numerics import FAR_PAGE

LENGTHS: Final = (40, 64, 17)
NO_PAGES: Final[dict[str, int | None]] = {
    "below 0": -1,
    "least": -(2**31),
    "past the cache": None,
    "most": 2**31 - 1,
}  # None: the first
ODD: Final = {"past the table": (40, 5000, 64), "below 0": (40, -7, 64), "least": (40, -(2**31), 64)}


def lengths_failure(schedule: str, combine: str, name: str, device: str) -> str | None:
    """The bits are those of lengths within the table, behind whose rows nothing is mapped."""
    shape = CheckShape(
        batch=3, heads=4, kv_heads=2, max_context=64, head_dim=32, dtype="float16", lengths=LENGTHS, sm_count=4
    )  # fmt: skip
    inputs = DEFINITION.make_inputs(shape, seed=0, device=device)
    pages = inputs.page_table.shape[1]
    capacity = pages * inputs.k_cache.shape[1]
    table = torch.full((3, pages + 400), FAR_PAGE, dtype=torch.int32, device=device)
    table[:, :pages] = inputs.page_table.clamp(0, len(inputs.k_cache) - 1)
    caches = {cache: getattr(inputs, cache).nan_to_num(0.5) for cache in ("k_cache", "v_cache")}
    outputs = []
    for lengths in (ODD[name], [min(max(length, 0), capacity) for length in ODD[name]]):
        problem = replace(
            inputs,
            page_table=table[:, :pages],
            seq_lens=torch.tensor(lengths, dtype=torch.int32, device=device),
            **caches,
        )
        outputs.append(DEFINITION.empty_outputs(problem))
        KERNEL.launch(config_of(schedule, work=2, combine=combine), problem, outputs[-1])
    return None if torch.equal(outputs[0][0], outputs[1][0]) else f"a length {name} is not that of the table"


def pages_failure(schedule: str, combine: str, name: str, kv_dtype: str, device: str) -> str | None:
    """The bits are those of the last page, in a cache, with scales a slot, between two pages of NaN."""
    shape = CheckShape(
        batch=3, heads=4, kv_heads=2, max_context=64, head_dim=32, dtype="float16", kv_dtype=kv_dtype, lengths=LENGTHS,
        sm_count=4,
    )  # fmt: skip
    inputs = amid_nan(DEFINITION.make_inputs(shape, seed=0, device=device))
    last = len(inputs.k_cache) - 1
    outputs = []
    hostile = NO_PAGES[name]
    for entry in (last + 1 if hostile is None else hostile, last):
        problem = replace(inputs, page_table=with_entry(inputs.page_table.clamp(0, last), entry))
        outputs.append(DEFINITION.empty_outputs(problem))
        KERNEL.launch(config_of(schedule, work=2, combine=combine), problem, outputs[-1])
    return f"a page {name} is not the last one" if differing(*outputs) else None


def no_pages_failure(schedule: str, combine: str, device: str) -> str | None:
    """A cache without a page has no keys, whatever lengths say: the output is 0, and logarithms are -inf."""
    shape = CheckShape(
        batch=3, heads=4, kv_heads=2, max_context=64, head_dim=32, dtype="float16", lengths=LENGTHS, sm_count=4
    )  # fmt: skip
    inputs = DEFINITION.make_inputs(shape, seed=0, device=device)
    problem = replace(inputs, k_cache=inputs.k_cache[:0], v_cache=inputs.v_cache[:0])
    outputs = DEFINITION.empty_outputs(problem)
    KERNEL.launch(config_of(schedule, work=2, combine=combine), problem, outputs)
    is_empty = not outputs[0].any() and all(bool((each == -torch.inf).all()) for each in outputs[1:])
    return None if is_empty else f"output {outputs}"
