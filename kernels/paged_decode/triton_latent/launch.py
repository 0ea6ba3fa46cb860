"""Launches decode over a cache of latents: strides, constants, grids, room for partial results."""

import math
from typing import Any, Final

import torch

from autotune.kernels.paged_cache.layout import AXES, cache_strides
from autotune.kernels.paged_decode.triton.combine import combine_partials
from autotune.kernels.paged_decode.triton.launch import Tile
from autotune.kernels.paged_decode.triton_latent.forward import LatentFeatures, LatentWidths, latent_decode_split
from autotune.kernels.tiles.outputs import Outputs, PerHead
from autotune.kernels.tiles.pages import Cache, Paging
from autotune.kernels.tiles.partials import Partials
from autotune.kernels.tiles.score_scaling import ScoreScaling
from autotune.rounding import power_of_two
from autotune.search_spaces.bounds import padded_widths

LOG2_E: Final = math.log2(math.e)
COMBINE_WARPS: Final = 2
COMBINED: Final = 8192  # numbers of partial results whose loads wait together, of one row


def launch_latent(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    seq_lens: torch.Tensor,
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
    k_scale: None = None,
    v_scale: None = None,
    compile_only: bool = False,
) -> tuple[Any, ...]:
    """Launch one decode over checked tensors: ``q [B, S_q, H, D]``, ``out [B, S_q, H, D_v]``, ``lse [B, S_q, H]``.

    ``v_cache`` is the first ``D_v`` columns of ``k_cache``, where they lie. ``options`` are the parameters of a config
    without those that do not apply. The grid depends on shapes and options alone, so a CUDA graph may hold the launch.
    Returns the compiled kernels in order; with ``compile_only`` nothing runs and tensors may be on the meta device.
    """
    if out.numel() == 0:
        return ()
    options = dict(options)
    batch, seq_q, heads, head_dim = q.shape
    page_size = k_cache.shape[AXES[layout][1]]
    width = v_cache.shape[3]
    rows, tokens, splits, scores = (options.pop(name) for name in ("BLOCK_ROWS", "BLOCK_K", "NUM_SPLITS", "SCORES"))
    tile = Tile(seq_q, heads, 1, seq_q * heads, rows, tokens)
    lanes = batch * -(-tile.used_rows // rows)
    count = lanes * splits if splits > 1 else 0
    partials = Partials(
        q.new_empty((count, rows, width), dtype=torch.float32), q.new_empty((count, 2, rows), dtype=torch.float32)
    )
    pages = k_cache.shape[0]
    capacity = page_table.shape[1] * page_size if pages else 0
    # A window longer than everything hides nothing; as it stands it could overflow 32 bits in the kernel.
    reach = min(window or 0, capacity + seq_q)
    strides = cache_strides(k_cache, layout)
    arguments = (
        *(q, Cache(k_cache, v_cache), page_table, seq_lens, PerHead(sinks, alibi_slopes)),
        *(Outputs(out, lse), partials, q.stride()[:3]),
        *(page_table.stride(0), capacity, pages, batch, 1, reach),
        ScoreScaling(scale / softcap, softcap * LOG2_E) if softcap else ScoreScaling(scale * LOG2_E, 0.0),
        *(tile, LatentWidths(width, head_dim - width, padded_widths(head_dim - width, width)[0])),
        Paging(page_size, math.gcd(page_size, tokens), strides, strides),
        LatentFeatures(window is not None, softcap is not None, scores == "shared"),
        splits,
    )
    launched = (_run(latent_decode_split, (lanes, splits), arguments, options, compile_only),)
    if splits == 1:
        return launched
    at_once = max(1, min(power_of_two(splits), COMBINED // width))
    merged = (
        *(partials, seq_lens, sinks, Outputs(out, lse), capacity, batch, 1, 0, reach),
        *(tile, width, width, splits, at_once, window is not None, False),
    )
    merging = {"num_warps": COMBINE_WARPS}
    return (*launched, _run(combine_partials, (batch * seq_q * heads,), merged, merging, compile_only))


def _run(
    kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], constants: dict[str, Any], compile_only: bool
) -> Any:
    if compile_only:
        return kernel.warmup(*arguments, **constants, grid=grid)
    return kernel[grid](*arguments, **constants)
