"""Launches of attention over packed sequences in Gluon: the table of tiles is written, then attention is computed."""

from collections.abc import Mapping
from typing import Any, Final

import torch
from triton.experimental.gluon import language as gl

from autotune.errors import UnsupportedCallError
from autotune.kernels.flash_attention.gluon_hopper.forward import ROWS

# As they are: to move them would change the source hash that the rows of the dense kernel were recorded with.
from autotune.kernels.flash_attention.gluon_hopper.launch import DTYPES, LOG2_E, _schedule, _strides, _unfit, _workers
from autotune.kernels.flash_attention_varlen.gluon_hopper.forward import PackedFeatures, varlen_attention_forward
from autotune.kernels.flash_attention_varlen.gluon_hopper.ragged import LAST, MOST, WRAP
from autotune.kernels.flash_attention_varlen.gluon_hopper.tile_table import COLUMNS, write_tiles
from autotune.kernels.flash_attention_varlen.triton.sequence_order import Tile
from autotune.kernels.gluon import TensorDescriptor
from autotune.search_spaces.flash_attention.warp_groups import part_widths

TABLE_WARPS: Final = 4  # that look at 256 sequences together


def launch_packed(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    *,
    seqused_q: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    causal: bool,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
    options: Mapping[str, Any],
    compile_only: bool = False,
) -> tuple[Any, ...]:
    """Launch one forward pass over checked tensors of 16 bits: ``q [T, H, D]``, ``out [T, H, D_v]``, ``lse [T, H]``.

    ``options`` are the parameters of a config. The grids depend on sizes and options alone, so that a CUDA graph may
    hold the launches. Returns the compiled kernels in order; with ``compile_only`` nothing runs and the tensors may be
    on the meta device.

    Raises:
        UnsupportedCallError: TMA cannot copy tiles of a tensor, for its address or its strides; there are no keys, or
            more rows than ragged tensor maps have.
    """
    (tokens, heads, head_dim), (key_tokens, kv_heads, head_dim_v) = q.shape, v.shape
    if out.numel() == 0:
        return ()
    if key_tokens == 0:
        raise UnsupportedCallError("k has no keys, which no tensor map describes")
    if (longest := max(tokens, key_tokens)) > LAST.value:
        raise UnsupportedCallError(f"{longest} packed rows are more than the {LAST.value} of a ragged tensor map")
    for name, tensor in {"q": q, "k": k, "v": v, "out": out}.items():
        if (reason := _unfit(tensor[None]) or _too_far_apart(tensor)) is not None:
            raise UnsupportedCallError(f"{name}: {reason}, which tensor-map copies need")
    schedule, batch = _schedule(options), cu_seqlens_q.shape[0] - 1
    parts, width, width_v = part_widths(head_dim, head_dim_v)
    rows: int = ROWS.value
    block_q, block_k = rows * schedule.consumers, schedule.block_k
    slots = tokens // block_q + batch
    table = torch.empty((slots + 1, COLUMNS.value), dtype=torch.int32, device=q.device)
    table_arguments = (table, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, tokens, key_tokens, batch)
    constants = (Tile(1, block_q, block_k), options["sequences"] == "longest", COLUMNS.value)
    arguments = (
        *(_describe_ragged(q, rows, width), _describe_ragged(k, block_k, width), _describe_ragged(v, block_k, width_v)),
        *(_describe_ragged(out, rows, width_v), lse, sinks, table),
        # A window longer than everything hides nothing; as it stands it could overflow 32 bits in the kernel.
        *(heads, heads // kv_heads, min(window or 0, tokens + key_tokens)),
        scale / softcap if softcap else scale * LOG2_E,
        softcap or 0.0,
        PackedFeatures(
            causal=causal,
            window=window is not None,
            softcap=softcap is not None,
            key_parts=parts,
            has_used=seqused_q is not None,
            heads_together=options["order"] == "tile",
        ),
        schedule,
    )
    tiles = slots * heads
    grid = (min(tiles, _workers(options["workers"], q, tiles)),)
    if compile_only:
        return (
            write_tiles.warmup(*table_arguments, *constants, grid=(slots,), num_warps=TABLE_WARPS),
            varlen_attention_forward.warmup(*arguments, grid=grid),
        )
    return (
        write_tiles[(slots,)](*table_arguments, *constants, num_warps=TABLE_WARPS),
        varlen_attention_forward[grid](*arguments),
    )


def _too_far_apart(tensor: torch.Tensor) -> str | None:
    """Return why no ragged map has the rows of ``[T, H, D]``, whose strides fit TMA, or None."""
    _, row, _, _ = _strides(tensor[None])
    return None if row < WRAP.value else f"its rows are {row} elements apart, not fewer than {WRAP.value}"


def _describe_ragged(tensor: torch.Tensor, rows: int, width: int) -> TensorDescriptor:
    """Return a ragged descriptor of ``[T, H, D]``, as ``ragged.place_of`` has its coordinates."""
    _, row, head, _ = _strides(tensor[None])
    block = [1, 1, rows, 1, width]
    layout = gl.NVMMASharedLayout.get_default_for(block, DTYPES[tensor.dtype])
    sizes = [MOST.value, MOST.value, LAST.value, *tensor.shape[1:]]
    return TensorDescriptor(tensor, sizes, [WRAP.value - row, row, row, head, 1], block, layout)
