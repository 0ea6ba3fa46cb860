"""Decode over latents in Gluon by the correctness gate, and by calls over caches as engines hold them.

The gate's caches hold NaN wherever nothing may be read, and their tables leave some pages out.
"""

import math
from typing import Any, Final

import torch

from autotune.correctness import check_config, error_limit, make_cases
from autotune.kernels.paged_decode.gluon_hopper_latent import KERNEL
from autotune.kernels.paged_decode.inputs import CheckShape
from autotune.registry import load_definition
from autotune.shape import PagedShape
from autotune.space import Config
from autotune.trial import Status
from tests.kernels.numerics import compare
from tests.kernels.paged_decode.numerics import dense_decode

SCALE: Final = (128 + 64) ** -0.5  # of the heads that latents are projected from


def config_of(*, splits: int = 1, slots: int = 2) -> Config:
    return Config(NUM_SPLITS=splits, slots=slots)


def shape_of(lengths: tuple[int, ...], **fields: Any) -> CheckShape:
    sizes = {"batch": len(lengths), "max_context": max(1, *lengths), "heads": 16, "head_dim": 576, "page_size": 64}
    return CheckShape(**{**sizes, "dtype": "float16", **fields}, lengths=lengths)


def gate_failure(lengths: tuple[int, ...], fields: dict[str, Any], config: Config, device: str) -> str | None:
    """Say what the gate has against a config over sequences of these lengths, every output of it, or None."""
    cases = make_cases(load_definition("paged_decode"), (shape_of(lengths, **fields),), device=device)
    verdict = check_config(KERNEL, config, cases, every_output=True)
    return None if verdict.status == Status.OK else f"{verdict.status}: {verdict.message}"


def cache_of(engine: str, device: str) -> tuple[torch.Tensor, str]:
    """Return 12 pages of 16 random latents of 320 in fp16, as an engine holds them, and their layout.

    ``longer rows``: in rows and pages that are longer, and NaN elsewhere. ``slots``: each a page of one.
    """
    generator = torch.Generator(device=device).manual_seed(0)
    latents = torch.randn(12, 16, 320, generator=generator, device=device).half()
    if engine == "by heads":
        return latents[:, None], "HND"
    if engine == "slots":
        return latents.view(192, 1, 1, 320), "NHD"
    if engine == "longer slots":
        wide = latents.new_full((192, 1, 1, 384), math.nan)
        wide[..., :320] = latents.view(192, 1, 1, 320)
        return wide[..., :320], "NHD"
    if engine == "longer rows":
        wide = latents.new_full((12, 19, 1, 384), math.nan)
        wide[:, :16, 0, :320] = latents
        return wide[:, :16, :, :320], "NHD"
    return latents[:, :, None], "NHD"


def call_failure(engine: str, splits: int, device: str, absent: int = -1) -> str | None:
    """Call what is bound twice, of three sequences, one without a key; queries and a buffer have strides of their own.

    ``absent`` stands in the page table where there is no page.

    The second call, which may be a repetition, is of other queries, and is asked for no logarithms.
    """
    cache, layout = cache_of(engine, device)
    rows = (cache if layout == "NHD" else cache.transpose(1, 2)).flatten(0, 1)  # a token each
    page = cache.shape[1] if layout == "NHD" else cache.shape[2]
    shape = PagedShape(
        batch=3, heads=5, max_context=96, head_dim=320, page_size=page, dtype="float16", layout=layout, seq_q=2
    )
    kernel = KERNEL.bind(config_of(splits=splits, slots=2), shape)
    pages, lengths = [[9, 3, 0, 11, -1, 7], [5, -1, -1, -1, -1, -1], [-1] * 6], [90, 3, 0]
    if page == 1:
        pages = [[each if each < 0 else 16 * each + slot for each in row for slot in range(16)] for row in pages]
    entries = [[absent if each < 0 else each for each in row] for row in pages]
    table, seq_lens = (torch.tensor(each, dtype=torch.int32, device=device) for each in (entries, lengths))
    wide = torch.randn(2, 3, 4, 8, 320, generator=torch.Generator(device=device).manual_seed(1), device=device).half()
    for q, with_lse in ((wide[0, :, 1:3, 2:7], True), (wide[1, :, :2, :5], False), (wide[0, :, 1:3, 2:7], False)):
        out = torch.full((3, 2, 5, 256), math.nan, dtype=torch.float16, device=device)
        found = kernel(q, cache, cache[..., :256], table, seq_lens, scale=SCALE, out=out, return_lse=with_lse)
        lse = found[1] if with_lse else None
        for sequence, length in enumerate(lengths):
            listed = torch.tensor(pages[sequence], device=device)[torch.arange(length, device=device) // page]
            places = listed * page + torch.arange(length, device=device) % page
            problem = _difference(q[sequence], rows[places.clamp(min=0)], listed < 0, out[sequence])
            if problem is not None:
                return f"sequence {sequence}: {problem}"
            if lse is not None and length == 0 and not bool((lse[sequence] == -math.inf).all()):
                return f"sequence {sequence}: logarithms {lse[sequence]}"
    return None


def _difference(q: torch.Tensor, keys: torch.Tensor, absent: torch.Tensor, out: torch.Tensor) -> str | None:
    """Say how results of queries ``[S_q, H, 320]`` over keys ``[length, 1, 320]`` miss the truth, or None."""
    truth, eager = (
        dense_decode(q, keys, keys[..., :256], scale=SCALE, absent=absent, dtype=dtype)[0]
        for dtype in (torch.float64, torch.float16)
    )
    return compare(out, truth, error_limit(truth, eager, torch.float16))
