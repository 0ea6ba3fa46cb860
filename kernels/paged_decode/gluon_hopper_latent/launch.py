"""Launches decode over latents in Gluon: descriptors of the cache, constants, grids, room for partial results."""

import math
from typing import Any, Final, NamedTuple

import torch
from triton.experimental.gluon import language as gl

from autotune.errors import UnsupportedCallError
from autotune.kernels.flash_attention.gluon_hopper.launch import ALIGNMENT, DTYPES, LOG2_E, MAX_STRIDE
from autotune.kernels.gluon import TensorDescriptor
from autotune.kernels.paged_cache.layout import AXES, cache_strides
from autotune.kernels.paged_decode.gluon_hopper_latent.forward import latent_decode_hopper
from autotune.kernels.paged_decode.gluon_hopper_latent.latent_ring import COLUMNS
from autotune.kernels.paged_decode.gluon_hopper_latent.latent_share import KEYS, ROWS, Latents
from autotune.kernels.paged_decode.triton.combine import combine_partials
from autotune.kernels.paged_decode.triton.launch import Tile
from autotune.kernels.tiles.outputs import Outputs
from autotune.kernels.tiles.partials import Partials
from autotune.rounding import power_of_two

COMBINE_WARPS: Final = 2
COMBINED: Final = 8192  # numbers of partial results whose loads wait together, of one row


class QueryStrides(NamedTuple):
    """Strides of queries, in elements."""

    sequence: int
    query: int
    head: int


def launch_latent(
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
    sinks: torch.Tensor | None,
    options: dict[str, Any],
    window: None = None,
    softcap: None = None,
    alibi_slopes: None = None,
    k_scale: None = None,
    v_scale: None = None,
    compile_only: bool = False,
) -> tuple[Any, ...]:
    """Launch one decode over checked tensors: ``q [B, S_q, H, D]``, ``out [B, S_q, H, D_v]``, ``lse [B, S_q, H]``.

    ``v_cache`` is the first ``D_v`` columns of ``k_cache``, where they lie. ``options`` are the parameters of a config.
    The grid depends on shapes and options alone, so a CUDA graph may hold the launch. Returns the compiled kernels in
    order; with ``compile_only`` nothing runs and tensors may be on the meta device.

    Raises:
        UnsupportedCallError: no copies of 16 bytes can be made of the cache, for its address or its strides; or TMA
            would copy pages and there are none.
    """
    if out.numel() == 0:
        return ()
    batch, seq_q, heads, head_dim = q.shape
    page_size, width, splits = k_cache.shape[AXES[layout][1]], v_cache.shape[3], options["NUM_SPLITS"]
    rows: int = ROWS.value
    tile = Tile(seq_q, heads, 1, seq_q * heads, rows, KEYS.value)
    latents = Latents(
        half=width // 2,
        beside=head_dim - width,
        slots=options["slots"],
        run=math.gcd(page_size, tile.tokens),
        page_size=page_size,
        row=_row_stride(k_cache, layout) if page_size == 1 else 0,
    )
    lanes = batch * -(-tile.used_rows // rows)
    count = lanes * splits if splits > 1 else 0
    partials = Partials(
        q.new_empty((count, rows, width), dtype=torch.float32), q.new_empty((count, 2, rows), dtype=torch.float32)
    )
    pages = k_cache.shape[0]
    capacity = page_table.shape[1] * page_size if pages else 0
    arguments = (
        *((k_cache, k_cache) if page_size == 1 else _describe(k_cache, layout, latents)),
        *(q, page_table, seq_lens, sinks, Outputs(out, lse), partials),
        *(QueryStrides(*q.stride()[:3]), page_table.stride(0), capacity, pages, scale * LOG2_E, tile, latents, splits),
    )
    launched = (_run(latent_decode_hopper, (lanes * splits,), arguments, {}, compile_only),)
    if splits == 1:
        return launched
    at_once = max(1, min(power_of_two(splits), COMBINED // width))
    merged = (
        *(partials, seq_lens, sinks, Outputs(out, lse), capacity, batch, 1, 0, 0),
        *(tile, width, width, splits, at_once, False, False),
    )
    merging = {"num_warps": COMBINE_WARPS}
    return (*launched, _run(combine_partials, (batch * seq_q * heads,), merged, merging, compile_only))


def _row_stride(cache: torch.Tensor, layout: str) -> int:
    """Return the elements from one row to the next of a cache in pages of one key, whose rows are gathered."""
    _require_aligned(cache)
    stride = cache_strides(cache, layout)[0] if cache.shape[0] > 1 else cache.shape[3]
    if (apart := stride * cache.element_size()) % ALIGNMENT:
        raise UnsupportedCallError(f"k_cache: its rows are {apart} bytes apart, no multiple of {ALIGNMENT} bytes")
    return stride


def _require_aligned(cache: torch.Tensor) -> None:
    if past := cache.data_ptr() % ALIGNMENT:
        raise UnsupportedCallError(f"k_cache: its address is {past} bytes past a multiple of {ALIGNMENT} bytes")


def _describe(cache: torch.Tensor, layout: str, latents: Latents) -> tuple[TensorDescriptor, TensorDescriptor]:
    """Return descriptors of a cache: its values by blocks of columns, and rows by as many as are beside those.

    Copies of a whole tile's keys take all blocks of a half, which then lie in shared memory one behind the other;
    those of fewer keys take one block.
    """
    page, slot, _ = cache_strides(cache, layout)
    pages, page_size, columns = cache.shape[0], latents.page_size, COLUMNS.value
    least = ALIGNMENT // cache.element_size()
    page = least if pages == 1 else page  # where no step is taken
    slot = least if page_size == 1 else slot
    if pages == 0:
        raise UnsupportedCallError("k_cache has no pages, which no tensor map describes")
    _require_aligned(cache)
    strides = [stride * cache.element_size() for stride in (page, slot)]
    if not all(0 < stride < MAX_STRIDE and stride % ALIGNMENT == 0 for stride in strides):
        wanted = f"positive multiples of {ALIGNMENT} bytes, which tensor-map copies need"
        raise UnsupportedCallError(f"k_cache: its pages and slots are {strides} bytes apart, not {wanted}")

    def described(width: int, count: int, at_once: int) -> TensorDescriptor:
        block = [1, at_once, latents.run, width]
        placed = gl.NVMMASharedLayout.get_default_for(block, DTYPES[cache.dtype])
        return TensorDescriptor(cache, [pages, count, page_size, width], [page, width, slot, 1], block, placed)

    whole, beside = latents.run == KEYS.value, latents.beside
    blocks = 2 * latents.half // columns
    return (
        described(columns, blocks, blocks // 2 if whole else 1),
        described(beside, 2 * latents.half // beside + 1, 1),
    )


def _run(
    kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], constants: dict[str, Any], compile_only: bool
) -> Any:
    if compile_only:
        return kernel.warmup(*arguments, **constants, grid=grid)
    return kernel[grid](*arguments, **constants)
