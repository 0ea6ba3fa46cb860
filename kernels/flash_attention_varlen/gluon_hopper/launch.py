"""Launches of attention over packed sequences in Gluon: the table of tiles is written, then attention is computed."""

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import torch
from triton.experimental.gluon import language as gl

from autotune.errors import UnsupportedCallError
from autotune.kernels.flash_attention.gluon_hopper.forward import ROWS

# As they are: to move them would change the source hash that the rows of the dense kernel were recorded with.
from autotune.kernels.flash_attention.gluon_hopper.launch import DTYPES, LOG2_E, _schedule, _strides, _unfit, _workers
from autotune.kernels.flash_attention_varlen.gluon_hopper.forward import (
    HeadScales,
    PackedFeatures,
    varlen_attention_forward,
)
from autotune.kernels.flash_attention_varlen.gluon_hopper.padded_rows import HEADER, LISTS, PaddedOutput, number_rows
from autotune.kernels.flash_attention_varlen.gluon_hopper.ragged import LAST, MOST, WRAP
from autotune.kernels.flash_attention_varlen.gluon_hopper.tile_table import COLUMNS, write_tiles
from autotune.kernels.flash_attention_varlen.triton.sequence_order import Tile
from autotune.kernels.gluon import TensorDescriptor
from autotune.search_spaces.flash_attention.warp_groups import part_widths

TABLE_WARPS: Final = 4  # that look at 256 sequences together
PAIR_BYTES: Final = 16  # of words of zeros, which a thread stores at once


class Launch(NamedTuple):
    """A launch that is to be made: the kernel, its grid, its arguments, and its number of warps or None."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    warps: int | None = None

    def run(self, *, compile_only: bool) -> Any:
        """Launch, or compile alone, and return the compiled kernel."""
        options = {} if self.warps is None else {"num_warps": self.warps}
        if compile_only:
            return self.kernel.warmup(*self.arguments, grid=self.grid, **options)
        return self.kernel[self.grid](*self.arguments, **options)


def launch_packed(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None,
    cu_seqlens_k: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    *,
    seqused_q: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    kv_starts: torch.Tensor | None = None,
    scales: HeadScales | None = None,
    causal: bool,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
    options: Mapping[str, Any],
    compile_only: bool = False,
) -> tuple[Any, ...]:
    """Launch one forward pass over checked tensors of 16 bits: ``q [T, H, D]``, ``out [T, H, D_v]``, ``lse [T, H]``; of
    a padded batch, which has no offsets, ``B, S`` in place of ``T``, and contiguous outputs.

    ``options`` are the parameters of a config. The grids depend on sizes and options alone, so that a CUDA graph may
    hold the launches. Returns the compiled kernels in order; with ``compile_only`` nothing runs and the tensors may be
    on the meta device.

    Raises:
        UnsupportedCallError: TMA cannot copy tiles of a tensor, for its address or its strides; there are no keys, or
            more rows than ragged tensor maps have.
    """
    if out.numel() == 0:
        return ()
    batch, heads = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1, q.shape[-2]
    out_rows = out.flatten(0, -3)
    apart = {name: rows_apart(name, tensor) for name, tensor in (("q", q), ("k", k), ("v", v), ("out", out_rows))}
    tokens, key_tokens = (math.prod(tensor.shape[:-2]) for tensor in (q, k))
    schedule = _schedule(options)
    tile = Tile(1, ROWS.value * schedule.consumers, schedule.block_k)
    slots = tokens // tile.rows + batch
    table = torch.empty((slots + 1, COLUMNS.value), dtype=torch.int32, device=q.device)
    launches: list[Launch] = []
    numbers = padded = None
    if cu_seqlens_q is None:
        numbers = torch.empty(HEADER.value + LISTS.value * (batch + 1), dtype=torch.int32, device=q.device)
        said = (numbers, seqused_q, seqused_k, kv_starts, q.shape[1], k.shape[1], *(apart[name] for name in "qkv"))
        row_pairs = heads * out.shape[-1] * out.element_size() // PAIR_BYTES
        launches.append(Launch(number_rows, (1,), (*said, batch, row_pairs, causal)))
        padded = PaddedOutput(out.view(torch.int64), numbers)
        seqused_q = seqused_k = None  # what they say is in the numbers
    offsets = (cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, numbers, tokens, key_tokens, batch)
    constants = (tile, options["sequences"] == "longest", COLUMNS.value)
    launches.append(Launch(write_tiles, (slots,), (table, *offsets, *constants), TABLE_WARPS))
    features = PackedFeatures(
        causal=causal,
        window=window is not None,
        softcap=softcap is not None,
        key_parts=part_widths(q.shape[-1], v.shape[-1])[0],
        has_used=seqused_q is not None,
        heads_together=options["order"] == "tile",
        padded=padded is not None,
    )
    arguments = (
        *_describe_all(q, k, v, out_rows, schedule.block_k),
        *(lse, sinks, table, padded, scales),
        # A window longer than everything hides nothing; as it stands it could overflow 32 bits in the kernel.
        *(heads, heads // k.shape[-2], min(window or 0, tokens + key_tokens)),
        *(scale / softcap if softcap else scale * LOG2_E, softcap or 0.0, features, schedule),
    )
    tiles = slots * heads
    grid = (min(tiles, _workers(options["workers"], q, tiles)),)
    launches.append(Launch(varlen_attention_forward, grid, arguments))
    return tuple(each.run(compile_only=compile_only) for each in launches)


def rows_apart(name: str, tensor: torch.Tensor) -> int:
    """Return how many rows apart in memory the sequences of a padded batch are, 0 of packed rows.

    Raises:
        UnsupportedCallError: no ragged tensor map has the rows of the tensor.
    """
    batch, rows = (tensor.shape[0], tensor[0]) if tensor.ndim == 4 else (1, tensor)
    if rows.numel() == 0:
        raise UnsupportedCallError(f"{name} has no rows, which no tensor map describes")
    if (reason := _unfit(rows[None]) or _too_far_apart(rows)) is not None:
        raise UnsupportedCallError(f"{name}: {reason}, which tensor-map copies need")
    _, row, _, _ = _strides(rows[None])
    apart = 0
    if batch > 1:
        apart, rest = divmod(tensor.stride(0), row)
        if rest:
            raise UnsupportedCallError(
                f"{name}: its sequences are {tensor.stride(0)} elements apart, no multiple of the {row} of its rows"
            )
    if (last := max((batch - 1) * apart + rows.shape[0], batch * rows.shape[0])) > LAST.value:
        raise UnsupportedCallError(f"{name}: its {last} rows are more than the {LAST.value} of a ragged tensor map")
    return apart


def _too_far_apart(tensor: torch.Tensor) -> str | None:
    """Return why no ragged map has the rows of ``[T, H, D]``, whose strides fit TMA, or None."""
    _, row, _, _ = _strides(tensor[None])
    return None if row < WRAP.value else f"its rows are {row} elements apart, not fewer than {WRAP.value}"


def _describe_all(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out_rows: torch.Tensor, block_k: int
) -> tuple[TensorDescriptor, ...]:
    """Return the descriptors of the kernel: of queries and results by the rows of a consumer, of keys by a block."""
    _, width, width_v = part_widths(q.shape[-1], v.shape[-1])
    blocks = ((q, ROWS.value, width), (k, block_k, width), (v, block_k, width_v), (out_rows, ROWS.value, width_v))
    return tuple(_describe_ragged(*each) for each in blocks)


def _describe_ragged(tensor: torch.Tensor, rows: int, width: int) -> TensorDescriptor:
    """Return a ragged descriptor of ``[T, H, D]``, or of the rows ``[S, H, D]`` of the first sequence of a batch, as
    ``ragged.place_of`` has its coordinates."""
    _, row, head, _ = _strides((tensor[0] if tensor.ndim == 4 else tensor)[None])
    block = [1, 1, rows, 1, width]
    layout = gl.NVMMASharedLayout.get_default_for(block, DTYPES[tensor.dtype])
    sizes = [MOST.value, MOST.value, LAST.value, *tensor.shape[-2:]]
    return TensorDescriptor(tensor, sizes, [WRAP.value - row, row, row, head, 1], block, layout)
