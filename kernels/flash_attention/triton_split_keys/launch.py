"""Launches flash attention over split keys: strides, descriptors, constants, grids, room for partial results."""

import math
from functools import cache
from typing import Any, Final

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from autotune.kernels.flash_attention.triton_split_keys.forward import Features, attend_shares, combine_shares
from autotune.kernels.tiles.partials import Partials
from autotune.kernels.tiles.rows import Strides, Widths
from autotune.rounding import power_of_two
from autotune.search_spaces.bounds import padded_widths

LOG2_E: Final = math.log2(math.e)
DESCRIPTOR_ALIGNMENT: Final = 16  # bytes, of base and strides: CUDA driver API, cuTensorMapEncodeTiled
UNUSED_STRIDE: Final = 16  # elements: Triton compiles multiples of 16 alike, and TMA copies them
COMBINE_WARPS: Final = 2
COMBINED: Final = 4096  # numbers of partial results whose loads wait together, 64 a thread
FIRST_WITH_DEPENDENT_LAUNCH: Final = 90  # CUDA programming guide, "Programmatic Dependent Launch and Synchronization"


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
    options: dict[str, Any],
    compile_only: bool = False,
) -> tuple[Any, ...]:
    """Launch one forward pass over checked tensors ``[B, S, H, D]`` with unit last strides.

    ``options`` are the parameters of a config without those that do not apply. Tensor descriptors need base addresses
    and strides that are multiples of 16 bytes, except along dimensions of size 1; other tensors are loaded by pointer
    under the same config. Returns the compiled kernels in order; with ``compile_only`` nothing runs and the tensors may
    be on the meta device.
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
    options = dict(options)
    block_q, block_k, splits = options["BLOCK_Q"], options["BLOCK_K"], options.pop("NUM_SPLITS")
    group = heads // kv_heads
    blocks = batches * kv_heads * triton.cdiv(seq_q * group, block_q)
    widths = Widths(head_dim, head_dim_v, *padded_widths(head_dim, head_dim_v))
    sizes = (blocks * splits if splits > 1 else 0, block_q, widths.padded_v)
    partials = _allocate(q, sizes, options.pop("PARTIALS", "float32"))
    is_early = _has_dependent_launch(q.device)
    descriptor = options.pop("loads") == "descriptor" and _fits_descriptor(k) and _fits_descriptor(v)
    arguments = (
        q,
        _describe(k, block_k, widths.padded_k) if descriptor else k,
        _describe(v, block_k, widths.padded_v) if descriptor else v,
        *(out, lse, partials),
        tuple(Strides(*_strides(tensor)) for tensor in (q, k, v, out)),
        # A window longer than everything hides nothing; as it stands it could overflow 32 bits in the kernel.
        *(heads, group, seq_q, seq_kv, min(window or 0, seq_q + seq_kv), splits),
        scale / softcap if softcap else scale * LOG2_E,
        softcap or 0.0,
        widths,
        Features(
            causal=causal,
            window=window is not None,
            softcap=softcap is not None,
            precise=q.dtype == torch.float32,
            descriptor=descriptor,
            shared=splits > 1,
            early=is_early,
        ),
    )
    launching = {"launch_pdl": True} if is_early else {}
    launched = _run(attend_shares, blocks * splits, arguments, options | launching, compile_only)
    if splits == 1:
        return (launched,)
    at_once = max(1, min(power_of_two(splits), COMBINED // widths.padded_v))
    merged = (
        *(partials, out, lse, Strides(*_strides(out)), heads, group, seq_q, splits),
        *(widths.v, widths.padded_v, block_q, at_once, is_early),
    )
    merging = {"num_warps": COMBINE_WARPS} | launching
    return (launched, _run(combine_shares, batches * seq_q * heads, merged, merging, compile_only))


def _allocate(q: torch.Tensor, sizes: tuple[int, int, int], dtype: str) -> Partials:
    """Allocate room for so many partial results, of rows and columns."""
    count, rows, _ = sizes
    statistics = q.new_empty((count, 2, rows), dtype=torch.float32)
    return Partials(q.new_empty(sizes, dtype=getattr(torch, dtype)), statistics)


def _run(kernel: Any, programs: int, arguments: tuple[Any, ...], constants: dict[str, Any], compile_only: bool) -> Any:
    if compile_only:
        return kernel.warmup(*arguments, **constants, grid=(programs,))
    return kernel[(programs,)](*arguments, **constants)


def _has_dependent_launch(device: torch.device) -> bool:
    """Return if a kernel may be launched before the one that it waits for has ended: NVIDIA's GPUs since sm_90.

    Tensors of the meta device are compiled for Triton's active target; others may lie beside the current device.
    """
    if device.type == "meta":
        target = triton.runtime.driver.active.get_current_target()
        return bool(target.backend == "cuda" and int(target.arch) >= FIRST_WITH_DEPENDENT_LAUNCH)
    is_nvidia = device.type == "cuda" and torch.version.hip is None
    return is_nvidia and _capability(device) >= FIRST_WITH_DEPENDENT_LAUNCH


@cache
def _capability(device: torch.device) -> int:
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def _strides(tensor: torch.Tensor) -> list[int]:
    """Return strides of batch, rows and heads in elements; along a dimension of size 1, where no step is taken, the
    same for all tensors, so that it makes no other binary."""
    pairs = zip(tensor.shape[:3], tensor.stride()[:3], strict=True)
    return [UNUSED_STRIDE if size == 1 else stride for size, stride in pairs]


def _fits_descriptor(tensor: torch.Tensor) -> bool:
    strides = (stride * tensor.element_size() for stride in _strides(tensor))
    return tensor.data_ptr() % DESCRIPTOR_ALIGNMENT == 0 and all(
        0 < stride < 2**40 and stride % DESCRIPTOR_ALIGNMENT == 0 for stride in strides
    )


def _describe(tensor: torch.Tensor, rows: int, width: int) -> TensorDescriptor:
    return TensorDescriptor(tensor, list(tensor.shape), [*_strides(tensor), 1], [1, rows, 1, width])
