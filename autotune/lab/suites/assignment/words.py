"""The columns of the assignment's tables, and what is said below them."""

from typing import Final

from autotune import sheets

MAX_ERROR: Final = 1e-3

MATRIX_COLUMNS: Final = (sheets.number("S", "d"), sheets.size("S x S of a head"), sheets.size("of all heads"))
KERNEL_COLUMNS: Final = (
    sheets.number("S", "d"),
    sheets.text("implementation"),
    sheets.number("error", ".1e"),
    sheets.text(f"below {MAX_ERROR:g}"),
    sheets.timing(),
    sheets.ratio("times as slow as SDPA"),
)
FUSION_COLUMNS: Final = (
    sheets.number("S", "d"),
    sheets.timing("before"),
    sheets.timing("after"),
    sheets.ratio("gain"),
    sheets.size("moved before"),
    sheets.size("moved after"),
    sheets.number("FLOP/byte before", ".1f"),
    sheets.number("FLOP/byte after", ".1f"),
    sheets.size("extra memory before"),
    sheets.size("extra memory after"),
)
ERROR: Final = f"error: the largest one against fp64; the assignment allows {MAX_ERROR:g}"
CLAIM: Final = (
    "the intensity of the three kernels rises with S, as S D / (4 (D + S)) does in fp32 (10.7 at 128, 15.1 at 1024, "
    "towards D / 4 = 16); that it falls is wrong, and memory limits them only below the device's ridge, which "
    "`autotune analyze roofline` measures"
)
ON_CPU: Final = (
    "no Triton kernel runs on a CPU: eager stands for naive, torch's operations one after another, "
    "and SDPA for the fused kernel"
)
MOVED: Final = (
    "moved: by formula, before the bytes of every read and write, after what must be moved at least; "
    "extra memory: the most beside inputs and output"
)
SCALED: Final = "eager moves the scores six times, naive four: it scales them by an operation of its own"
