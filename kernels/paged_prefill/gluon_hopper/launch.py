"""Launches of paged prefill over pages laid side by side: they are copied, then attention over packed sequences."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import torch

from autotune.errors import UnsupportedCallError
from autotune.kernels.flash_attention_varlen.gluon_hopper.forward import HeadScales
from autotune.kernels.flash_attention_varlen.gluon_hopper.launch import Launch, launch_packed, rows_apart
from autotune.kernels.paged_cache.layout import AXES, cache_strides, scale_strides
from autotune.kernels.paged_prefill.gluon_hopper.gather import gather_pages
from autotune.kernels.tensors import require_context
from autotune.kernels.tiles.pages import Cache, Paging
from autotune.kernels.tiles.rows import Widths
from autotune.search_spaces.bounds import padded_widths
from autotune.search_spaces.paged_prefill.gluon_hopper import MOST_BYTES, gathered_bytes

TOKENS: Final = 32  # of a program that copies
GATHER_WARPS: Final = 4
MOST_SEQUENCES: Final = 65535  # the second dimension of a grid (CUDA C++ Programming Guide, technical specifications)


class Gathered(NamedTuple):
    """Room for the keys ``[B * room, H_kv, D]`` and the values of all sequences, and where each begins, int32."""

    keys: torch.Tensor
    vals: torch.Tensor  # tuples of Triton have ``values`` of their own
    offsets: torch.Tensor


def launch_gathered(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    *,
    layout: str,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
    alibi_slopes: None,
    options: Mapping[str, Any],
    causal: bool = True,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    compile_only: bool = False,
) -> tuple[Any, ...]:
    """Launch one prefill over checked tensors: ``q [T, H, D]``, ``out [T, H, D_v]``, ``lse [T, H]``.

    Scales are fp32, one for all (0 dimensions) or one a KV head. ``options`` are the parameters of a config. The grids
    depend on shapes and options alone, so that a CUDA graph may hold the launches. Returns the compiled kernels in
    order; with ``compile_only`` nothing runs and the tensors may be on the meta device.

    Raises:
        UnsupportedCallError: there are no pages, or too many sequences; the keys and values that the page table has
            room for are more than ``MOST_BYTES``; tokens have scales of their own; TMA cannot copy tiles of a tensor.
    """
    if out.numel() == 0:
        return ()
    _refuse_scales_of_tokens(k_scale, v_scale)
    for name, tensor in (("q", q), ("out", out)):
        rows_apart(name, tensor)  # before anything is copied
    batch, room, kv_heads, widths = _sizes(k_cache, v_cache, page_table, layout)
    if not compile_only:
        require_context(q.device)
    gathered = allocate_gathered(q, batch * room, kv_heads, widths, batch)
    has_window = window is not None
    arguments = (
        *(Cache(k_cache, v_cache, k_scale, v_scale), page_table, seq_lens, *gathered),
        *(cu_seqlens_q if has_window else None, page_table.stride(0), room, k_cache.shape[0], room),
        min(window, room) if window is not None else None,
        *(kv_heads, TOKENS, Widths(*widths, *padded_widths(*widths))),
        paging_of(k_cache, v_cache, k_scale, v_scale, layout),
    )
    copy = Launch(gather_pages, (kv_heads * -(-room // TOKENS), batch), arguments, GATHER_WARPS)
    attended = partial(
        launch_packed,
        *(q, gathered.keys, gathered.vals, cu_seqlens_q, gathered.offsets, out, lse),
        seqused_k=seq_lens,
        scales=None if k_scale is None or v_scale is None else head_scales(k_scale, v_scale),
        causal=causal,
        scale=scale,
        window=window,
        softcap=softcap,
        sinks=sinks,
        options=options,
        compile_only=compile_only,
    )
    return (copy.run(compile_only=compile_only), *attended())


def _refuse_scales_of_tokens(k_scale: torch.Tensor | None, v_scale: torch.Tensor | None) -> None:
    for name, scales in (("k_scale", k_scale), ("v_scale", v_scale)):
        if scales is not None and scales.ndim == 3:
            raise UnsupportedCallError(f"{name} has a scale for each token, and this kernel takes one for each head")


def _sizes(
    k_cache: torch.Tensor, v_cache: torch.Tensor, page_table: torch.Tensor, layout: str
) -> tuple[int, int, int, tuple[int, int]]:
    """Return the number of sequences, of tokens that each has room for, of KV heads, and the widths of these.

    Raises:
        UnsupportedCallError: there is no room, or there is too much.
    """
    batch, max_pages = page_table.shape
    page_size, kv_heads = (k_cache.shape[axis] for axis in AXES[layout][1:])
    room, widths = max_pages * page_size, (k_cache.shape[3], v_cache.shape[3])
    if room == 0 or k_cache.shape[0] == 0:
        raise UnsupportedCallError("there are no pages, of which keys could be copied")
    if batch > MOST_SEQUENCES:
        raise UnsupportedCallError(f"page_table has {batch} sequences; this kernel takes {MOST_SEQUENCES} at most")
    if (taken := gathered_bytes(batch, room, kv_heads, sum(widths))) > MOST_BYTES:
        raise UnsupportedCallError(
            f"page_table has room for {batch} x {room} tokens, whose keys and values take {taken} bytes side by "
            f"side, more than {MOST_BYTES}"
        )
    return batch, room, kv_heads, widths


def paging_of(
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
    layout: str,
) -> Paging:
    """Return the layout of caches in memory, for blocks of ``TOKENS``."""
    page_size = k_cache.shape[AXES[layout][1]]
    return Paging(
        page_size,
        math.gcd(page_size, TOKENS),
        *(cache_strides(cache, layout) for cache in (k_cache, v_cache)),
        *(scale_strides(scales, layout) for scales in (k_scale, v_scale)),
    )


def allocate_gathered(like: torch.Tensor, tokens: int, kv_heads: int, widths: tuple[int, int], batch: int) -> Gathered:
    """Return room for the keys and values of so many tokens; what it holds is undefined."""
    keys, values = (like.new_empty((tokens, kv_heads, width)) for width in widths)
    return Gathered(keys, values, like.new_empty(batch + 1, dtype=torch.int32))


def head_scales(k_scale: torch.Tensor, v_scale: torch.Tensor) -> HeadScales:
    """Return the scales of the KV heads as the kernel reads them: a stride of 0 where one serves all."""
    strides = (each.stride(0) if each.ndim else 0 for each in (k_scale, v_scale))
    return HeadScales(k_scale, v_scale, *strides)
