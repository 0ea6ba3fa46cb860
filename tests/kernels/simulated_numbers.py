"""The numbers of simulated Gluon kernels, over NumPy, which has no bfloat16 and no e4m3: arrays hold their bits."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import torch
from triton.experimental.gluon import language as gl

BFLOAT16, E4M3 = np.uint16, np.uint8
E4M3_NAN, E4M3_LARGEST = 0x7F, 448.0
E4M3_VALUES: Final = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
# The matrix unit of Hopper multiplies 32 factors of e4m3 a step, and adds products and the sum so far with this many
# bits below the largest of them, the rest cut off (DeepSeek-V3, arXiv 2412.19437, 3.3.2: "around 14 bits").
STEP, KEPT_BITS = 32, 13
DTYPES: Final = {gl.float16: np.float16, gl.float32: np.float32, gl.int32: np.int32, gl.int64: np.int64}


class Tensor(np.ndarray[Any, Any]):
    """An array with what kernels ask of a tensor."""

    @property
    def type(self) -> SimpleNamespace:
        return SimpleNamespace(layout=None)

    def to(self, dtype: Any) -> "Tensor":
        if dtype is BFLOAT16:
            rounded = torch.from_numpy(np.ascontiguousarray(self, np.float32)).to(torch.bfloat16)
            return rounded.view(torch.uint16).numpy().view(Tensor)
        return self.astype(DTYPES.get(dtype, dtype)).view(Tensor)

    def permute(self, order: Sequence[int]) -> "Tensor":
        return self.transpose(tuple(order)).view(Tensor)

    def split(self) -> "tuple[Tensor, Tensor]":
        return self[..., 0].view(Tensor), self[..., 1].view(Tensor)


def sum_by_steps(total: Any, a: Any, b: Any) -> Any:
    """Add the products of two factors to a total as the matrix unit adds those of e4m3."""
    for start in range(0, a.shape[1], STEP):
        products = a[:, None, start : start + STEP] * b.T[None, :, start : start + STEP]
        addends = np.concatenate([products, total[..., None]], axis=-1)
        _, exponents = np.frexp(np.abs(addends).max(-1, keepdims=True))
        unit = np.ldexp(np.float32(1.0), exponents - 1 - KEPT_BITS)
        total = (np.trunc(addends / unit) * unit).sum(-1, dtype=np.float32)
    return total


def unset(dtype: Any) -> Any:
    """Return what memory holds before it is written: NaN, of any type."""
    return {E4M3: E4M3_NAN, BFLOAT16: 0x7FC0}.get(dtype, np.nan)


def pack_pairs(low: Any, high: Any, dtype: Any) -> Any:
    pairs = np.stack([low, high], -1).astype(DTYPES.get(dtype, dtype))
    return pairs.view(np.int32)[..., 0].view(Tensor)


def unpack_pairs(pairs: Any, dtype: Any) -> Any:
    halves = np.ascontiguousarray(pairs)[..., None].view(DTYPES.get(dtype, dtype))
    return halves[..., 0].view(Tensor), halves[..., 1].view(Tensor)


def pack_quads(*four: Any) -> Any:
    finite = np.clip(np.stack(four, -1).astype(np.float32), -E4M3_LARGEST, E4M3_LARGEST)
    rounded = torch.from_numpy(finite).to(torch.float8_e4m3fn)
    return rounded.view(torch.uint8).numpy().view(np.int32)[..., 0].view(Tensor)


def unpack_quads(quads: Any) -> Any:
    found = np.ascontiguousarray(quads)[..., None].view(E4M3)
    return tuple(found[..., place].view(Tensor) for place in range(4))
