"""Flash attention over split widths in Triton: the problems of its gate, and the bugs that those must catch."""

from typing import Any, Final

from autotune.shape import AttentionShape
from autotune.space import Config
from tests.contract.planting import NAN, WRONG, Gate, Mutant, Planted

CONFIG: Final = Config(BLOCK_Q=64, BLOCK_K=64, num_warps=4, num_stages=2, loads="pointer")
SIZES: Final[dict[str, Any]] = {"batch": 2, "heads": 4, "kv_heads": 2, "head_dim": 40, "dtype": "float16"}
SHAPES: Final = {
    "full": AttentionShape(**SIZES, seq_q=100),
    "causal": AttentionShape(**SIZES, seq_q=150, seq_kv=180, causal=True, window=40),
    "keys": AttentionShape(**SIZES, head_dim_v=32, seq_q=100),
    "values": AttentionShape(**{**SIZES, "head_dim": 32}, head_dim_v=40, seq_q=100, softcap=True),
}
FORWARD, LAUNCH, MASKS = "forward.py", "launch.py", "tiles/masks.py"
LAST = "partial block.\n    "  # ends the comment above the last loop over keys
MUTANTS: Final = (
    Mutant("scores of the main piece alone", FORWARD, "tl.dot(q_tiles.rest, k_rest.T, scores,",
           "scores + 0 * tl.dot(q_tiles.rest, k_rest.T,", "keys", WRONG),
    Mutant("missing rescale", FORWARD, "accumulator * rescale[:, None]", "accumulator", "full", WRONG),
    Mutant("rests of values from the first column", LAUNCH, "(main.v, rest.v))", "(0, rest.v))", "values", WRONG),
    Mutant("scores of the rest alone", FORWARD, "tl.dot(q_tiles.rest, k_rest.T, scores,",
           "tl.dot(q_tiles.rest, k_rest.T, 0 * scores,", "full", WRONG),
    Mutant("rests of keys from the first column", LAUNCH, "cuts = ((main.k, rest.k), (main.k, rest.k),",
           "cuts = ((main.k, rest.k), (0, rest.k),", "full", WRONG),
    Mutant("rest of the output from the first column", FORWARD, "first_row, rest_tile, WIDTHS.v,",
           "first_row, rest_tile, 0,", "values", NAN),
    Mutant("rest not divided by the sum", FORWARD, "rest_tile = state.rest / row_sum[:, None]",
           "rest_tile = state.rest", "values", WRONG),
    Mutant("strides in the wrong unit", FORWARD, "tl.cast(strides.head, tl.int64) * UNIT",
           "tl.cast(strides.head, tl.int64)", "full", WRONG),
    Mutant("wrong scale", LAUNCH, "else scale * LOG2_E,", "else scale,", "full", WRONG),
    Mutant("stale state", FORWARD, f"{LAST}state =", f"{LAST}stale =", "full"),
    Mutant("wrong KV head", FORWARD, "kv_head = head // group", "kv_head = head % 2", "full", WRONG),
    Mutant("window one too long", MASKS, "(ahead > -window)", "(ahead >= -window)", "causal", WRONG),
    Mutant("unwritten row", FORWARD, "(first_row + rows < outputs.length)", "(first_row + rows < outputs.length - 1)",
           "full", NAN),
)  # fmt: skip
PLANTED: Final = Planted({name: Gate(shape, CONFIG) for name, shape in SHAPES.items()}, MUTANTS)
