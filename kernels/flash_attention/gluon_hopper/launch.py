"""Launches flash attention in Gluon over checked tensors: descriptors, constants, grid."""

import math
from collections.abc import Mapping
from typing import Any, Final

import torch
import triton
from triton.experimental.gluon import language as gl

from autotune.errors import UnsupportedCallError
from autotune.kernels.flash_attention.gluon_hopper.forward import ROWS, flash_attention_forward
from autotune.kernels.flash_attention.gluon_hopper.schedule import Features, WarpSchedule
from autotune.kernels.gluon import TensorDescriptor
from autotune.search_spaces.flash_attention.warp_groups import REGISTERS, part_widths

LOG2_E: Final = math.log2(math.e)
ALIGNMENT: Final = 16  # bytes, of base and strides: CUDA driver API, cuTensorMapEncodeTiled
MAX_STRIDE: Final = 2**40  # bytes: the same
FLIPS: Final = {"natural": 0, "reversed": 3, "alternating": 1}  # 1: of even heads, 2: of odd ones
DTYPES: Final = {torch.float16: gl.float16, torch.bfloat16: gl.bfloat16}


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
    options: Mapping[str, Any],
    compile_only: bool = False,
) -> Any:
    """Launch one forward pass over checked tensors ``[B, S, H, D]`` of 16 bits with unit last strides.

    ``options`` are the parameters of a config. With ``compile_only`` nothing runs and the tensors may be on the meta
    device; the compiled kernel is returned.

    Raises:
        UnsupportedCallError: TMA cannot copy tiles of a tensor, for its address or its strides.
    """
    batches, seq_q, heads, head_dim = q.shape
    seq_kv, kv_heads, head_dim_v = k.shape[1], k.shape[2], v.shape[3]
    if out.numel() == 0:
        return None
    if seq_kv == 0:
        out.zero_()
        return lse.fill_(-math.inf) if lse is not None else None
    for name, tensor in {"q": q, "k": k, "v": v, "out": out}.items():
        if (reason := _unfit(tensor)) is not None:
            raise UnsupportedCallError(f"{name}: {reason}, which tensor-map copies need")
    schedule = _schedule(options)
    parts, width, width_v = part_widths(head_dim, head_dim_v)
    rows: int = ROWS.value
    tiles = triton.cdiv(seq_q, rows * schedule.consumers) * batches * heads
    arguments = (
        *(_describe(q, rows, width), _describe(k, schedule.block_k, width), _describe(v, schedule.block_k, width_v)),
        *(_describe(out, rows, width_v), lse),
        # A window longer than everything hides nothing; as it stands it could overflow 32 bits in the kernel.
        *(heads, heads // kv_heads, seq_q, seq_kv, min(window or 0, seq_q + seq_kv)),
        scale / softcap if softcap else scale * LOG2_E,
        softcap or 0.0,
        *(tiles, options["section"], FLIPS[options["row_order"]]),
        Features(causal, window is not None, softcap is not None, parts),
        schedule,
    )
    grid = (min(tiles, _workers(options["workers"], q, tiles)),)
    if compile_only:
        return flash_attention_forward.warmup(*arguments, grid=grid)
    return flash_attention_forward[grid](*arguments)


def _schedule(options: Mapping[str, Any]) -> WarpSchedule:
    return WarpSchedule(
        consumers=options["consumers"],
        block_k=options["BLOCK_K"],
        slots=options["slots"],
        query_slots=options["query_slots"],
        registers=REGISTERS[options["consumers"]],
        ping_pong=options["ping_pong"] == "issue",
        values_early=options["values"] == "early",
        out_in_queries=options["results"] == "queries",
    )


def _workers(name: str, q: torch.Tensor, tiles: int) -> int:
    """Return how many programs share the tiles."""
    if name == "tiles" or q.device.type != "cuda":
        return tiles
    count = torch.cuda.get_device_properties(q.device).multi_processor_count
    return {"sm": count, "sm-1": count - 1, "sm-3": count - 3, "2sm": 2 * count}[name]


def _unfit(tensor: torch.Tensor) -> str | None:
    """Return why TMA cannot copy tiles of a tensor, or None."""
    if past := tensor.data_ptr() % ALIGNMENT:
        return f"its address is {past} bytes past a multiple of {ALIGNMENT} bytes"
    strides = [stride * tensor.element_size() for stride in _strides(tensor)[:3]]
    if all(0 < stride < MAX_STRIDE and stride % ALIGNMENT == 0 for stride in strides):
        return None
    return f"its strides are {strides} bytes, not positive multiples of {ALIGNMENT} bytes"


def _strides(tensor: torch.Tensor) -> list[int]:
    """Return strides in elements; along a dimension of size 1, where no step is taken, the least that fits."""
    least = ALIGNMENT // tensor.element_size()
    outer = zip(tensor.shape[:3], tensor.stride()[:3], strict=True)
    return [*(least if size == 1 else stride for size, stride in outer), 1]


def _describe(tensor: torch.Tensor, rows: int, width: int) -> TensorDescriptor:
    block = [1, rows, 1, width]
    layout = gl.NVMMASharedLayout.get_default_for(block, DTYPES[tensor.dtype])
    return TensorDescriptor(tensor, list(tensor.shape), _strides(tensor), block, layout)
