"""Keys and values in one byte an element, as torch computes it: the definition that kernels are held to.

A floating-point cache (``float8_e4m3fn``, ``float8_e5m2``) has a static scale, one for all or one a KV head: values are
divided by it, clamped and rounded. An ``int8`` cache has a scale for every token and head, its largest absolute value
over 127. What is read back is value times scale. The error of an element x is then at most, with its scale s and but
for fp32's own rounding:

- ``int8``: s / 2, that is 1/254 of the largest of its token and head, and that itself where it is below 2**-121, whose
  inverse fp32 does not hold;
- ``float8_e4m3fn``: max(|x| / 16, s * 2**-10), and ``float8_e5m2``: max(|x| / 8, s * 2**-17), unless x was clamped:
  half a unit in the last place of 3 and 2 bits of mantissa, and of the smallest subnormal (OCP 8-bit floating point
  specification, 1.0).
"""

from typing import Final

import torch

LARGEST: Final = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}


def quantize(
    tokens: torch.Tensor, dtype: torch.dtype, scale: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize tokens ``[..., H, D]`` to one byte an element, with a scale in fp32.

    Args:
        scale: of a floating-point type, of no dimension or ``[H]``; 1 by default. ``int8`` makes its own.

    Returns:
        Values ``[..., H, D]``, and the scale as it was given, or ``[..., H]`` of ``int8``; NaN where a token holds one.
    """
    numbers, largest = tokens.float(), LARGEST[dtype]
    if dtype == torch.int8:
        peaks = numbers.abs().amax(-1)
        whole = torch.full_like(peaks, largest)  # torch divides with a number of Python by way of a reciprocal
        ratio = numbers * torch.where(peaks > 0, whole / peaks, 0.0)[..., None]
        return ratio.round().clamp(-largest, largest).nan_to_num(0.0).to(dtype), peaks / whole
    scale = torch.ones((), device=tokens.device) if scale is None else scale.float()
    return (numbers / _per_row(scale)).clamp(-largest, largest).to(dtype), scale


def dequantize(values: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the values that ``quantize`` stands for, computed in ``dtype``."""
    return values.to(dtype) * _per_row(scale).to(dtype)


def _per_row(scale: torch.Tensor) -> torch.Tensor:
    return scale[..., None] if scale.ndim else scale
