"""A kernel whose config changes what it computes."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl


@triton.jit
def broken(x_ptr, out_ptr, size, BLOCK: tl.constexpr, ADDED: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < size)
    tl.store(out_ptr + offsets, x * 2 + ADDED, mask=offsets < size)
