"""Launches flash attention over split values: strides, descriptors, constants, grid."""

import math
from typing import Any, Final

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from autotune.kernels.flash_attention.triton_split_values.forward import (
    AllStrides,
    EntryStrides,
    Features,
    ScoreOperands,
    ScoreUnits,
    TileSizes,
    flash_attention_columns_forward,
)
from autotune.kernels.tiles.outputs import Outputs
from autotune.kernels.tiles.rows import Strides, Widths
from autotune.search_spaces.bounds import padded_widths

LOG2_E: Final = math.log2(math.e)
DESCRIPTOR_ALIGNMENT: Final = 16  # bytes, of base and strides: CUDA driver API, cuTensorMapEncodeTiled


def launch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    *,
    causal: bool,
    window: int | None,
    softcap: float | None,
    scale: float,
    attn_mask: torch.Tensor | None,
    sinks: torch.Tensor | None,
    kv_ends: torch.Tensor | None,
    options: dict[str, Any],
    compile_only: bool = False,
) -> Any:
    """Launch one forward pass over checked tensors ``[B, S, H, D]`` with unit last strides.

    ``attn_mask [B or 1, H or 1, S_q or 1, S_kv]`` has any strides, ``kv_ends [B or 1, S_q]`` a unit last one.
    ``options`` are the parameters of a config without those that do not apply. Tensor descriptors need base addresses
    and strides that are multiples of 16 bytes; other tensors are loaded by pointer under the same config. With
    ``compile_only`` nothing runs and the tensors may be on the meta device; the compiled kernel is returned.
    """
    batches, seq_q, heads, head_dim = q.shape
    seq_kv, kv_heads, head_dim_v = k.shape[1], k.shape[2], v.shape[3]
    if out.numel() == 0:
        return None
    options = dict(options)
    blocks = TileSizes(options.pop("BLOCK_Q"), options.pop("BLOCK_K"), options.pop("BLOCK_V"))
    widths = Widths(head_dim, head_dim_v, *padded_widths(head_dim, head_dim_v))
    descriptor = options.pop("loads") == "descriptor" and all(map(_fits_descriptor, (q, k, v)))
    is_boolean = attn_mask is not None and attn_mask.dtype == torch.bool
    of_q, of_k, of_v, of_out = (Strides(*tensor.stride()[:3]) for tensor in (q, k, v, out))
    of_operands = _operand_strides(attn_mask, kv_ends)
    arguments = (
        _describe(q, blocks.queries, widths.padded_k) if descriptor else q,
        _describe(k, blocks.keys, widths.padded_k) if descriptor else k,
        _describe(v, blocks.keys, blocks.columns) if descriptor else v,
        ScoreOperands(_as_bytes(attn_mask), sinks, kv_ends),
        Outputs(out, lse),
        AllStrides(of_q, of_k, of_v, of_out, of_operands),
        # A window longer than everything hides nothing; as it stands it could overflow 32 bits in the kernel.
        *(heads, heads // kv_heads, seq_q, seq_kv, min(window or 0, seq_q + seq_kv)),
        ScoreUnits(scale / softcap if softcap else scale * LOG2_E, softcap or 0.0),
        widths,
        blocks,
        Features(
            causal=causal,
            window=window is not None,
            softcap=softcap is not None,
            boolean=is_boolean,
            additive=attn_mask is not None and not is_boolean,
            ends=kv_ends is not None,
            per_query=of_operands.row != 0,
            precise=q.dtype == torch.float32,
            descriptor=descriptor,
        ),
    )
    grid = (triton.cdiv(head_dim_v, blocks.columns) * triton.cdiv(seq_q, blocks.queries) * batches * heads,)
    if compile_only:
        return flash_attention_columns_forward.warmup(*arguments, **options, grid=grid)
    return flash_attention_columns_forward[grid](*arguments, **options)


def _as_bytes(attn_mask: torch.Tensor | None) -> torch.Tensor | None:
    """Return a boolean mask as bytes, which Triton loads, and others as they are."""
    return attn_mask.view(torch.uint8) if attn_mask is not None and attn_mask.dtype == torch.bool else attn_mask


def _operand_strides(attn_mask: torch.Tensor | None, kv_ends: torch.Tensor | None) -> EntryStrides:
    """Return the strides by which each entry is found, 0 in a dimension of one."""
    of_ends = 0 if kv_ends is None or kv_ends.shape[0] == 1 else kv_ends.stride(0)
    if attn_mask is None:
        return EntryStrides(0, 0, 0, 0, of_ends)
    pairs = zip(attn_mask.shape, attn_mask.stride(), strict=True)
    batch, head, row, key = (stride if size > 1 else 0 for size, stride in pairs)
    return EntryStrides(batch, head, row, key, of_ends)


def _fits_descriptor(tensor: torch.Tensor) -> bool:
    strides = (stride * tensor.element_size() for stride in tensor.stride()[:3])
    return tensor.data_ptr() % DESCRIPTOR_ALIGNMENT == 0 and all(
        0 < stride < 2**40 and stride % DESCRIPTOR_ALIGNMENT == 0 for stride in strides
    )


def _describe(tensor: torch.Tensor, rows: int, width: int) -> TensorDescriptor:
    by_head = tensor.transpose(1, 2)
    return TensorDescriptor(by_head, list(by_head.shape), list(by_head.stride()), [1, 1, rows, width])
