"""The columns of the exercise's tables, and what is said below them."""

from typing import Final

from autotune import sheets

FLASH: Final = "flash"
STANDARD: Final = "standard"

COLUMNS: Final = (
    sheets.text("B, H, S, D"),
    sheets.timing(FLASH),
    sheets.timing(STANDARD),
    sheets.ratio("speed-up"),
    sheets.size(f"{FLASH} peak"),
    sheets.size(f"{STANDARD} peak"),
    sheets.ratio("memory ratio"),
    sheets.number(f"{FLASH} tokens/s", ",.0f"),
    sheets.number(f"{STANDARD} tokens/s", ",.0f"),
    sheets.number(f"{FLASH} error", ".1e"),
    sheets.number(f"{STANDARD} error", ".1e"),
)
PEAK: Final = "peak: the most that a call holds beside inputs and weights, its output included"
ON_CPU: Final = "flash is torch's SDPA by its flash backend, since no Triton kernel runs on a CPU; float32 alone"
ON_GPU: Final = "flash is the kernel that get_kernel serves"
ERROR_ALONE: Final = "error: the largest one against fp64"
ERROR_PROJECTED: Final = f"{ERROR_ALONE}, of the first sequence; both have the same weights"
