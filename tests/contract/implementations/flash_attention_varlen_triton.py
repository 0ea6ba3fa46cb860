"""Attention over packed sequences in Triton: the problems of its gate, and the bugs that those must catch."""

from typing import Any, Final

from autotune.space import Config
from autotune.varlen_shape import VarlenShape
from tests.contract.planting import Gate, Mutant, Planted

SIZES: Final[dict[str, Any]] = {
    "batch": 3,
    "heads": 4,
    "kv_heads": 2,
    "max_seq_q": 120,
    "mean_seq_q": 60,
    "head_dim": 32,
    "dtype": "float16",
}
SHAPES: Final = {
    "causal": VarlenShape(**SIZES, causal=True),
    "full": VarlenShape(**SIZES, sinks=True),
    "window": VarlenShape(**SIZES, causal=True, window=40),
}
TILES: Final[dict[str, Any]] = {"BLOCK_Q": 64, "BLOCK_K": 32, "num_warps": 4, "num_stages": 2}
CONFIG: Final = Config(**TILES, sequences="packed", order="head", loads="pointer")
LONGEST: Final = Config(**TILES, sequences="longest", order="tile", loads="descriptor")

FORWARD, ORDER = "forward.py", "sequence_order.py"
MUTANTS: Final = (
    Mutant("top left causal", FORWARD, "diagonal = length - used ", "diagonal = tl.minimum(length - used, 0) ",
           "causal"),
    Mutant("lost tile", FORWARD, "TILE.rows) - 1 - behind", "TILE.rows) - 2 - behind", "causal"),
    Mutant("longest loses a tile", ORDER, "behind = -1", "behind = 0", "longest"),
    Mutant("unwritten row", FORWARD, "is_row = rows < count * TILE.group", "is_row = rows < count * TILE.group - 1",
           "causal"),
    Mutant("one head for all", FORWARD, "first_output + queries, heads,", "first_output + queries, kv_head,", "causal"),
    Mutant("keys of the first sequence", FORWARD, "row = first_key + key", "row = key", "full"),
    Mutant("keys by the offsets of queries", FORWARD, "keys_of = Sequences(cu_seqlens_k,",
           "keys_of = Sequences(cu_seqlens_q,", "full"),
    Mutant("keys of the next sequence", FORWARD, "present = first_key + columns <",
           "present = first_key + columns <=", "full"),
    Mutant("mask shows one future key", "tiles/masks.py", "ahead <= 0", "ahead <= 1", "causal"),
    Mutant("window one too long", "tiles/masks.py", "(ahead > -window)", "(ahead >= -window)", "window"),
    Mutant("missing rescale", "tiles/softmax.py", "accumulator * rescale[:, None]", "accumulator", "causal"),
    Mutant("sequences share slots", ORDER, ".to(tl.int32) + sequence", ".to(tl.int32)", "causal"),
    Mutant("too few slots", "launch.py", "// tile.rows + batch\n", "// tile.rows + 1\n", "causal"),
    Mutant("wrong scale", "launch.py", "else scale * LOG2_E,", "else scale,", "causal"),
    Mutant("unmasked diagonal", FORWARD, "// BLOCK_K * BLOCK_K, full_low)",
           "// BLOCK_K * BLOCK_K + BLOCK_K, full_low)", "causal"),
    Mutant("unmasked far edge", FORWARD, "tl.cdiv(bounds.full_low, BLOCK_K)", "(bounds.full_low // BLOCK_K)",
           "window"),
    Mutant("no sink", FORWARD, "outputs, sinks, state,", "outputs, None, state,", "full"),
    Mutant("ties in one place", ORDER, "ends = passed + tl.cumsum(tiles, 0)", "ends = passed + tiles", "longest"),
    Mutant("shorter ones before", ORDER, "tl.where(is_shorter, count, before)", "before", "longest"),
)  # fmt: skip

GATES: Final = {name: Gate(shape, CONFIG) for name, shape in SHAPES.items()}
PLANTED: Final = Planted({**GATES, "longest": Gate(SHAPES["causal"], LONGEST)}, MUTANTS)
