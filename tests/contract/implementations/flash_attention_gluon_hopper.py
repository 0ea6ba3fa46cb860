"""Flash attention in Gluon for Hopper: the problems of its gate, and the bugs that those must catch."""

from typing import Any, Final

from autotune.device import NVIDIA_H200
from autotune.search_spaces.flash_attention.gluon_hopper import IMPLEMENTATION
from autotune.shape import AttentionShape
from autotune.space import Config
from autotune.trial import Status
from tests.contract.planting import CAUGHT, NAN, WRONG, Gate, Mutant, Planted

SIZES: Final[dict[str, Any]] = {"batch": 1, "heads": 2, "head_dim": 32, "dtype": "float16"}
SHAPES: Final = {
    "causal": AttentionShape(**SIZES, seq_q=200, causal=True),
    "full": AttentionShape(**SIZES, seq_q=150, seq_kv=203),
    "window": AttentionShape(**SIZES, seq_q=200, causal=True, window=70),
    "blind": AttentionShape(**SIZES, seq_q=200, seq_kv=150, causal=True),  # the first queries see no key
    "alone": AttentionShape(**SIZES, seq_q=500, seq_kv=203),
    "group": AttentionShape(**{**SIZES, "heads": 4, "kv_heads": 2}, seq_q=64, seq_kv=130),
    "turns": AttentionShape(**SIZES, seq_q=300, causal=True),
    "parts": AttentionShape(**{**SIZES, "head_dim": 96}, head_dim_v=64, seq_q=300, seq_kv=203),
}


SIMPLE: Final[dict[str, Any]] = {"consumers": 2, "BLOCK_K": 64, "slots": 2, "ping_pong": "off", "values": "late"}
ALONE: Final[dict[str, Any]] = {"consumers": 1}  # which decides when a slot is free
TURNS: Final[dict[str, Any]] = {"query_slots": 1, "ping_pong": "issue", "values": "early", "results": "queries"}
CHANGES: Final = {"alone": ALONE, "group": ALONE, "turns": TURNS, "parts": TURNS}


def gate_of(name: str) -> Gate:
    """Return a gate; blocks are short, so that it has several."""
    default = IMPLEMENTATION.space.default(SHAPES[name], NVIDIA_H200)
    return Gate(SHAPES[name], Config({**default, **SIMPLE, **CHANGES.get(name, {})}))


FORWARD, RINGS, PING_PONG, WEIGHTS = "forward.py", "rings.py", "turns.py", "weights.py"
PRODUCT: Final = "accumulator = warpgroup_mma_wait(0, deps=[accumulator])"
SCORES: Final = "scores = warpgroup_mma_wait(0, deps=[scores])"
STUCK: Final = (*CAUGHT, Status.HANG, Status.LAUNCH_ERROR)
MUTANTS: Final = (
    Mutant("missing rescale", FORWARD, "RowState(accumulator * rescale[:, None],", "RowState(accumulator,", "full",
           WRONG),
    Mutant("mask hides diagonal", WEIGHTS, "<= (visible.last", "< (visible.last", "causal"),
    Mutant("mask shows one future key", WEIGHTS, "gl.minimum(last, position)", "gl.minimum(last, position + 1)",
           "causal", WRONG),
    Mutant("wrong scale", "launch.py", "else scale * LOG2_E,", "else scale,", "full", WRONG),
    Mutant("window one too long", WEIGHTS, "position - numbers.window + 1", "position - numbers.window", "window",
           WRONG),
    Mutant("window one too short", WEIGHTS, "position - numbers.window + 1", "position - numbers.window + 2", "window",
           WRONG),
    Mutant("unmasked tail", WEIGHTS, "+ numbers.seq_kv - 1", "+ numbers.seq_kv + 63", "full", WRONG),
    Mutant("wrong KV head", FORWARD, "tile.head // numbers.group", "tile.head % 2", "group", WRONG),
    Mutant("stale state", FORWARD, "no mask.\n        state, turn", "no mask.\n        _, turn", "full", WRONG),
    Mutant("rows of the first consumer", FORWARD, "row = tile.row + CONSUMER * ROWS", "row = tile.row", "full"),
    Mutant("NaN row", "tiles/softmax.py", "tl.where(row_sum == 0.0, 1.0, row_sum)", "row_sum", "blind", NAN),
    Mutant("keys handed back early", FORWARD,
           f"\n    {SCORES}\n    end_turn(CONSUMER, SCHEDULE)\n    hand_back(k_ring, turn, SLOTS)",
           f"\n    hand_back(k_ring, turn, SLOTS)\n    end_turn(CONSUMER, SCHEDULE)\n    {SCORES}", "alone",
           races=True),
    Mutant("values handed back early", FORWARD,
           f"        {PRODUCT}\n        hand_back(v_ring, turn - 1, SLOTS)\n        rescale",
           f"        hand_back(v_ring, turn - 1, SLOTS)\n        {PRODUCT}\n        rescale", "alone", races=True),
    Mutant("wrong phase of a full slot", RINGS, "ring.full.index(slot), turn // SLOTS & 1)",
           "ring.full.index(slot), (turn // SLOTS & 1) ^ 1)", "full", STUCK, races=True),
    Mutant("wrong phase of an empty slot", RINGS, "(turn // SLOTS & 1) ^ 1)", "turn // SLOTS & 1)", "full",
           (Status.HANG,), races=True),
    Mutant("slot never handed back", RINGS, "    mbarrier.arrive(ring.empty.index(turn % SLOTS), count=1)", "    pass",
           "full", (Status.HANG,), races=True),
    Mutant("part of the columns left out", FORWARD, "in gl.static_range(PARTS)", "in gl.static_range(PARTS - 1)",
           "parts", WRONG),
    Mutant("sum of parts begun anew", FORWARD, "use_acc=part > 0", "use_acc=False", "parts", WRONG),
    Mutant("first columns in every part", RINGS, "part * descriptor.block_shape[3]", "0", "parts", WRONG),
    Mutant("turn never ended", PING_PONG, "    barrier_arrive(FIRST", "    lambda: barrier_arrive(FIRST", "turns",
           (Status.HANG,), races=True),
    Mutant("turn of the same consumer again", PING_PONG, "(CONSUMER + 1) % SCHEDULE.consumers", "CONSUMER", "turns",
           STUCK, races=True),
    Mutant("scores used before they are there", FORWARD, "warpgroup_mma_wait(1,", "warpgroup_mma_wait(2,", "turns",
           STUCK, races=True),
    Mutant("queries handed back under results", FORWARD,
           "            wait_copies_out(0)\n            hand_back", "            hand_back", "turns", STUCK,
           races=True),
    Mutant("results over other queries", FORWARD, "gl.cdiv(out_slot * KEY_WIDTH, WIDTH)",
           "out_slot * KEY_WIDTH // WIDTH", "parts", STUCK, races=True),
)  # fmt: skip

PLANTED: Final = Planted({name: gate_of(name) for name in SHAPES}, MUTANTS)
