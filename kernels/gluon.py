# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Gluon for Hopper, by the names that Triton 3.6 to 3.9 share: copies by TMA, barriers, products of warp groups.

Later releases rename some of what 3.6 has. Named barriers have no call in any of them: they are PTX's ``bar.sync`` and
``bar.arrive`` (PTX ISA 8.5, 9.7.13.1).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
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
    "exp2_on_fma",
    "fence_async_shared",
    "mbarrier",
    "pack_pairs",
    "product_layout",
    "unpack_pairs",
    "wait_copies_out",
    "warpgroup_mma",
    "warpgroup_mma_wait",
]

# Of 2^x for -0.5 <= x <= 0.5, by descending powers, in PTX's hexadecimal fp32: 0.0095701, 0.05591786, 0.24024745,
# 0.69312181, 0.99999926.
POLYNOMIAL = ("0f3C1CCBE9", "0f3D650A20", "0f3E76036D", "0f3F31706E", "0f3F7FFFF4")
EIGHT_OF_EIGHT = gl.constexpr(",".join(["=f"] * 8 + ["f"] * 8))  # results and operands of assembly
GROUP_THREADS = gl.constexpr(128)  # of a warp group: four warps

copy_in = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
copy_out = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
wait_copies_out = tma.store_wait


@gluon.constexpr_function
def product_layout(width):
    """Return how the four warps of a group hold a product of 64 rows and so many columns."""
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, width, 16])


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
    NAME: gl.constexpr = "bf16x2" if DTYPE == gl.bfloat16 else "f16x2"
    return gl.inline_asm_elementwise(_convert(NAME), "=r,f,f", [low, high], gl.int32, is_pure=True, pack=1)


@gluon.constexpr_function
def _convert(name):
    return f"cvt.rn.{name}.f32 $0, $2, $1;"


@gluon.jit
def unpack_pairs(pairs, DTYPE: gl.constexpr):
    """Return the two tensors of 16 bits that ``pack_pairs`` has packed."""
    low = pairs.to(gl.int16).to(DTYPE, bitcast=True)
    high = (pairs >> 16).to(gl.int16).to(DTYPE, bitcast=True)
    return low, high


@gluon.jit
def exp2_on_fma(x, SHARE: gl.constexpr):
    """Return 2 to the power of ``x <= 0``; of every eight ``SHARE`` by a polynomial, those below 2^-126 as that.

    The others are left to the units for it, of which there are eight times fewer than for multiply-adds on Hopper. The
    polynomial is off by 2.6e-6 at most, relatively: the best of degree 4 over half a unit around 0. (FlashAttention-4,
    Tri Dao et al. 2025, computes a share of the exponentials so on Blackwell.)
    """
    return gl.inline_asm_elementwise(_exponentials(SHARE), EIGHT_OF_EIGHT, [x], gl.float32, is_pure=True, pack=8)


@gluon.constexpr_function
def _exponentials(share):
    lines = ["{ .reg .f32 t, n, p; .reg .s32 i, j;"]
    for index in range(8):
        result, x = f"${index}", f"${index + 8}"
        if index * share // 8 == (index + 1) * share // 8:
            lines.append(f"ex2.approx.ftz.f32 {result}, {x};")
            continue
        lines.append(f"max.ftz.f32 t, {x}, 0fC2FC0000;")  # -126
        lines.append("add.rn.ftz.f32 n, t, 0f4B400000;")  # 1.5 * 2^23: the nearest whole number, in the last bits
        lines.append("mov.b32 i, n; shl.b32 i, i, 23; sub.rn.ftz.f32 n, n, 0f4B400000; sub.rn.ftz.f32 t, t, n;")
        lines.append(f"mov.f32 p, {POLYNOMIAL[0]};")
        lines += [f"fma.rn.ftz.f32 p, p, t, {coefficient};" for coefficient in POLYNOMIAL[1:]]
        lines.append(f"mov.b32 j, p; add.s32 i, i, j; mov.b32 {result}, i;")
    return " ".join([*lines, "}"])
