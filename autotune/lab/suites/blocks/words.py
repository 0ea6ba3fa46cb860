"""The columns of the tables of block pairs, and what is said below them."""

from typing import Final

from autotune import sheets
from autotune.search_spaces.flash_attention.triton import ROWS_PER_WARP

SEQ: Final = sheets.number("S", "d")
BLOCKS: Final = sheets.text("BLOCK_Q x BLOCK_K")
SOURCE: Final = sheets.text("recorded problem")
MEASURED_COLUMNS: Final = (SEQ, BLOCKS, sheets.timing(), sheets.text("config"), sheets.text("result"))
RECORDED_COLUMNS: Final = (
    SEQ,
    SOURCE,
    sheets.text("not as asked"),
    BLOCKS,
    sheets.timing(),
    sheets.timing("with other parameters at their best"),
)
BEST_COLUMNS: Final = (SEQ, sheets.text("best pair"), sheets.timing(), sheets.text("not distinguished"))
RECORDED_BEST_COLUMNS: Final = (SEQ, SOURCE, *BEST_COLUMNS[1:])
OTHERS: Final = (
    f"other parameters are the default's, but no more warps than BLOCK_Q has {ROWS_PER_WARP} rows for; "
    "pairs longer than S are left out"
)
RACED: Final = "times are of one interleaved race a length, of a CUDA graph's replay over inputs that no cache holds"
RECORDED: Final = (
    "reduced: nothing is measured, as a CPU has no such blocks: times are those of the recorded sweep on an {device} "
    "with the same mask, where there is one, whose length is nearest, and of those the nearest in batch and heads; "
    "what is not as asked stands beside it; `autotune bench --suite blocks` on a GPU measures the exercise's problem"
)
NOT_RECORDED: Final = "not recorded"
BEST_RECORDED: Final = (
    "the best of a length that is recorded with the same mask, in the batch and heads recorded: with the exercise's "
    "another may be the best; of other lengths none is named"
)
