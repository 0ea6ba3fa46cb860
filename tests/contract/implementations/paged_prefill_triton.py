"""Paged prefill in Triton: the problems of its gate, and the bugs that those must catch."""

from typing import Any, Final

from autotune.shape import PagedShape
from autotune.space import Config
from tests.contract.planting import Gate, Mutant, Planted

SIZES: Final[dict[str, Any]] = {"batch": 2, "heads": 2, "kv_heads": 1, "seq_q": 48, "max_context": 300, "head_dim": 32}
SHAPES: Final = {
    "plain": PagedShape(**SIZES, dtype="float16"),
    "window": PagedShape(**SIZES, dtype="float16", window=60, sinks=True, alibi=True),
}
CONFIG: Final = Config(BLOCK_Q=64, SMALL_Q=16, BLOCK_K=32, order="head", num_warps=4, num_stages=3)
TINY: Final = Config({**CONFIG, "BLOCK_Q": 16, "SMALL_Q": 0, "BLOCK_K": 16, "num_warps": 1, "num_stages": 1})

FORWARD, MASKS, SOFTMAX = "forward.py", "tiles/masks.py", "tiles/softmax.py"
MUTANTS: Final = (
    Mutant("stale pages", FORWARD, "pages = next_pages", "pages = pages", "plain"),
    Mutant("shows a future key", MASKS, "ahead <= 0", "ahead <= 1", "plain"),
    Mutant("top left causal", FORWARD, "diagonal = length - count ", "diagonal = tl.minimum(length - count, 0) ",
           "plain"),
    Mutant("window too long", MASKS, "(ahead > -window)", "(ahead >= -window)", "window"),
    Mutant("unmasked diagonal", MASKS, "full_high = first + diagonal + 1 if", "full_high = last + diagonal + 1 if",
        "plain"),
    Mutant("unmasked far edge", MASKS, "full_low = tl.maximum(0, last + ", "full_low = tl.maximum(0, first + ",
           "window"),
    Mutant("lost tile", FORWARD, "TILE.rows) - 1 - behind", "TILE.rows) - 2 - behind", "plain"),
    Mutant("unwritten row", FORWARD, "is_row = rows < count * TILE.group", "is_row = rows < count * TILE.group - 1",
        "plain"),
    Mutant("one head for all", FORWARD, "begin + queries, heads,", "begin + queries, kv_head * TILE.group,", "plain"),
    Mutant("sequences share slots", FORWARD, "TILE.group // TILE.rows + sequence", "TILE.group // TILE.rows", "plain"),
    Mutant("too few slots", "launch.py", "// tile.rows + batch)", "// tile.rows + 1)", "plain"),
    Mutant("missing rescale", SOFTMAX, "accumulator * rescale[:, None]", "accumulator", "plain"),
    Mutant("wrong first pages", FORWARD, "load_pages(table_row, tiles.full_high,",
           "load_pages(table_row, tiles.full_low,",
        "plain"),
    Mutant("NaN where no key is seen", SOFTMAX, "if MASKED else new_max", "if False else new_max", "plain"),
    Mutant("unscaled slopes", "tiles/outputs.py", ".to(tl.float32) * LOG2_E", ".to(tl.float32)", "window"),
)  # fmt: skip

PLANTED: Final = Planted({name: Gate(shape, CONFIG) for name, shape in SHAPES.items()}, MUTANTS)
