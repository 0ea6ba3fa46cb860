"""Launches attention over checked packed tensors: strides, constants, and a grid that needs no length."""

import math
from typing import Any, Final

import torch

from autotune.kernels.flash_attention_varlen.triton.forward import Features, flash_attention_varlen_forward
from autotune.kernels.flash_attention_varlen.triton.sequence_order import Tile
from autotune.kernels.tiles.outputs import Outputs
from autotune.kernels.tiles.rows import Strides, Widths
from autotune.search_spaces.bounds import padded_widths

LOG2_E: Final = math.log2(math.e)


def launch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    *,
    causal: bool,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
    options: dict[str, Any],
    compile_only: bool = False,
) -> Any:
    """Launch one forward pass over checked tensors: ``q [T, H, D]``, ``out [T, H, D_v]``, ``lse [T, H]``.

    ``options`` are the parameters of a config without those that do not apply. The grid depends on sizes and options
    alone: it has room for the tiles of any division of the queries among the sequences. So a CUDA graph may hold the
    launch, and programs without a tile end at once. With ``compile_only`` nothing runs and the tensors may be on the
    meta device; the compiled kernel is returned.
    """
    if out.numel() == 0:
        return None
    tokens, heads, head_dim = q.shape
    key_tokens, kv_heads, head_dim_v = v.shape
    batch, group = cu_seqlens_q.shape[0] - 1, heads // kv_heads
    options = dict(options)
    tile = Tile(group, *(options.pop(name) for name in ("BLOCK_Q", "BLOCK_K")))
    arguments = (
        *(q, k, v, cu_seqlens_q, cu_seqlens_k, sinks, Outputs(out, lse)),
        *(Strides(0, *tensor.stride()[:2]) for tensor in (q, k, v)),
        # A window longer than everything hides nothing; as it stands it could overflow 32 bits in the kernel.
        *(tokens, key_tokens, batch, kv_heads, min(window or 0, tokens + key_tokens)),
        scale / softcap if softcap else scale * LOG2_E,
        softcap or 0.0,
        tile,
        Widths(head_dim, head_dim_v, *padded_widths(head_dim, head_dim_v)),
        Features(
            causal=causal,
            window=window is not None,
            softcap=softcap is not None,
            precise=q.dtype == torch.float32,
            longest_first=options.pop("sequences") == "longest",
            heads_together=options.pop("order") == "tile",
        ),
    )
    grid = ((tokens * group // tile.rows + batch) * kv_heads,)
    if compile_only:
        return flash_attention_varlen_forward.warmup(*arguments, **options, grid=grid)
    return flash_attention_varlen_forward[grid](*arguments, **options)
