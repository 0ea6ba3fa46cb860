"""Dense tensors of one byte an element: the scales that a call may pass, and what they stand for."""

from collections.abc import Mapping
from typing import Final

import torch

from autotune.dtypes import QUANTIZED_DTYPES
from autotune.errors import InputMismatchError
from autotune.kernels.tensors import check_gradients, check_positive, describe, dtype_name

Scale = torch.Tensor | float | None

NAMES: Final = ("q_scale", "k_scale", "v_scale")
OUTPUT_DTYPES: Final = (torch.bfloat16, torch.float16)  # the first where the caller gives no buffer


def is_quantized(tensor: torch.Tensor) -> bool:
    """Return if a tensor has a dtype that scales belong to."""
    return dtype_name(tensor.dtype) in QUANTIZED_DTYPES


def output_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the output that queries of a dtype have where the caller gives no buffer."""
    return OUTPUT_DTYPES[0] if dtype_name(dtype) in QUANTIZED_DTYPES else dtype


def refuse_scales(q: torch.Tensor, scales: Mapping[str, Scale]) -> None:
    """Refuse scales of tensors that have none."""
    for name, scale in scales.items():
        if scale is not None and not is_quantized(q):
            wanted = " or ".join(QUANTIZED_DTYPES)
            raise InputMismatchError(
                f"{name} is {describe(scale)}; expected None for {dtype_name(q.dtype)}, not {wanted}"
            )


def check_tensor_scale(name: str, scale: Scale, tensor: torch.Tensor) -> None:
    """Refuse what is no scale of a tensor ``[B, S, H, D]``: a positive number, or fp32 of one element, [H] or [B, H].

    The elements of a tensor are the caller's to keep positive: nothing reads them here.
    """
    if not isinstance(scale, torch.Tensor):
        return check_positive(name, scale)
    batches, heads = tensor.shape[0], tensor.shape[2]
    allowed = ((), (1,), (heads,), (batches, heads))
    if tuple(scale.shape) not in allowed or scale.dtype != torch.float32 or scale.device != tensor.device:
        given = f"{describe(scale)} on {scale.device}"
        wanted = f"a number, or float32 of (1,), ({heads},) or ({batches}, {heads}) on {tensor.device}"
        raise InputMismatchError(f"{name} is {given}; expected {wanted}")
    return check_gradients({name: scale})


def dequantize(tensor: torch.Tensor, scale: Scale, dtype: torch.dtype) -> torch.Tensor:
    """Return what the elements ``[B, S, H, D]`` of a tensor and its scale stand for."""
    wide = tensor.to(dtype)
    if scale is None:
        return wide
    if isinstance(scale, torch.Tensor):
        scale = scale.to(dtype)
        scale = scale.reshape(-1, 1, scale.shape[-1], 1) if scale.ndim else scale
    return wide * scale


def quantize(tensor: torch.Tensor, dtype: torch.dtype, per: str) -> tuple[torch.Tensor, Scale]:
    """Return a tensor ``[B, S, H, D]`` in a dtype of one byte, and its scale: per ``tensor``, ``head`` or ``sequence``.

    The largest of what shares a scale becomes the largest that the dtype has. Of ``sequence`` it is each head of each.
    """
    dimensions = {"tensor": (0, 1, 2, 3), "head": (0, 1, 3), "sequence": (1, 3)}[per]
    scale = tensor.float().abs().amax(dimensions, keepdim=True).clamp(min=1e-12) / torch.finfo(dtype).max
    rounded = (tensor / scale).to(dtype)
    if per == "tensor":
        return rounded, scale.item()
    return rounded, scale.flatten() if per == "head" else scale[:, 0, :, 0].contiguous()
