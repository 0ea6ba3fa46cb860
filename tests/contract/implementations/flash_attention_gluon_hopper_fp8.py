"""Flash attention of e4m3 in Gluon for Hopper: the problems of its gate, and the bugs that those must catch."""

from typing import Any, Final

from autotune.device import NVIDIA_H200
from autotune.search_spaces.flash_attention.gluon_hopper_fp8 import IMPLEMENTATION
from autotune.shape import AttentionShape
from autotune.space import Config
from autotune.trial import Status
from tests.contract.planting import CAUGHT, NAN, WRONG, Gate, Mutant, Planted

SIZES: Final[dict[str, Any]] = {"batch": 1, "heads": 2, "head_dim": 32, "dtype": "float8_e4m3fn"}
SHAPES: Final = {
    "causal": AttentionShape(**SIZES, seq_q=200, causal=True),
    "full": AttentionShape(**SIZES, seq_q=150, seq_kv=203),
    "window": AttentionShape(**SIZES, seq_q=200, causal=True, window=70),
    "blind": AttentionShape(**SIZES, seq_q=200, seq_kv=150, causal=True),  # the first queries see no key
    "alone": AttentionShape(**SIZES, seq_q=500, seq_kv=203),
    "group": AttentionShape(**{**SIZES, "batch": 2, "heads": 4, "kv_heads": 2}, seq_q=64, seq_kv=130),
    "turns": AttentionShape(**SIZES, seq_q=300, causal=True),
    "parts": AttentionShape(**{**SIZES, "head_dim": 96}, head_dim_v=40, seq_q=150, seq_kv=203),
    "wide": AttentionShape(**SIZES, head_dim_v=200, seq_q=64, seq_kv=203),  # of values in parts
}


SIMPLE: Final[dict[str, Any]] = {"consumers": 2, "BLOCK_K": 64, "slots": 2, "ping_pong": "off", "values": "late"}
ALONE: Final[dict[str, Any]] = {"consumers": 1}  # which decides when a slot is free
TURNS: Final[dict[str, Any]] = {"query_slots": 1, "ping_pong": "issue", "values": "early", "sums": "running"}
CHANGES: Final = {"alone": ALONE, "group": ALONE, "turns": TURNS, "parts": TURNS, "wide": ALONE}


def gate_of(name: str) -> Gate:
    """Return a gate; blocks are short, so that it has several."""
    default = IMPLEMENTATION.space.default(SHAPES[name], NVIDIA_H200)
    return Gate(SHAPES[name], Config({**default, **SIMPLE, **CHANGES.get(name, {})}))


FORWARD, LAUNCH, SCHEDULE, VALUES, WEIGHTS = (
    "forward.py",
    "launch.py",
    "byte_schedule.py",
    "values.py",
    "byte_weights.py",
)
SCORES: Final = "scores = warpgroup_mma_wait(0, deps=[scores])"
STUCK: Final = (*CAUGHT, Status.HANG, Status.LAUNCH_ERROR)
MUTANTS: Final = (
    Mutant("keys in their natural order", VALUES, "// 2 % 2) * 8 + inside // 4 * 2 + inside % 2", "* 0) + inside",
           "full", WRONG),
    Mutant("missing scale of keys", SCHEDULE, "scale * gl.load(scales.k", "scale + 0.0 * gl.load(scales.k", "full",
           WRONG),
    Mutant("sums of rows not scaled back", FORWARD, "end_rows(state.row_max - WEIGHT_BITS,", "end_rows(state.row_max,",
           "full", WRONG),
    Mutant("weights beyond what e4m3 holds", WEIGHTS, "constexpr(8.0)", "constexpr(11.0)", "full", WRONG),
    Mutant("weights below what e4m3 holds", WEIGHTS, "constexpr(8.0)", "constexpr(-6.0)", "full", WRONG),
    Mutant("missing rescale of blocks", FORWARD, "state.accumulators[0] * rescale[:, None] + products",
           "state.accumulators[0] + products", "full", WRONG),
    Mutant("missing rescale of running sums", FORWARD, "(accumulators[0] * factor[:, None],)", "accumulators", "turns",
           WRONG),
    Mutant("running sums begun anew", FORWARD, "state.accumulators[0], is_async=True)",
           "state.accumulators[0], use_acc=False, is_async=True)", "turns", WRONG),
    Mutant("bytes in another order", WEIGHTS, "pack_quads(first, second, third, fourth)",
           "pack_quads(first, third, second, fourth)", "full", WRONG),
    Mutant("keys past the last not cleared", VALUES, "other=0)", "other=127)", "full", NAN),
    Mutant("wrong scale", LAUNCH, "else scale * LOG2_E,", "else scale,", "full", WRONG),
    Mutant("scale of the first sequence", SCHEDULE, "scales.v + tile.batch * scales.v_batch", "scales.v", "group",
           WRONG),
    Mutant("scale of another head for values", SCHEDULE, "    head = tile.head // numbers.group",
           "    head = tile.head % 2", "group", WRONG),
    Mutant("wrong KV head", FORWARD, "kv_head = tile.head // numbers.group", "kv_head = tile.head % 2", "group", WRONG),
    Mutant("values of another block", FORWARD, "tile.batch, block * WIDTH_V", "tile.batch, bounds.low * WIDTH_V",
           "full", WRONG),
    Mutant("stale state", FORWARD, "no mask.\n        state, turn", "no mask.\n        _, turn", "full", WRONG),
    Mutant("rows of the first consumer", FORWARD, "row = tile.row + CONSUMER * ROWS", "row = tile.row", "full"),
    Mutant("NaN row", "tiles/softmax.py", "tl.where(row_sum == 0.0, 1.0, row_sum)", "row_sum", "blind", NAN),
    Mutant("keys handed back early", FORWARD,
           f"\n    {SCORES}\n    end_turn(CONSUMER, SCHEDULE)\n    hand_back(k_ring, turn, SLOTS)",
           f"\n    hand_back(k_ring, turn, SLOTS)\n    end_turn(CONSUMER, SCHEDULE)\n    {SCORES}", "alone",
           races=True),
    Mutant("values handed back early", FORWARD,
           "        accumulators = end_values(state, products, SCHEDULE)\n        hand_back(v_ring, turn - 1, SLOTS)\n"
           "        if not",
           "        hand_back(v_ring, turn - 1, SLOTS)\n        accumulators = end_values(state, products, SCHEDULE)\n"
           "        if not", "alone", races=True),
    Mutant("scores used before they are there", FORWARD, "warpgroup_mma_wait(1,", "warpgroup_mma_wait(2,", "turns",
           STUCK, races=True),
    Mutant("first columns of values in every part", FORWARD, "v_tile.slice(part * PART,", "v_tile.slice(0,", "wide",
           WRONG),
    Mutant("results of every part in one place", FORWARD, "out_rows.slice(part * PART,", "out_rows.slice(0,", "wide"),
    Mutant("missing rescale of parts of values", FORWARD, "state.accumulators[part] * rescale[:, None] + product",
           "state.accumulators[part] + product", "wide", WRONG),
    Mutant("part of the columns left out", FORWARD, "in gl.static_range(PARTS)", "in gl.static_range(PARTS - 1)",
           "parts", WRONG),
    Mutant("sum of parts begun anew", FORWARD, "use_acc=part > 0", "use_acc=False", "parts", WRONG),
)  # fmt: skip

PLANTED: Final = Planted({name: gate_of(name) for name in SHAPES}, MUTANTS)
