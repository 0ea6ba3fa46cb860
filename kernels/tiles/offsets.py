# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Offsets of elements in 64 bits."""

import triton
import triton.language as tl


@triton.jit
def offset(index, stride):
    """Return ``index * stride`` in 64 bits: neither tensors nor strides are too large."""
    return tl.cast(index, tl.int64) * stride
