# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Gluon for Hopper, by the names that Triton 3.6 to 3.9 share: copies by TMA and by threads, barriers, products of warp
groups.

Later releases rename some of what 3.6 has. Named barriers have no call in any of them: they are PTX's ``bar.sync`` and
``bar.arrive`` (PTX ISA 8.5, 9.7.13.1).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

__all__ = [
    "GROUP_THREADS",
    "TensorDescriptor",
    "barrier_arrive",
    "barrier_sync",
    "copy_in",
    "copy_out",
    "fence_async_shared",
    "gather_in",
    "gathered_arrive",
    "mbarrier",
    "pack_pairs",
    "pack_quads",
    "product_layout",
    "product_layout_of_bytes",
    "unpack_pairs",
    "unpack_quads",
    "view_as",
    "wait_copies_out",
    "warpgroup_mma",
    "warpgroup_mma_wait",
]

GROUP_THREADS = gl.constexpr(128)  # of a warp group: four warps

copy_in = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
copy_out = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
wait_copies_out = tma.store_wait
# By each thread, from pointers of its own; zeros where masked.
gather_in = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
gathered_arrive = async_copy.mbarrier_arrive  # of each thread, once what it gathered so far is there
# Takes tiles, and the type, the shape and the layout in which their memory is seen.
view_as = getattr(gl.shared_memory_descriptor, "_reinterpret", None) or gl.shared_memory_descriptor.reinterpret


@gluon.constexpr_function
def product_layout(width):
    """Return how the four warps of a group hold a product of 64 rows and so many columns."""
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, width, 16])


@gluon.constexpr_function
def product_layout_of_bytes(width):
    """Return the same of a product of factors of one byte an element, of which an instruction takes twice as many."""
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, width, 32])


@gluon.constexpr_function
def _barrier(verb, number, threads):
    return f"bar.{verb} {number}, {threads}; mov.u32 $0, 0;"


@gluon.jit
def barrier_sync(NUMBER: gl.constexpr, THREADS: gl.constexpr):
    """Wait at a named barrier until so many threads have come to it, those that did not wait included."""
    gl.inline_asm_elementwise(_barrier("sync", NUMBER, THREADS), "=r", [], gl.int32, is_pure=False, pack=1)


@gluon.jit
def barrier_arrive(NUMBER: gl.constexpr, THREADS: gl.constexpr):
    """Come to a named barrier of so many threads, and go on."""
    gl.inline_asm_elementwise(_barrier("arrive", NUMBER, THREADS), "=r", [], gl.int32, is_pure=False, pack=1)


@gluon.jit
def pack_pairs(low, high, DTYPE: gl.constexpr):
    """Round two fp32 tensors to 16 bits, and return them side by side in int32."""
    return gl.inline_asm_elementwise(_convert(DTYPE), "=r,f,f", [low, high], gl.int32, is_pure=True, pack=1)


@gluon.constexpr_function
def _convert(dtype):
    return f"cvt.rn.{'bf16x2' if dtype == gl.bfloat16 else 'f16x2'}.f32 $0, $2, $1;"


@gluon.jit
def unpack_pairs(pairs, DTYPE: gl.constexpr):
    """Return the two tensors of 16 bits that ``pack_pairs`` has packed."""
    low = pairs.to(gl.int16).to(DTYPE, bitcast=True)
    high = (pairs >> 16).to(gl.int16).to(DTYPE, bitcast=True)
    return low, high


@gluon.jit
def pack_quads(first, second, third, fourth):
    """Round four fp32 tensors to e4m3, to nearest and finite ones, and return them side by side in int32."""
    return gl.inline_asm_elementwise(QUAD, "=r,f,f,f,f", [first, second, third, fourth], gl.int32, is_pure=True, pack=1)


# PTX ISA 8.5, cvt: the first of two operands becomes the upper half of the result.
QUAD = gl.constexpr(
    "{ .reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, $2, $1; "
    "cvt.rn.satfinite.e4m3x2.f32 high, $4, $3; mov.b32 $0, {low, high}; }"
)


@gluon.jit
def unpack_quads(quads):
    """Return the four tensors of e4m3 that ``pack_quads`` has packed."""
    first = quads.to(gl.int8).to(gl.float8e4nv, bitcast=True)
    second = (quads >> 8).to(gl.int8).to(gl.float8e4nv, bitcast=True)
    third = (quads >> 16).to(gl.int8).to(gl.float8e4nv, bitcast=True)
    fourth = (quads >> 24).to(gl.int8).to(gl.float8e4nv, bitcast=True)
    return first, second, third, fourth
