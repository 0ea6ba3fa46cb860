"""Launches paged decode over checked tensors: strides, constants, grids, room for partial results."""

import math
from functools import cache
from typing import Any, Final, NamedTuple

import torch

from autotune.kernels.paged_decode.combine import combine_partials
from autotune.kernels.paged_decode.forward import paged_decode_flat, paged_decode_split
from autotune.search_spaces.flash_attention import padded_widths
from autotune.search_spaces.paged_decode import row_blocks
from autotune.space import Config

LOG2_E: Final = math.log2(math.e)
COMBINE_WARPS: Final = 4

# Where page, slot and head lie in a cache.
AXES: Final = {"NHD": (0, 1, 2), "HND": (0, 2, 1)}


class Plan(NamedTuple):
    """How a schedule spreads the work: its kernel, grid, shares, and how many partial results that may leave.

    ``splits`` are the shares of a sequence, 0 under the schedule ``flat``; ``programs`` those of a KV head's list.
    """

    kernel: Any
    grid: tuple[int, ...]
    splits: int
    programs: int
    partials: int


def launch(
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
    sm_count: int | None = None,
    compile_only: bool = False,
) -> Any:
    """Launch one decode over checked tensors: ``q [B, S_q, H, D]``, ``out [B, S_q, H, D_v]``, ``lse [B, S_q, H]``.

    ``options`` are the parameters of a config without those that do not apply. The grid depends on shapes, options and
    the number of SMs alone (the device's own by default), so a CUDA graph may hold the launch. With ``compile_only``
    nothing runs and the tensors may be on the meta device; the compiled kernel is returned.
    """
    if out.numel() == 0:
        return None
    batch, seq_q, heads, head_dim = q.shape
    page_size, kv_heads = (k_cache.shape[axis] for axis in AXES[layout][1:])
    head_dim_v = v_cache.shape[3]
    blocks, block_rows = row_blocks(seq_q * heads // kv_heads)
    block_d, block_dv = padded_widths(head_dim, head_dim_v)
    options = dict(options)
    plan = _plan(
        options.pop("schedule"), options.pop("WORK"), batch, kv_heads * blocks, sm_count or _sm_count(q.device)
    )
    partials = q.new_empty((plan.partials, block_rows, block_dv), dtype=torch.float32)
    statistics = q.new_empty((plan.partials, 2, block_rows), dtype=torch.float32)
    # A window longer than everything hides nothing; as it stands it could overflow 32 bits in the kernel.
    reach = min(window or 0, page_table.shape[1] * page_size + seq_q)
    constants = {
        "SEQ_Q": seq_q,
        "GROUP": heads // kv_heads,
        "HEAD_DIM_V": head_dim_v,
        "BLOCK_DV": block_dv,
        "BLOCK_ROWS": block_rows,
        "BLOCK_K": options.pop("BLOCK_K"),
        "WINDOW": window is not None,
        "SPLITS": plan.splits,
    }
    compiled = _run(
        plan.kernel,
        plan.grid,
        (
            *(q, k_cache, v_cache, page_table, seq_lens, sinks, alibi_slopes, out, lse, partials, statistics),
            q.stride()[:3],
            *(tuple(cache.stride(axis) for axis in AXES[layout]) for cache in (k_cache, v_cache)),
            *(page_table.stride(0), batch, kv_heads, reach),
            *((scale / softcap, softcap * LOG2_E) if softcap else (scale * LOG2_E, 0.0)),
        ),
        constants
        | {
            "HEAD_DIM": head_dim,
            "BLOCK_D": block_d,
            "PAGE_SIZE": page_size,
            "RUN": math.gcd(page_size, constants["BLOCK_K"]),
            "SOFTCAP": softcap is not None,
            "PRECISE": q.dtype == torch.float32,
        }
        | options,
        compile_only,
    )
    if plan.partials:
        arguments = (partials, statistics, seq_lens, sinks, out, lse, batch, kv_heads, plan.programs, reach)
        _run(
            combine_partials,
            (batch * seq_q * heads,),
            arguments,
            constants | {"num_warps": COMBINE_WARPS},
            compile_only,
        )
    return compiled


def _plan(schedule: str, work: int, batch: int, lanes: int, sm_count: int) -> Plan:
    """The grid over ``lanes``, the KV heads' blocks of rows."""
    if schedule == "split":
        sequences = batch * lanes
        return Plan(paged_decode_split, (sequences, work), work, 0, sequences * work if work > 1 else 0)
    programs = max(1, work * sm_count // lanes)
    return Plan(paged_decode_flat, (programs * lanes,), 0, programs, 2 * programs * lanes)


def _run(
    kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], constants: dict[str, Any], compile_only: bool
) -> Any:
    if compile_only:
        return kernel.warmup(*arguments, **constants, grid=grid)
    return kernel[grid](*arguments, **constants)


@cache
def _sm_count(device: torch.device) -> int:
    """SMs of a GPU; 1 for what has none, Triton's interpreter and the meta device."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def launch_options(config: Config) -> dict[str, Any]:
    """A config as keyword arguments of the launch, without the parameters of other backends."""
    return {name: value for name, value in config.items() if value is not None}
