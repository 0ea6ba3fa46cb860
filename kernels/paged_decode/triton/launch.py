"""Launches paged decode over checked tensors: strides, constants, grids, room for partial results."""

import math
from functools import cache
from typing import Any, Final, NamedTuple

import torch
import triton

from autotune.kernels.paged_cache.layout import AXES, cache_strides, scale_strides
from autotune.kernels.paged_decode.triton.combine import combine_partials
from autotune.kernels.paged_decode.triton.counters import take_counters
from autotune.kernels.paged_decode.triton.forward import paged_decode_flat, paged_decode_split
from autotune.kernels.tiles.outputs import Outputs, PerHead
from autotune.kernels.tiles.pages import Cache, Paging
from autotune.kernels.tiles.partials import Partials
from autotune.kernels.tiles.rows import Widths
from autotune.kernels.tiles.score_scaling import ScoreScaling
from autotune.rounding import power_of_two
from autotune.search_spaces.bounds import padded_widths

LOG2_E: Final = math.log2(math.e)
ALIGNMENT: Final = 16  # bytes, or elements of a stride: what Triton knows of an argument
BYTES_OF_A_PAIR: Final = 4
NVIDIA_WARP: Final = 32  # threads
COMBINE_WARPS: Final = 2
MERGED_BY_LAST: Final = 4096  # numbers of partial results, which one warp may have to hold
# Numbers of partial results whose loads wait together where there are few rows, about one an SM; where there are more,
# they find room together only if none takes too many registers (NVIDIA H200, 2026-11-21: 3 to 6 % of ragged batches).
FEW_ROWS, COMBINED_OF_FEW, COMBINED_OF_MANY = 128, 8192, 4096


class Tile(NamedTuple):
    """The query heads of one KV head or of several, and the few queries of a sequence, are rows of one tile.

    Row ``(h * queries + i) * group + g`` is query i of the head g in the group of KV head h; ``used_rows`` of them need
    one block of ``rows`` or several. A tile has ``tokens`` keys of each of its ``heads`` KV heads.
    """

    queries: int
    group: int
    heads: int
    used_rows: int
    rows: int
    tokens: int


class Features(NamedTuple):
    """The computation of a binary: its features and its loads.

    ``token_scales``: keys and values have one scale a slot and head. ``packed``: they are read in words of two bytes.
    ``early``: it is launched before the kernel that it waits for has ended.
    """

    window: bool
    softcap: bool
    precise: bool
    token_scales: bool
    packed: bool
    early: bool


class Shares(NamedTuple):
    """Splits of a sequence, 0 under the schedule ``flat``, and how a program merges their partial results.

    It merges the first ``rows`` of a block, ``at_once`` partial results at a time.
    """

    splits: int
    rows: int
    at_once: int


class Plan(NamedTuple):
    """The spread of the work by a schedule: its kernel, grid, shares, and how many partial results that may leave.

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
) -> tuple[Any, ...]:
    """Launch one decode over checked tensors: ``q [B, S_q, H, D]``, ``out [B, S_q, H, D_v]``, ``lse [B, S_q, H]``.

    Scales are fp32, one for all (0 dimensions), one a KV head, or one a slot and head in the order of the cache's axes.
    ``options`` are the parameters of a config without those that do not apply. The grid depends on shapes, options and
    the number of SMs alone (the device's own by default), so a CUDA graph may hold the launch. Returns the compiled
    kernels in order; with ``compile_only`` nothing runs and the tensors may be on the meta device.
    """
    if out.numel() == 0:
        return ()
    options = dict(options)
    batch, seq_q, heads, _ = q.shape
    page_size, kv_heads = (k_cache.shape[axis] for axis in AXES[layout][1:])
    is_packed = _can_pack(q, k_cache, v_cache, options)
    tile = _tile(seq_q, heads // kv_heads, options)
    widths = _widths(q.shape[3], v_cache.shape[3], is_packed)
    lanes = kv_heads // tile.heads * -(-tile.used_rows // tile.rows)
    plan = _plan(options, batch, lanes, sm_count or _sm_count(q.device))
    partials = _allocate_partials(q, plan, tile, widths, batch * lanes, options)
    is_early = _has_dependent_launch(q.device)
    launching = {"launch_pdl": True} if is_early else {}
    pages = k_cache.shape[0]
    capacity = page_table.shape[1] * page_size if pages else 0
    # A window longer than everything hides nothing; as it stands it could overflow 32 bits in the kernel.
    reach = min(window or 0, capacity + seq_q)
    merged_rows = min(tile.rows, power_of_two(tile.used_rows))
    arguments = (
        *(q, Cache(k_cache, v_cache, k_scale, v_scale), page_table, seq_lens, PerHead(sinks, alibi_slopes)),
        *(Outputs(out, lse), partials, q.stride()[:3]),
        *(page_table.stride(0), capacity, pages, batch, kv_heads, reach),
        ScoreScaling(scale / softcap, softcap * LOG2_E) if softcap else ScoreScaling(scale * LOG2_E, 0.0),
        *(tile, widths),
        Paging(
            page_size,
            math.gcd(page_size, tile.tokens),
            *(cache_strides(cache, layout) for cache in (k_cache, v_cache)),
            *(scale_strides(scales, layout) for scales in (k_scale, v_scale)),
        ),
        Features(
            window=window is not None,
            softcap=softcap is not None,
            precise=q.dtype == torch.float32,
            token_scales=k_scale is not None and k_scale.ndim == 3,
            packed=is_packed,
            early=is_early,
        ),
        Shares(
            plan.splits,
            merged_rows,
            max(1, min(power_of_two(plan.splits), MERGED_BY_LAST // (merged_rows * widths.padded_v))),
        ),
    )
    launched = (_run(plan.kernel, plan.grid, arguments, options | launching, compile_only),)
    if not plan.partials or partials.counters is not None:
        return launched
    most = max(1, (COMBINED_OF_FEW if batch * seq_q * heads <= FEW_ROWS else COMBINED_OF_MANY) // widths.padded_v)
    at_once = min(power_of_two(plan.splits), most) if plan.splits else most
    merged = (
        *(partials, seq_lens, sinks, Outputs(out, lse), capacity, batch, kv_heads, plan.programs, reach),
        *(tile, widths.v, widths.padded_v, plan.splits, at_once, window is not None, is_early),
    )
    merging = {"num_warps": COMBINE_WARPS} | launching
    return (*launched, _run(combine_partials, (batch * seq_q * heads,), merged, merging, compile_only))


def _tile(queries: int, group: int, options: dict[str, Any]) -> Tile:
    """Return the tile; takes its parameters out of the options."""
    heads, rows, keys = (options.pop(name) for name in ("HEADS", "BLOCK_ROWS", "BLOCK_K"))
    return Tile(queries, group, heads, heads * queries * group, rows, keys // heads)


def _widths(head_dim: int, head_dim_v: int, is_packed: bool) -> Widths:
    """Return the widths of heads and of their tiles, which are made of words of two elements where packed."""
    elements = 2 if is_packed else 1
    padded = (elements * width for width in padded_widths(head_dim // elements, head_dim_v // elements))
    return Widths(head_dim, head_dim_v, *padded)


def _allocate_partials(
    q: torch.Tensor, plan: Plan, tile: Tile, widths: Widths, counters: int, options: dict[str, Any]
) -> Partials:
    """Allocate room for partial results, and counters if the last program merges; takes that out of the options."""
    dtype = getattr(torch, options.pop("PARTIALS", "float32"))
    in_last = options.pop("COMBINE", "kernel") == "last" and plan.partials > 0
    return Partials(
        q.new_empty((plan.partials, tile.rows, widths.padded_v), dtype=dtype),
        q.new_empty((plan.partials, 2, tile.rows), dtype=torch.float32),
        take_counters(counters, q.device) if in_last else None,
    )


def _plan(options: dict[str, Any], batch: int, lanes: int, sm_count: int) -> Plan:
    """Plan the grid over ``lanes``, the KV heads' blocks of rows; takes the schedule's parameters from the options."""
    if options.pop("schedule") == "split":
        splits, sequences = options.pop("NUM_SPLITS"), batch * lanes
        return Plan(paged_decode_split, (sequences, splits), splits, 0, sequences * splits if splits > 1 else 0)
    programs = max(1, options.pop("PROGRAMS_PER_SM") * sm_count // lanes)
    return Plan(paged_decode_flat, (programs * lanes,), 0, programs, 2 * programs * lanes)


def _run(
    kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], constants: dict[str, Any], compile_only: bool
) -> Any:
    if compile_only:
        return kernel.warmup(*arguments, **constants, grid=grid)
    return kernel[grid](*arguments, **constants)


def _can_pack(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, options: dict[str, Any]) -> bool:
    """Return if one-byte caches can be read in words of two bytes, and converted as NVIDIA's GPUs do.

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
    """Return if a kernel may be launched before the one that it waits for has ended: NVIDIA's GPUs since sm_90."""
    if device.type == "meta":
        target = triton.runtime.driver.active.get_current_target()
        return target.backend == "cuda" and int(target.arch) >= 90
    return _is_nvidia(device) and _capability(device) >= 9


def _is_nvidia(device: torch.device) -> bool:
    """Return if kernels run on an NVIDIA GPU; tensors of the meta device are compiled for Triton's active target."""
    if device.type == "meta":
        return bool(triton.runtime.driver.active.get_current_target().backend == "cuda")
    return device.type == "cuda" and torch.version.hip is None


@cache
def _capability(device: torch.device) -> int:
    return torch.cuda.get_device_capability(device)[0]


@cache
def _sm_count(device: torch.device) -> int:
    """Count the SMs of a GPU; 1 for what has none, Triton's interpreter and the meta device."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
