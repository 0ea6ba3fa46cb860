"""Flash attention over split keys in Triton: the problems of its gate, and the bugs that those must catch."""

from typing import Any, Final

from autotune.shape import AttentionShape
from autotune.space import Config
from tests.contract.planting import NAN, WRONG, Gate, Mutant, Planted

CONFIG: Final = Config(
    BLOCK_Q=16, BLOCK_K=32, NUM_SPLITS=3, PARTIALS="float32", num_warps=4, num_stages=2, loads="pointer"
)
SIZES: Final[dict[str, Any]] = {"batch": 1, "heads": 2, "kv_heads": 1, "head_dim": 32, "dtype": "float16"}
HEADS: Final = {"heads": 4, "kv_heads": 2}
GATES: Final = {
    "full": Gate(AttentionShape(**SIZES, seq_q=3, seq_kv=150), CONFIG),
    "whole": Gate(AttentionShape(**SIZES, seq_q=3, seq_kv=150), Config({**CONFIG, "NUM_SPLITS": 1})),
    "half": Gate(AttentionShape(**SIZES, seq_q=3, seq_kv=150), Config({**CONFIG, "PARTIALS": "float16"})),
    "causal": Gate(AttentionShape(**SIZES, seq_q=6, seq_kv=150, causal=True), CONFIG),
    "window": Gate(AttentionShape(**SIZES, seq_q=6, seq_kv=300, causal=True, window=40), CONFIG),
    "blind": Gate(AttentionShape(**SIZES, seq_q=8, seq_kv=5, causal=True), CONFIG),  # the first queries see no key
    "heads": Gate(AttentionShape(**{**SIZES, **HEADS}, seq_q=3, seq_kv=150), CONFIG),
    "blocks": Gate(AttentionShape(**SIZES, seq_q=20, seq_kv=168, causal=True), CONFIG),  # of rows, several
    "float32": Gate(AttentionShape(**{**SIZES, "dtype": "float32"}, seq_q=3, seq_kv=150), CONFIG),
    # A window on both sides, and query heads of a KV head that are no power of two.
    "around": Gate(AttentionShape(**{**SIZES, "heads": 3}, seq_q=24, seq_kv=161, window=20), CONFIG),
    # As many queries as there may be, in long blocks.
    "capped": Gate(
        AttentionShape(**SIZES, seq_q=64, seq_kv=150, softcap=True, causal=True), Config({**CONFIG, "BLOCK_Q": 64})
    ),
    "values": Gate(AttentionShape(**{**SIZES, "heads": 7, "head_dim": 24}, head_dim_v=32, seq_q=5, seq_kv=150), CONFIG),
    "few": Gate(AttentionShape(**SIZES, seq_q=3, seq_kv=50), Config({**CONFIG, "NUM_SPLITS": 6})),  # tiles, two
}
FORWARD, MASKS, SOFTMAX, PARTIALS = "forward.py", "tiles/masks.py", "tiles/softmax.py", "tiles/partials.py"
MUTANTS: Final = (
    Mutant("wrong scale", "launch.py", "else scale * LOG2_E,", "else scale,", "whole", WRONG),
    Mutant("share left out", FORWARD, "number + 1, 1, splits,", "number + 1, 1, splits - 1,", "full", WRONG),
    Mutant("remainder left out", FORWARD, "tiles % splits", "tiles % 1", "full", WRONG),
    Mutant("shares that overlap", FORWARD, "+ tl.minimum(split, longer)", "+ 0", "full", WRONG),
    Mutant("missing rescale", SOFTMAX, "accumulator * rescale[:, None]", "accumulator", "whole", WRONG),
    Mutant("shares merged without weights", PARTIALS, "tl.sum(parts * weights[:, :, None], 0)", "tl.sum(parts, 0)",
           "half", WRONG),
    Mutant("mask hides diagonal", MASKS, "ahead <= 0", "ahead < 0", "causal", WRONG),
    Mutant("mask shows one future key", MASKS, "ahead <= 0", "ahead <= 1", "causal", WRONG),
    Mutant("diagonal in the blocks that every row sees", FORWARD,
           "full_high = tl.maximum(bounds.full_high, 0) // BLOCK_K", "full_high = tl.cdiv(bounds.full_high, BLOCK_K)",
           "causal"),  # beyond the keys lies anything
    Mutant("window one too long", MASKS, "(ahead > -window)", "(ahead >= -window)", "window", WRONG),
    Mutant("first keys of a window left out", FORWARD, "low = bounds.low // BLOCK_K",
           "low = tl.cdiv(bounds.low, BLOCK_K)", "window", WRONG),
    Mutant("NaN in a window", SOFTMAX, "if MASKED else new_max", "if False else new_max", "window", NAN),
    Mutant("unmasked tail", FORWARD, "(columns < keys.length)[None, :]", "(columns >= 0)[None, :]", "full", WRONG),
    Mutant("wrong KV head", FORWARD, "Head(v, v_strides, batch, kv_head,", "Head(v, v_strides, batch, 0,", "heads",
           WRONG),
    Mutant("wrong query of a row", FORWARD, "queries = rows // group", "queries = rows % seq_q", "causal"),
    Mutant("partial results of the first block", FORWARD, "* blocks + row // BLOCK_Q)", "* blocks)", "blocks", WRONG),
    Mutant("bounds of the first row alone", FORWARD, "(tl.minimum((block + 1) * BLOCK_Q, used_rows) - 1) // group",
           "first_query", "blocks", WRONG),
    Mutant("NaN row", SOFTMAX, "tl.where(row_sum == 0.0, 1.0, row_sum)", "row_sum", "blind", NAN),
    Mutant("unwritten row", FORWARD, "is_row = rows < used_rows", "is_row = rows < used_rows - 1", "whole", NAN),
    Mutant("window one too long ahead", MASKS, "(ahead < window)", "(ahead <= window)", "around", WRONG),
    Mutant("keys ahead of the window unmasked", MASKS, "tl.minimum(length, first + diagonal + window)",
           "tl.minimum(length, last + diagonal + window)", "around", WRONG),
    Mutant("heads of a group by a mask", FORWARD, "kv_head * group + rows % group",
           "kv_head * group + (rows & (group - 1))", "around"),
    Mutant("capped scores not in base 2", FORWARD, "factor = LOG2_E", "factor = 1.0", "capped", WRONG),
    Mutant("scale not over the softcap", "launch.py", "scale / softcap if softcap", "scale if softcap", "capped",
           WRONG),
    Mutant("rows of the shortest blocks", FORWARD, "row % BLOCK_Q, 1,", "row % 16, 1,", "capped", WRONG),
    Mutant("values as wide as keys", FORWARD, "BLOCK_K, WIDTHS.v, WIDTHS.padded_v",
           "BLOCK_K, WIDTHS.k, WIDTHS.padded_v", "values", WRONG),
    Mutant("results as wide as keys", "launch.py", "*(widths.v, widths.padded_v, block_q",
           "*(widths.k, widths.padded_v, block_q", "values", NAN),
    Mutant("no share without a block", FORWARD, "(each + (split", "(tl.maximum(each, 1) + (split", "few", WRONG),
)  # fmt: skip

PLANTED: Final = Planted(GATES, MUTANTS)
