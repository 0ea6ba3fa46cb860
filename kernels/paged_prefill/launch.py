"""Launches paged prefill over checked tensors: strides, constants, and a grid that needs no length."""

import math
from typing import Any, Final

import torch

from autotune.kernels.paged_prefill.forward import paged_prefill_forward
from autotune.search_spaces.flash_attention import padded_widths

LOG2_E: Final = math.log2(math.e)


def launch(
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
    alibi_slopes: torch.Tensor | None,
    options: dict[str, Any],
    compile_only: bool = False,
) -> Any:
    """Launch one prefill over checked tensors: ``q [T, H, D]``, ``out [T, H, D_v]``, ``lse [T, H]``.

    ``options`` are the parameters of a config without those that do not apply. The grid depends on shapes and options
    alone: it has room for the tiles of any division of the queries among the sequences. So a CUDA graph may hold the
    launch, and programs without a tile end at once. With ``compile_only`` nothing runs and the tensors may be on the
    meta device; the compiled kernel is returned.
    """
    if out.numel() == 0:
        return None
    tokens, heads, head_dim = q.shape
    batch, max_pages = page_table.shape
    slots = [cache if layout == "NHD" else cache.transpose(1, 2) for cache in (k_cache, v_cache)]
    _, page_size, kv_heads, head_dim_v = slots[1].shape
    group, capacity = heads // kv_heads, max_pages * page_size
    block_d, block_dv = padded_widths(head_dim, head_dim_v)
    options = dict(options)
    constants = {
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "HEAD_DIM_V": head_dim_v,
        "BLOCK_D": block_d,
        "BLOCK_DV": block_dv,
        "PAGE_SIZE": page_size,
        "RUN": math.gcd(page_size, options["BLOCK_K"]),
        "K_STRIDES": slots[0].stride()[:3],
        "V_STRIDES": slots[1].stride()[:3],
        "WINDOW": window is not None,
        "SOFTCAP": softcap is not None,
        "PRECISE": q.dtype == torch.float32,
        "HEADS_TOGETHER": options.pop("order") == "tile",
    }
    arguments = (
        *(q, k_cache, v_cache, page_table, seq_lens, cu_seqlens_q, sinks, alibi_slopes, out, lse),
        q.stride()[:2],
        # A window longer than everything hides nothing; as it stands it could overflow 32 bits in the kernel.
        *(page_table.stride(0), capacity, tokens, batch, kv_heads, min(window or 0, capacity + tokens)),
        *((scale / softcap, softcap * LOG2_E) if softcap else (scale * LOG2_E, 0.0)),
    )
    grid = ((tokens * group // options["BLOCK_Q"] + batch) * kv_heads,)
    if compile_only:
        return paged_prefill_forward.warmup(*arguments, **constants, **options, grid=grid)
    return paged_prefill_forward[grid](*arguments, **constants, **options)
