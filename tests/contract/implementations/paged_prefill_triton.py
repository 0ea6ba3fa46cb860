"""Paged prefill in Triton: the problems of its gate, and the bugs that those must catch."""

from typing import Any, Final

from autotune.shape import PagedShape
from autotune.space import Config
from tests.contract.planting import Gate, Mutant, Planted

SIZES: Final[dict[str, Any]] = {"batch": 2, "heads": 2, "kv_heads": 1, "seq_q": 48, "max_context": 300, "head_dim": 32}
SHAPES: Final = {
    "plain": PagedShape(**SIZES, dtype="float16"),
    "window": PagedShape(**SIZES, dtype="float16", window=60, sinks=True, alibi=True),
    "full": PagedShape(**SIZES, dtype="float16", causal=False, window=60, alibi=True),
    "int8": PagedShape(**SIZES, dtype="float16", kv_dtype="int8"),
    "e5m2": PagedShape(**SIZES, dtype="float16", kv_dtype="float8_e5m2"),
}
CONFIG: Final = Config(BLOCK_Q=64, SMALL_Q=16, BLOCK_K=32, order="head", num_warps=4, num_stages=3)
TINY: Final = Config({**CONFIG, "BLOCK_Q": 16, "SMALL_Q": 0, "BLOCK_K": 16, "num_warps": 1, "num_stages": 1})

FORWARD, QUANTIZED = "forward.py", "quantized.py"
MASKS, SOFTMAX = "tiles/masks.py", "tiles/softmax.py"
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
    Mutant("wrong first pages", FORWARD, "load_pages(page_list.row, tiles.full_high,",
           "load_pages(page_list.row, tiles.full_low,", "plain"),
    Mutant("NaN where no key is seen", SOFTMAX, "if MASKED else new_max", "if False else new_max", "plain"),
    Mutant("shows keys past the end", FORWARD, "else present[None, :]", "else (keys >= 0)[None, :]", "full"),
    Mutant("biases of one side", FORWARD, "-tl.abs(ahead)", "ahead", "full"),
    Mutant("ends at the diagonal", FORWARD, "None if FEATURES.causal else length", "length - 1", "full"),
    Mutant("stale scales", QUANTIZED, "scales + (fixed + moving)", "scales + (fixed + 0 * moving)", "int8"),
    Mutant("sums of scaled weights", QUANTIZED, "weights * inverses[None, :], 1", "weights, 1", "int8"),
    Mutant("unscaled values", QUANTIZED, "weights * remainders[None, :]", "weights", "int8"),
    Mutant("bytes off by one", QUANTIZED, "- 1152.0", "- 1151.0", "int8"),
    Mutant("unscaled output", QUANTIZED, "state.accumulator * tl.load(value_scale)", "state.accumulator", "e5m2"),
    Mutant("unscaled keys", QUANTIZED, "factors * tl.abs(key_scale)", "factors", "e5m2"),
    Mutant("factors of one row", QUANTIZED, "exp2(scores * factors - shift", "exp2(scores * tl.max(factors) - shift",
           "e5m2"),
    Mutant("unscaled slopes", "tiles/outputs.py", ".to(tl.float32) * LOG2_E", ".to(tl.float32)", "window"),
)  # fmt: skip

PLANTED: Final = Planted({name: Gate(shape, CONFIG) for name, shape in SHAPES.items()}, MUTANTS)
