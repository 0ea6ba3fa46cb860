"""Launches flash attention over split widths: pieces, strides, descriptors, constants, grid."""

import math
from typing import Any, Final

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from autotune.errors import UnsupportedCallError
from autotune.kernels.flash_attention.triton_split_width.forward import (
    Features,
    InputStrides,
    PieceWidths,
    flash_attention_pieces_forward,
)
from autotune.kernels.tiles.rows import Strides, Widths
from autotune.search_spaces.bounds import MIN_BLOCK
from autotune.search_spaces.flash_attention.split_widths import split_widths

LOG2_E: Final = math.log2(math.e)
# Bytes, of addresses and strides: of TMA (CUDA driver API, cuTensorMapEncodeTiled), and of a pipeline by pointers.
ALIGNMENT: Final = 16
MAX_STRIDE: Final = 2**40  # bytes, of tensor maps


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
) -> Any:
    """Launch one forward pass over checked tensors ``[B, S, H, D]`` with unit last strides.

    ``options`` are the parameters of a config without those that do not apply. Tensors with a step of 0, which has no
    descriptor, are loaded by pointer under the same config. With ``compile_only`` nothing runs and the tensors may be
    on the meta device; the compiled kernel is returned.

    Raises:
        UnsupportedCallError: the address or a stride of queries, keys or values is no multiple of 16 bytes.
    """
    batches, seq_q, heads, head_dim = q.shape
    seq_kv, kv_heads, head_dim_v = k.shape[1], k.shape[2], v.shape[3]
    if out.numel() == 0:
        return None
    if seq_kv == 0:
        out.zero_()
        return lse.fill_(-math.inf) if lse is not None else None
    for name, tensor in {"q": q, "k": k, "v": v}.items():
        if (reason := _unaligned(tensor)) is not None:
            raise UnsupportedCallError(f"{name}: {reason}, which a pipeline of loads needs")
    options = dict(options)
    block_q, block_k = options["BLOCK_Q"], options["BLOCK_K"]
    main, rest = piece_widths(head_dim, head_dim_v)
    descriptor = options.pop("loads") == "descriptor" and all(map(_has_map, (q, k, v)))
    unit = ALIGNMENT // q.element_size()
    pieces: list[Any] = [q, k, v, *rests_of((q, k, v), main, rest)]
    if descriptor:
        blocks = [block_q, block_k, block_k] * 2
        columns = [width for each in (main, rest) for width in (each.padded_k, each.padded_k, each.padded_v)]
        pieces = list(map(_describe, pieces, blocks, columns))
    of_q, of_k, of_v = (Strides(*(stride // unit for stride in _strides(tensor))) for tensor in (q, k, v))
    arguments = (
        *(*pieces, out, lse),
        InputStrides(of_q, of_k, of_v, Strides(*out.stride()[:3])),
        # A window longer than everything hides nothing; as it stands it could overflow 32 bits in the kernel.
        *(heads, heads // kv_heads, seq_q, seq_kv, min(window or 0, seq_q + seq_kv)),
        scale / softcap if softcap else scale * LOG2_E,
        softcap or 0.0,
        PieceWidths(*main, *rest),
        Features(causal, window is not None, softcap is not None, q.dtype == torch.float32, descriptor, unit),
    )
    grid = (triton.cdiv(seq_q, block_q) * batches * heads,)
    if compile_only:
        return flash_attention_pieces_forward.warmup(*arguments, **options, grid=grid)
    return flash_attention_pieces_forward[grid](*arguments, **options)


def piece_widths(head_dim: int, head_dim_v: int) -> tuple[Widths, Widths]:
    """Return the widths of the main pieces of keys and values, and those of the rests, 0 where there is none."""
    (main_k, rest_k), (main_v, rest_v) = split_widths(head_dim, head_dim_v)
    main = Widths(min(head_dim, main_k), min(head_dim_v, main_v), main_k, main_v)
    left_k, left_v = head_dim - main.k, head_dim_v - main.v
    return main, Widths(left_k, left_v, rest_k or MIN_BLOCK, rest_v or MIN_BLOCK)  # tiles of no column are none


def rests_of(tensors: tuple[torch.Tensor, ...], main: Widths, rest: Widths) -> list[torch.Tensor]:
    """Return views of what is left of queries, keys and values; one of which nothing is left stands for its own rest,
    which nothing reads."""
    cuts = ((main.k, rest.k), (main.k, rest.k), (main.v, rest.v))
    pairs = zip(tensors, cuts, strict=True)
    return [tensor[..., begin:] if left else tensor for tensor, (begin, left) in pairs]


def _unaligned(tensor: torch.Tensor) -> str | None:
    """Return why a tensor is not loaded 16 bytes at a time, or None.

    Copies of fewer than 4 bytes have no pipeline, without which Hopper's binary is miscompiled: the space says how.
    """
    if past := tensor.data_ptr() % ALIGNMENT:
        return f"its address is {past} bytes past a multiple of {ALIGNMENT} bytes"
    strides = [stride * tensor.element_size() for stride in _strides(tensor)]
    if all(stride % ALIGNMENT == 0 for stride in strides):
        return None
    return f"its strides are {strides} bytes, not multiples of {ALIGNMENT} bytes"


def _has_map(tensor: torch.Tensor) -> bool:
    return all(0 < stride * tensor.element_size() < MAX_STRIDE for stride in _strides(tensor))


def _strides(tensor: torch.Tensor) -> list[int]:
    """Return outer strides in elements; along a dimension of size 1, where no step is taken, the least that fits."""
    least = ALIGNMENT // tensor.element_size()
    return [least if size == 1 else stride for size, stride in zip(tensor.shape[:3], tensor.stride()[:3], strict=True)]


def _describe(tensor: torch.Tensor, rows: int, width: int) -> TensorDescriptor:
    return TensorDescriptor(tensor, list(tensor.shape), [*_strides(tensor), 1], [1, rows, 1, width])
