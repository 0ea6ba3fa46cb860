"""Launches paged prefill over checked tensors: strides, constants, and a grid that needs no length."""

import math
from typing import Any, Final

import torch

from autotune.kernels.paged_cache.layout import AXES, cache_strides, scale_strides
from autotune.kernels.paged_prefill.triton.forward import Features, Tile, paged_prefill_forward
from autotune.kernels.tiles.outputs import Outputs, PerHead
from autotune.kernels.tiles.pages import Cache, Paging
from autotune.kernels.tiles.rows import Widths
from autotune.kernels.tiles.score_scaling import ScoreScaling
from autotune.search_spaces.bounds import padded_widths

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
    causal: bool = True,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    compile_only: bool = False,
) -> Any:
    """Launch one prefill over checked tensors: ``q [T, H, D]``, ``out [T, H, D_v]``, ``lse [T, H]``.

    Scales are fp32, one for all (0 dimensions), one a KV head, or one a slot and head in the order of the cache's axes.
    ``options`` are the parameters of a config without those that do not apply. The grid depends on shapes and options
    alone: it has room for the tiles of any division of the queries among the sequences. So a CUDA graph may hold the
    launch, and programs without a tile end at once. With ``compile_only`` nothing runs and the tensors may be on the
    meta device; the compiled kernel is returned.
    """
    if out.numel() == 0:
        return None
    tokens, heads, head_dim = q.shape
    batch, max_pages = page_table.shape
    page_size, kv_heads = (k_cache.shape[axis] for axis in AXES[layout][1:])
    pages, head_dim_v, group = k_cache.shape[0], v_cache.shape[3], heads // kv_heads
    capacity = max_pages * page_size if pages else 0
    options = dict(options)
    tile = Tile(group, *(options.pop(name) for name in ("BLOCK_Q", "SMALL_Q", "BLOCK_K")))
    arguments = (
        *(q, Cache(k_cache, v_cache, k_scale, v_scale), page_table, seq_lens, cu_seqlens_q),
        *(PerHead(sinks, alibi_slopes), Outputs(out, lse), q.stride()[:2]),
        # A window longer than everything hides nothing; as it stands it could overflow 32 bits in the kernel.
        *(page_table.stride(0), capacity, pages, tokens, batch, kv_heads, min(window or 0, capacity + tokens)),
        ScoreScaling(scale / softcap, softcap * LOG2_E) if softcap else ScoreScaling(scale * LOG2_E, 0.0),
        *(tile, Widths(head_dim, head_dim_v, *padded_widths(head_dim, head_dim_v))),
        Paging(
            page_size,
            math.gcd(page_size, tile.keys),
            *(cache_strides(cache, layout) for cache in (k_cache, v_cache)),
            *(scale_strides(scales, layout) for scales in (k_scale, v_scale)),
        ),
        Features(
            causal=causal,
            window=window is not None,
            softcap=softcap is not None,
            precise=q.dtype == torch.float32,
            token_scales=k_scale is not None and k_scale.ndim == 3,
            heads_together=options.pop("order") == "tile",
        ),
    )
    grid = ((tokens * group // tile.rows + batch) * kv_heads,)
    if compile_only:
        return paged_prefill_forward.warmup(*arguments, **options, grid=grid)
    return paged_prefill_forward[grid](*arguments, **options)
