"""Launches of flash attention of e4m3: values are transposed, then attention is computed."""

import math
from collections.abc import Mapping
from typing import Any, Final

import torch
import triton
from triton.experimental.gluon import language as gl

from autotune.errors import UnsupportedCallError
from autotune.kernels.flash_attention.gluon_hopper.forward import ROWS

# As they are: to move them would change the source hash that the rows of gluon_hopper were recorded with.
from autotune.kernels.flash_attention.gluon_hopper.launch import FLIPS, LOG2_E, _strides, _unfit, _workers
from autotune.kernels.flash_attention.gluon_hopper.schedule import Features
from autotune.kernels.flash_attention.gluon_hopper_fp8.byte_schedule import ByteSchedule, Scales
from autotune.kernels.flash_attention.gluon_hopper_fp8.forward import byte_attention_forward
from autotune.kernels.flash_attention.gluon_hopper_fp8.values import transpose_values
from autotune.kernels.flash_attention.scales import Scale
from autotune.kernels.gluon import TensorDescriptor
from autotune.rounding import power_of_two
from autotune.search_spaces.flash_attention.byte_groups import byte_widths, value_parts
from autotune.search_spaces.flash_attention.warp_groups import REGISTERS

DTYPES: Final = {torch.float8_e4m3fn: gl.float8e4nv, torch.float16: gl.float16, torch.bfloat16: gl.bfloat16}
TRANSPOSING_WARPS: Final = 4


def launch_bytes(
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
    options: Mapping[str, Any],
    q_scale: Scale = None,
    k_scale: Scale = None,
    v_scale: Scale = None,
    compile_only: bool = False,
) -> tuple[Any, ...]:
    """Launch one forward pass over checked tensors ``[B, S, H, D]`` of e4m3 with unit last strides.

    ``out`` is of 16 bits. Scales are numbers, None for 1, or fp32 tensors: of one element, ``[H]`` or ``[B, H]``, H
    the heads of the tensor that they scale. ``options`` are the parameters of a config. Returns the compiled kernels
    in order; with ``compile_only`` nothing runs and the tensors may be on the meta device.

    Raises:
        UnsupportedCallError: TMA cannot copy tiles of the queries, the keys or the output, for an address or strides.
    """
    batches, seq_q, heads, head_dim = q.shape
    seq_kv, kv_heads, head_dim_v = k.shape[1], k.shape[2], v.shape[3]
    if out.numel() == 0:
        return ()
    if seq_kv == 0:
        out.zero_()
        if lse is not None:
            lse.fill_(-math.inf)
        return ()
    for name, tensor in {"q": q, "k": k, "out": out}.items():
        if (reason := _unfit(tensor)) is not None:
            raise UnsupportedCallError(f"{name}: {reason}, which tensor-map copies need")
    parts, width, width_v = byte_widths(head_dim, head_dim_v)
    schedule = _byte_schedule(options, width_v)
    block_k, rows = schedule.block_k, ROWS.value
    transposed, transposing = _transpose(v, block_k, compile_only=compile_only)
    tiles = triton.cdiv(seq_q, rows * schedule.consumers) * batches * heads
    (q_factor, of_q), (k_factor, of_k), (v_factor, of_v) = map(_split_scale, (q_scale, k_scale, v_scale))
    scale *= q_factor * k_factor
    arguments = (
        *(_describe_bytes(q, rows, width), _describe_bytes(k, block_k, width)),
        *(_describe_bytes(transposed, width_v, block_k), _describe_bytes(out, rows, width_v), lse),
        Scales(of_q, of_k, of_v, *_scale_strides(of_q), *_scale_strides(of_k), *_scale_strides(of_v)),
        # A window longer than everything hides nothing; as it stands it could overflow 32 bits in the kernel.
        *(heads, heads // kv_heads, seq_q, seq_kv, min(window or 0, seq_q + seq_kv)),
        scale / softcap if softcap else scale * LOG2_E,
        *(v_factor, softcap or 0.0),
        *(tiles, options["section"], FLIPS[options["row_order"]], head_dim_v),
        Features(causal, window is not None, softcap is not None, parts),
        schedule,
    )
    grid = (min(tiles, _workers(options["workers"], q, tiles)),)
    if compile_only:
        return (transposing, byte_attention_forward.warmup(*arguments, grid=grid))
    return (transposing, byte_attention_forward[grid](*arguments))


def _byte_schedule(options: Mapping[str, Any], width_v: int) -> ByteSchedule:
    return ByteSchedule(
        consumers=options["consumers"],
        block_k=options["BLOCK_K"],
        slots=options["slots"],
        query_slots=options["query_slots"],
        registers=REGISTERS[options["consumers"]],
        ping_pong=options["ping_pong"] == "issue",
        values_early=options["values"] == "early",
        block_sums=options["sums"] == "block",
        value_parts=value_parts(width_v, options["BLOCK_K"], options["sums"]),
    )


def _transpose(v: torch.Tensor, block_k: int, *, compile_only: bool) -> tuple[torch.Tensor, Any]:
    """Return values transposed by blocks of keys, ``[B, blocks * D_v, H, BLOCK_K]``, and the compiled kernel."""
    batches, seq_kv, kv_heads, width = v.shape
    blocks = triton.cdiv(seq_kv, block_k)
    room = torch.empty((batches, kv_heads, blocks * width, block_k), dtype=torch.uint8, device=v.device)
    arguments = (v.view(torch.uint8), room, *v.stride()[:3], kv_heads, seq_kv, blocks)
    constants: dict[str, Any] = {"WIDTH": width, "PADDED": power_of_two(width), "BLOCK_K": block_k}
    grid, warps = (batches * kv_heads * blocks,), {"num_warps": TRANSPOSING_WARPS}
    if compile_only:
        compiled = transpose_values.warmup(*arguments, **constants, **warps, grid=grid)
    else:
        compiled = transpose_values[grid](*arguments, **constants, **warps)
    return room.view(v.dtype).transpose(1, 2), compiled


def _split_scale(scale: Scale) -> tuple[float, torch.Tensor | None]:
    """Return a scale as the number that all heads have, and as the tensor that has one of each head."""
    if isinstance(scale, torch.Tensor):
        return 1.0, scale
    return (1.0 if scale is None else float(scale)), None


def _scale_strides(scale: torch.Tensor | None) -> tuple[int, int]:
    """Return the strides of batch and of head: 0 where a scale is of all."""
    if scale is None or scale.numel() == 1:
        return 0, 0
    return (0, scale.stride(0)) if scale.ndim == 1 else (scale.stride(0), scale.stride(1))


def _describe_bytes(tensor: torch.Tensor, rows: int, width: int) -> TensorDescriptor:
    block = [1, rows, 1, width]
    layout = gl.NVMMASharedLayout.get_default_for(block, DTYPES[tensor.dtype])
    return TensorDescriptor(tensor, list(tensor.shape), _strides(tensor), block, layout)
