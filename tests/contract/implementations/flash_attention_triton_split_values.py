"""Flash attention over split values in Triton: the problems of its gate, and the bugs that those must catch."""

from typing import Any, Final

from autotune.shape import AttentionShape
from autotune.space import Config
from tests.contract.planting import NAN, WRONG, Gate, Mutant, Planted

CONFIG: Final = Config(BLOCK_Q=64, BLOCK_K=32, BLOCK_V=128, num_warps=4, num_stages=2, loads="pointer")
SIZES: Final[dict[str, Any]] = {"batch": 2, "heads": 4, "kv_heads": 2, "head_dim": 16, "dtype": "float16"}
WIDE: Final[dict[str, Any]] = SIZES | {"head_dim_v": 264}
SHAPES: Final = {
    "full": AttentionShape(**WIDE, seq_q=100),
    "boolean": AttentionShape(**WIDE, seq_q=100, attn_mask="boolean"),
    "additive": AttentionShape(**WIDE, seq_q=80, seq_kv=120, attn_mask="additive", causal=True, sinks=True),
    "softcap": AttentionShape(**WIDE, seq_q=80, attn_mask="additive", softcap=True),
    "ends": AttentionShape(**WIDE, seq_q=160, seq_kv=180, causal=True, window=40, kv_ends=True),
    "sinks": AttentionShape(**WIDE, seq_q=120, seq_kv=80, causal=True, window=40, sinks=True),
}
FORWARD, LAUNCH, MASKS, SOFTMAX = "forward.py", "launch.py", "tiles/masks.py", "tiles/softmax.py"
LAST = "partial block.\n    "  # ends the comment above the last loop over keys
MUTANTS: Final = (
    Mutant("first columns of values alone", FORWARD, "_load_columns(values, key, begin,",
           "_load_columns(values, key, 0,", "full", WRONG),
    Mutant("first columns of the output alone", FORWARD, "columns = begin + tl.arange(0, BLOCKS.columns)",
           "columns = 0 * begin + tl.arange(0, BLOCKS.columns)", "full", NAN),
    Mutant("a part of no program", LAUNCH, "triton.cdiv(head_dim_v, blocks.columns)",
           "(head_dim_v // blocks.columns)", "full", NAN),
    Mutant("logarithms of no part", FORWARD, "(begin == 0)", "(begin < 0)", "full", NAN),
    Mutant("hidden is seen", FORWARD, "mask_tile != 0, scores", "mask_tile == 0, scores", "boolean", WRONG),
    Mutant("bias in base e", FORWARD, "mask_tile.to(tl.float32) * LOG2_E", "mask_tile.to(tl.float32)", "additive",
           WRONG),
    Mutant("bias twice scaled", FORWARD, "            factor = 1.0\n", "            factor *= 1.0\n", "additive",
           WRONG),
    Mutant("bias below the cap", FORWARD, "scores = scores * factor + mask_tile", "scores = scores + mask_tile",
           "softcap", WRONG),
    Mutant("mask of the first batch", FORWARD, "attn_mask + offset(batch, strides.batch)", "attn_mask", "boolean",
           WRONG),
    Mutant("mask of another head", FORWARD, "offset(head, strides.head)\n", "offset(head // 2, strides.head)\n",
           "additive", WRONG),
    Mutant("mask of the first row", FORWARD, "offset(tl.minimum(rows, seq_q - 1), strides.row)",
           "offset(tl.minimum(rows, 0), strides.row)", "boolean", WRONG),
    Mutant("mask of keys before", FORWARD, "offset(columns, mask.key_stride)", "offset(columns // 2, mask.key_stride)",
           "boolean", WRONG),
    Mutant("NaN of a blind row", FORWARD, "BOUNDED or FEATURES.boolean or FEATURES.additive", "BOUNDED", "boolean",
           NAN),
    Mutant("no key past the diagonal", FORWARD, "tl.minimum(tl.max(ends, 0), seq_kv))", "0)", "ends", WRONG),
    Mutant("ends one too late", FORWARD, "columns[None, :] < mask.ends[:, None]",
           "columns[None, :] <= mask.ends[:, None]", "ends", WRONG),
    Mutant("ends of the first batch", FORWARD, "offset(batch, strides.operands.ends)", "0", "ends", WRONG),
    Mutant("no sink", FORWARD, "state.row_sum, sink)", "state.row_sum, None)", "sinks", WRONG),
    Mutant("one sink for all", FORWARD, "tl.load(sinks + head)", "tl.load(sinks)", "sinks", WRONG),
    Mutant("stale state", FORWARD, f"{LAST}state =", f"{LAST}stale =", "full"),
    Mutant("wrong KV head", FORWARD, "kv_head = head // group", "kv_head = head % 2", "full", WRONG),
    Mutant("wrong scale", LAUNCH, "else scale * LOG2_E,", "else scale,", "sinks", WRONG),
    Mutant("window one too long", MASKS, "(ahead > -window)", "(ahead >= -window)", "sinks", WRONG),
    Mutant("missing rescale", SOFTMAX, "accumulator * rescale[:, None]", "accumulator", "additive", WRONG),
    Mutant("unwritten row", FORWARD, "is_row = first_row + rows < seq_q", "is_row = first_row + rows < seq_q - 1",
           "full", NAN),
)  # fmt: skip
PLANTED: Final = Planted({name: Gate(shape, CONFIG) for name, shape in SHAPES.items()}, MUTANTS)
