"""Launches attention over checked tensors, packed or padded: strides, constants, and a grid that needs no length."""

import math
from typing import Any, Final

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from autotune.kernels.flash_attention_varlen.triton.forward import (
    Factors,
    Features,
    Padding,
    flash_attention_varlen_forward,
)
from autotune.kernels.flash_attention_varlen.triton.sequence_order import Tile
from autotune.kernels.tiles.outputs import Outputs
from autotune.kernels.tiles.rows import Strides, Widths
from autotune.search_spaces.bounds import padded_widths

LOG2_E: Final = math.log2(math.e)
NO_PADDING: Final = Padding(None, None, None)
DESCRIPTOR_ALIGNMENT: Final = 16  # bytes, of base and strides: CUDA driver API, cuTensorMapEncodeTiled


def launch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None,
    cu_seqlens_k: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    *,
    padding: Padding = NO_PADDING,
    causal: bool,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
    options: dict[str, Any],
    compile_only: bool = False,
) -> Any:
    """Launch one forward pass over checked tensors: ``q [T, H, D]``, ``out [T, H, D_v]``, ``lse [T, H]``; of a padded
    batch, which has no offsets, ``B, S`` in place of ``T``.

    ``options`` are the parameters of a config without those that do not apply. The grid depends on sizes and options
    alone: it has room for the tiles of any division of the queries among the sequences. So a CUDA graph may hold the
    launch, and programs without a tile end at once. Tensor descriptors need base addresses and strides that are
    multiples of 16 bytes; other keys and values are loaded by pointer under the same config. With ``compile_only``
    nothing runs and the tensors may be on the meta device; the compiled kernel is returned.
    """
    if out.numel() == 0:
        return None
    tokens, heads, head_dim = q.shape[-3:]
    key_tokens, kv_heads, head_dim_v = v.shape[-3:]
    batch, group = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1, heads // kv_heads
    options = dict(options)
    tile = Tile(group, *(options.pop(name) for name in ("BLOCK_Q", "BLOCK_K")))
    widths = Widths(head_dim, head_dim_v, *padded_widths(head_dim, head_dim_v))
    descriptor = options.pop("loads") == "descriptor" and _fits_descriptor(k) and _fits_descriptor(v)
    arguments = (
        q,
        _describe(k, tile.keys, widths.padded_k) if descriptor else k,
        _describe(v, tile.keys, widths.padded_v) if descriptor else v,
        *(cu_seqlens_q, cu_seqlens_k, sinks, padding, Outputs(out, lse)),
        *(Strides(tensor.stride(0) if tensor.ndim == 4 else 0, *tensor.stride()[-3:-1]) for tensor in (q, k, v)),
        # A window longer than everything hides nothing; as it stands it could overflow 32 bits in the kernel.
        *(tokens, key_tokens, batch, kv_heads, min(window or 0, tokens + key_tokens)),
        Factors(scale / softcap if softcap else scale * LOG2_E, softcap or 0.0),
        tile,
        widths,
        Features(
            causal=causal,
            window=window is not None,
            softcap=softcap is not None,
            precise=q.dtype == torch.float32,
            descriptor=descriptor,
            longest_first=options.pop("sequences") == "longest",
            heads_together=options.pop("order") == "tile",
        ),
    )
    slots = batch * -(-tokens * group // tile.rows) if cu_seqlens_q is None else tokens * group // tile.rows + batch
    grid = (slots * kv_heads,)
    if compile_only:
        return flash_attention_varlen_forward.warmup(*arguments, **options, grid=grid)
    return flash_attention_varlen_forward[grid](*arguments, **options)


def _fits_descriptor(tensor: torch.Tensor) -> bool:
    strides = (stride * tensor.element_size() for stride in tensor.stride()[:-1])
    return (
        tensor.numel() > 0
        and tensor.data_ptr() % DESCRIPTOR_ALIGNMENT == 0
        and all(0 < stride < 2**40 and stride % DESCRIPTOR_ALIGNMENT == 0 for stride in strides)
    )


def _describe(tensor: torch.Tensor, rows: int, width: int) -> TensorDescriptor:
    """Return a descriptor of a batch, packed rows being one of one, as ``tiles.rows`` loads them."""
    batch = tensor if tensor.ndim == 4 else tensor[None]
    return TensorDescriptor(batch, list(batch.shape), list(batch.stride()), [1, rows, 1, width])
