"""Launches paged decode over checked tensors: strides, constants, grids, room for partial results."""

import math
from functools import cache
from typing import Any, Final, NamedTuple

import torch
import triton

from autotune.kernels.paged_decode.combine import combine_partials
from autotune.kernels.paged_decode.counters import take_counters
from autotune.kernels.paged_decode.forward import paged_decode_flat, paged_decode_split
from autotune.search_spaces.flash_attention import padded_widths
from autotune.search_spaces.paged_decode import power_of_two
from autotune.space import Config

LOG2_E: Final = math.log2(math.e)
ALIGNMENT: Final = 16  # bytes, or elements of a stride: what Triton knows of an argument
BYTES_OF_A_PAIR: Final = 4
NVIDIA_WARP: Final = 32  # threads
COMBINE_WARPS: Final = 2
MERGED_BY_LAST: Final = 4096  # numbers of partial results, which one warp may have to hold
# Numbers of partial results whose loads wait together where there are few rows, about one an SM; where there are more,
# they find room together only if none takes too many registers (NVIDIA H200, 2026-11-21: 3 to 6 % of ragged batches).
FEW_ROWS, COMBINED_OF_FEW, COMBINED_OF_MANY = 128, 8192, 4096

# Where page, slot and head lie in a cache, and in the scales of one.
AXES: Final = {"NHD": (0, 1, 2), "HND": (0, 2, 1)}
STRIDES: Final = ("K_STRIDES", "V_STRIDES", "KS_STRIDES", "VS_STRIDES")


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
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    sm_count: int | None = None,
    compile_only: bool = False,
) -> Any:
    """Launch one decode over checked tensors: ``q [B, S_q, H, D]``, ``out [B, S_q, H, D_v]``, ``lse [B, S_q, H]``.

    Scales are fp32, one for all (0 dimensions), one a KV head, or one a slot and head in the order of the cache's axes.
    ``options`` are the parameters of a config without those that do not apply. The grid depends on shapes, options and
    the number of SMs alone (the device's own by default), so a CUDA graph may hold the launch. With ``compile_only``
    nothing runs and the tensors may be on the meta device; the compiled kernel is returned.
    """
    if out.numel() == 0:
        return None
    batch, seq_q, heads, head_dim = q.shape
    page_size, kv_heads = (k_cache.shape[axis] for axis in AXES[layout][1:])
    options = dict(options)
    head_dim_v, tiled_heads, block_rows = v_cache.shape[3], options.pop("HEADS"), options.pop("BLOCK_ROWS")
    rows = tiled_heads * seq_q * heads // kv_heads
    tile_rows = min(block_rows, power_of_two(rows))
    lanes = kv_heads // tiled_heads * -(-rows // block_rows)
    tokens = options["BLOCK_K"] // tiled_heads
    is_packed = _can_pack(q, k_cache, v_cache, options)
    elements = 2 if is_packed else 1  # in a word, of which tiles are made
    block_d, block_dv = (elements * width for width in padded_widths(head_dim // elements, head_dim_v // elements))
    plan = _plan(options, batch, lanes, sm_count or _sm_count(q.device))
    partial_type = getattr(torch, options.pop("PARTIALS", "float32"))
    in_last = options.pop("COMBINE", "kernel") == "last" and plan.partials > 0
    partials = q.new_empty((plan.partials, block_rows, block_dv), dtype=partial_type)
    statistics = q.new_empty((plan.partials, 2, block_rows), dtype=torch.float32)
    counters = take_counters(batch * lanes, q.device) if in_last else None
    # A window longer than everything hides nothing; as it stands it could overflow 32 bits in the kernel.
    capacity = page_table.shape[1] * page_size
    reach = min(window or 0, capacity + seq_q)
    is_early = _has_dependent_launch(q.device)
    launching = {"launch_pdl": True} if is_early else {}
    constants = {
        "SEQ_Q": seq_q,
        "GROUP": heads // kv_heads,
        "HEAD_DIM_V": head_dim_v,
        "BLOCK_DV": block_dv,
        "BLOCK_ROWS": block_rows,
        "WINDOW": window is not None,
        "HEADS": tiled_heads,
        "SPLITS": plan.splits,
        "EARLY": is_early,
    }
    strides = (
        *(tuple(cache.stride(axis) for axis in AXES[layout]) for cache in (k_cache, v_cache)),
        *(_scale_strides(scales, layout) for scales in (k_scale, v_scale)),
    )
    compiled = _run(
        plan.kernel,
        plan.grid,
        (
            *(q, k_cache, v_cache, k_scale, v_scale, page_table, seq_lens),
            *(sinks, alibi_slopes, out, lse, partials, statistics, counters),
            q.stride()[:3],
            *(page_table.stride(0), capacity, batch, kv_heads, reach),
            *((scale / softcap, softcap * LOG2_E) if softcap else (scale * LOG2_E, 0.0)),
        ),
        constants
        | {
            "HEAD_DIM": head_dim,
            "BLOCK_D": block_d,
            "PAGE_SIZE": page_size,
            "RUN": math.gcd(page_size, tokens),
            "SOFTCAP": softcap is not None,
            "PRECISE": q.dtype == torch.float32,
            "KEY_SCALES": k_scale is not None and k_scale.ndim == 3,
            "PACKED": is_packed,
            "ROWS": tile_rows,
            "AT_ONCE": max(1, min(power_of_two(plan.splits), MERGED_BY_LAST // (tile_rows * block_dv))),
        }
        | dict(zip(STRIDES, strides, strict=True))
        | options
        | launching,
        compile_only,
    )
    if plan.partials and not in_last:
        arguments = (partials, statistics, seq_lens, sinks, out, lse, capacity, batch, kv_heads, plan.programs, reach)
        most = max(1, (COMBINED_OF_FEW if batch * seq_q * heads <= FEW_ROWS else COMBINED_OF_MANY) // block_dv)
        at_once = min(power_of_two(plan.splits), most) if plan.splits else most
        _run(
            combine_partials,
            (batch * seq_q * heads,),
            arguments,
            constants | {"TOKENS": tokens, "AT_ONCE": at_once, "num_warps": COMBINE_WARPS} | launching,
            compile_only,
        )
    return compiled


def _plan(options: dict[str, Any], batch: int, lanes: int, sm_count: int) -> Plan:
    """The grid over ``lanes``, the KV heads' blocks of rows; takes the schedule's parameters out of the options."""
    if options.pop("schedule") == "split":
        splits, sequences = options.pop("NUM_SPLITS"), batch * lanes
        return Plan(paged_decode_split, (sequences, splits), splits, 0, sequences * splits if splits > 1 else 0)
    programs = max(1, options.pop("PROGRAMS_PER_SM") * sm_count // lanes)
    return Plan(paged_decode_flat, (programs * lanes,), 0, programs, 2 * programs * lanes)


def _scale_strides(scales: torch.Tensor | None, layout: str) -> tuple[int, ...]:
    """The strides of page, slot and head of a cache's scales; 0 where one scale serves all."""
    if scales is None or scales.ndim == 0:
        return (0, 0, 0)
    if scales.ndim == 1:
        return (0, 0, scales.stride(0))
    return tuple(scales.stride(axis) for axis in AXES[layout])


def _run(
    kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], constants: dict[str, Any], compile_only: bool
) -> Any:
    if compile_only:
        return kernel.warmup(*arguments, **constants, grid=grid)
    return kernel[grid](*arguments, **constants)


def _can_pack(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, options: dict[str, Any]) -> bool:
    """Whether one-byte caches can be read in words of two bytes, and converted as NVIDIA's GPUs do.

    Keys are converted two words at a time, neighbours in a row: each thread must load such pairs, as it does where rows
    are known to be aligned and a tile has pairs enough.
    """
    threads = NVIDIA_WARP * options["num_warps"]
    return (
        k_cache.itemsize == 1
        and q.dtype != torch.float32
        and all(cache.shape[3] % BYTES_OF_A_PAIR == 0 for cache in (k_cache, v_cache))
        and all(stride % ALIGNMENT == 0 for cache in (k_cache, v_cache) for stride in cache.stride()[:3])
        and all(cache.data_ptr() % ALIGNMENT == 0 for cache in (k_cache, v_cache))
        and options["BLOCK_K"] * k_cache.shape[3] >= BYTES_OF_A_PAIR * threads
        and _is_nvidia(q.device)
    )


def _has_dependent_launch(device: torch.device) -> bool:
    """Whether a kernel may be launched before the one that it waits for has ended: NVIDIA's GPUs since sm_90."""
    if device.type == "meta":
        target = triton.runtime.driver.active.get_current_target()
        return target.backend == "cuda" and int(target.arch) >= 90
    return _is_nvidia(device) and _capability(device) >= 9


def _is_nvidia(device: torch.device) -> bool:
    """Whether kernels run on an NVIDIA GPU; tensors of the meta device are compiled for Triton's active target."""
    if device.type == "meta":
        return bool(triton.runtime.driver.active.get_current_target().backend == "cuda")
    return device.type == "cuda" and torch.version.hip is None


@cache
def _capability(device: torch.device) -> int:
    return torch.cuda.get_device_capability(device)[0]


@cache
def _sm_count(device: torch.device) -> int:
    """SMs of a GPU; 1 for what has none, Triton's interpreter and the meta device."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def launch_options(config: Config) -> dict[str, Any]:
    """A config as keyword arguments of the launch, without the parameters of other backends."""
    return {name: value for name, value in config.items() if value is not None}
