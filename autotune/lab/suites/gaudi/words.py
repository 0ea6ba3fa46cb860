"""The columns of the tables of the Gaudi notebook, and what is said below them."""

from typing import Final

from autotune import sheets

FRAGMENT_COLUMNS: Final = (
    sheets.number("sequences"),
    sheets.number("tokens"),
    sheets.number("padded blocks"),
    sheets.number("real blocks"),
    sheets.percent("saved"),
    sheets.size("padded K and V"),
    sheets.size("real K and V"),
)
STEP_COLUMNS: Final = (sheets.text("implementation"), sheets.number("step"), sheets.time())
SUMMARY_COLUMNS: Final = (
    sheets.text("implementation"),
    sheets.number("blocks read"),
    sheets.timing(),
    sheets.ratio("speed-up over fused"),
    sheets.size("extra memory"),
    sheets.number("error", ".1e"),
)
STAND_IN: Final = (
    "* no Gaudi is used: torch's SDPA stands for FusedSDPA, over all positions of every sequence as there, so that its "
    "result is another; the paged two are plain torch, never run on a Gaudi"
)
PADDING: Final = "extra memory: the fused one's padded K and V are part of it, which lie ready beside the pool"
ON_CPU: Final = (
    "reduced: the first 8 of the 32 sequences, float32 instead of bfloat16, whose products few processors have fast, "
    "and a pool of the batch's blocks alone, not of 1024"
)
