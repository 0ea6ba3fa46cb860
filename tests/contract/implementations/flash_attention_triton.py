"""Flash attention in Triton: the problems of its gate, and the bugs that those must catch."""

from typing import Any, Final

from autotune.shape import AttentionShape
from autotune.space import Config
from tests.contract.planting import NAN, WRONG, Gate, Mutant, Planted

CONFIG: Final = Config(BLOCK_Q=128, BLOCK_K=128, num_warps=8, num_stages=2, loads="pointer")
TINY: Final = Config({**CONFIG, "BLOCK_Q": 16, "BLOCK_K": 16, "num_warps": 1, "num_stages": 1})
SIZES: Final[dict[str, Any]] = {"batch": 1, "heads": 2, "head_dim": 64, "dtype": "float16"}
SHAPES: Final = {
    "causal": AttentionShape(**SIZES, seq_q=1024, causal=True),
    "full": AttentionShape(**SIZES, seq_q=1024),
    "window": AttentionShape(**SIZES, seq_q=1024, causal=True, window=200),
    "blind": AttentionShape(**SIZES, seq_q=1024, seq_kv=600, causal=True),  # the first queries see no key
    "short": AttentionShape(**{**SIZES, "heads": 4, "kv_heads": 2}, seq_q=64),
    "float32": AttentionShape(**{**SIZES, "dtype": "float32"}, seq_q=1024, causal=True),
}
LAST = "partial block.\n    "  # ends the comment above the last loop over keys
FORWARD, MASKS, SOFTMAX = "forward.py", "tiles/masks.py", "tiles/softmax.py"
MUTANTS: Final = (
    Mutant("wrong scale", "launch.py", "else scale * LOG2_E,", "else scale,", "causal", WRONG),
    Mutant("missing rescale", SOFTMAX, "accumulator * rescale[:, None]", "accumulator", "causal", WRONG),
    Mutant("mask hides diagonal", MASKS, "ahead <= 0", "ahead < 0", "causal", WRONG),
    Mutant("mask shows one future key", MASKS, "ahead <= 0", "ahead <= 1", "causal", WRONG),
    Mutant("window one too long", MASKS, "(ahead > -window)", "(ahead >= -window)", "window", WRONG),
    Mutant("unmasked tail", FORWARD, "(columns < keys.length)[None, :]", "(columns >= 0)[None, :]", "full", WRONG),
    Mutant("unmasked short tail", FORWARD, "(columns < keys.length)[None, :]", "(columns >= 0)[None, :]", "short",
           WRONG),
    Mutant("swapped stride", "tiles/rows.py", "offset(rows[:, None], source.strides.row)",
           "offset(rows[:, None], source.strides.head)", "full", WRONG),
    Mutant("wrong KV head", FORWARD, "kv_head = head // group", "kv_head = head % 2", "short", WRONG),
    Mutant("stale state", FORWARD, f"{LAST}state =", f"{LAST}stale =", "causal", WRONG),
    Mutant("NaN row", SOFTMAX, "tl.where(row_sum == 0.0, 1.0, row_sum)", "row_sum", "blind", NAN),
    Mutant("NaN in a window", SOFTMAX, "if MASKED else new_max", "if False else new_max", "window", NAN),
    Mutant("unwritten row", FORWARD, "in_range = (rows < seq_q)", "in_range = (rows < seq_q - 1)", "causal", NAN),
)  # fmt: skip

PLANTED: Final = Planted({name: Gate(shape, CONFIG) for name, shape in SHAPES.items()}, MUTANTS)
