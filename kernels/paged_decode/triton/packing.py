# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""One-byte keys and values, two at a time, for NVIDIA's matrix instructions in fp16.

Shared memory feeds those instructions words of 16 bits (``ldmatrix``), and transposes nothing smaller. So a row of D
bytes is loaded as D / 2 words, and only in registers does a tile of words become two tiles of fp16. A register holds
two words that the product sums over: of keys two neighbours in a row, whose four bytes it makes into two pairs in any
order that the queries share (the launcher sees to it that a thread has two words at least of each row that it loads);
of values the same word of two rows, whose low bytes are one column and whose high bytes another. int8 becomes fp16 as
the mantissa of 1024 + 128 + x, without the slow conversion instruction (Kim et al., arXiv 2211.10017, section 3.2).
"""

import triton
import triton.language as tl

from autotune.kernels.tiles.rows import gather_rows

# Selectors of prmt, which picks bytes of its two operands: how a pair of bytes, low or high, is spread over 32 bits.
_CVT_PAIR = "{ .reg .b16 low, high; mov.b32 {low, high}, $1; cvt.rn.f16x2.%s $0, %s; }"
_CVT_BYTE = (
    "{ .reg .b32 word; .reg .b16 bytes, rest; prmt.b32 word, $1, 0, %s; "
    "mov.b32 {bytes, rest}, word; cvt.rn.f16x2.%s $0, bytes; }"
)
_INT8 = "{ .reg .b32 word, magic; mov.b32 magic, 0x64806480; %s sub.f16x2 $0, word, magic; }"
# The first two bytes and the last two; the low byte of each word and the high one. An e5m2 number is the upper half of
# an fp16 number.
_E4M3_FIRST = tl.constexpr(_CVT_PAIR % ("e4m3x2", "low"))
_E4M3_LAST = tl.constexpr(_CVT_PAIR % ("e4m3x2", "high"))
_E4M3_LOW = tl.constexpr(_CVT_BYTE % ("0x4420", "e4m3x2"))
_E4M3_HIGH = tl.constexpr(_CVT_BYTE % ("0x4431", "e4m3x2"))
_E5M2_FIRST = tl.constexpr("prmt.b32 $0, $1, 0, 0x1404;")
_E5M2_LAST = tl.constexpr("prmt.b32 $0, $1, 0, 0x3424;")
_E5M2_LOW = tl.constexpr("prmt.b32 $0, $1, 0, 0x2404;")
_E5M2_HIGH = tl.constexpr("and.b32 $0, $1, 0xFF00FF00;")
_INT8_LOW = tl.constexpr(_INT8 % "lop3.b32 word, $1, 0x00FF00FF, magic, 0x6A;")
_INT8_HIGH = tl.constexpr(_INT8 % "prmt.b32 word, $1, 0, 0x4341; xor.b32 word, word, magic;")


@triton.jit
def load_packed(pointer, fixed, moving, present, WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr):
    """Load rows at the sums of these offsets, in words of two bytes, as int16 ``[rows, BLOCK_WIDTH // 2]``.

    Absent rows and padding columns are 0.
    """
    words = pointer.to(tl.pointer_type(tl.int16), bitcast=True)
    return gather_rows(words, fixed, moving, present, WIDTH // 2, BLOCK_WIDTH // 2)


@triton.jit
def unpack_pairs(words, KIND: tl.constexpr):
    """Convert every two neighbours along the first axis to fp16: the bytes of the first, and those of the second."""
    if tl.float8e5 == KIND:
        return _convert(words, _E5M2_FIRST), _convert(words, _E5M2_LAST)
    return _convert(words, _E4M3_FIRST), _convert(words, _E4M3_LAST)


@triton.jit
def unpack_bytes(words, KIND: tl.constexpr):
    """Convert the low byte of each word, and the high one, to fp16."""
    if tl.int8 == KIND:
        return _convert(words, _INT8_LOW), _convert(words, _INT8_HIGH)
    if tl.float8e5 == KIND:
        return _convert(words, _E5M2_LOW), _convert(words, _E5M2_HIGH)
    return _convert(words, _E4M3_LOW), _convert(words, _E4M3_HIGH)


@triton.jit
def _convert(words, ASSEMBLY: tl.constexpr):
    return tl.inline_asm_elementwise(ASSEMBLY, "=r,r", [words], dtype=tl.float16, is_pure=True, pack=2)
