"""Attention over packed sequences in Gluon: the problems of its gate, and the bugs that those must catch."""

from typing import Any, Final

from autotune.kernels.flash_attention_varlen.inputs import check_shape
from autotune.space import Config
from autotune.trial import Status
from autotune.varlen_shape import VarlenShape
from tests.contract.planting import CAUGHT, WRONG, Gate, Mutant, Planted

SIZES: Final[dict[str, Any]] = {"batch": 4, "heads": 2, "max_seq_q": 300, "head_dim": 32, "dtype": "float16"}
SHAPES: Final = {
    "causal": VarlenShape(**SIZES, causal=True),
    "full": VarlenShape(**SIZES, sinks=True),
    "window": VarlenShape(**SIZES, causal=True, window=70, sinks=True),  # first rows: a sink above the few scores
    "group": VarlenShape(**{**SIZES, "heads": 4, "kv_heads": 2}),
    "turns": VarlenShape(**SIZES, causal=True),
    "parts": VarlenShape(**{**SIZES, "head_dim": 96}, head_dim_v=64),
}
# Queries and keys of each sequence: about a tile of two consumers, none of either, and tiles that use slots again.
LENGTHS: Final = ((129, 203), (0, 5), (3, 0), (150, 150), (9, 1), (64, 66))
SIMPLE: Final[dict[str, Any]] = {
    "consumers": 2,
    "BLOCK_K": 64,
    "slots": 2,
    "query_slots": 1,
    "ping_pong": "off",
    "values": "late",
    "results": "own",
    "workers": "sm",
    "sequences": "longest",
    "order": "tile",
}
TURNS: Final[dict[str, Any]] = {"ping_pong": "issue", "values": "early", "results": "queries", "sequences": "packed"}
CHANGES: Final[dict[str, dict[str, Any]]] = {
    "group": {"consumers": 1, "order": "head"},  # one decides when a slot is free
    "window": {"sequences": "packed", "order": "head"},
    "turns": TURNS,
    "parts": TURNS,
}


def gate_of(name: str) -> Gate:
    return Gate(check_shape(SHAPES[name], LENGTHS), Config({**SIMPLE, **CHANGES.get(name, {})}))


FORWARD, RAGGED, TABLE, LAUNCH = "forward.py", "ragged.py", "tile_table.py", "launch.py"
PRODUCT: Final = "accumulator = warpgroup_mma_wait(0, deps=[accumulator])"
STUCK: Final = (*CAUGHT, Status.HANG, Status.LAUNCH_ERROR)
MUTANTS: Final = (
    Mutant("keys of the first sequence", FORWARD, "SequenceRows(tile.first_key, tile.length)",
           "SequenceRows(0, tile.length)", "full", WRONG),
    Mutant("queries end before their tile", FORWARD, "queries, keys = SequenceRows(tile.begin, tile.count)",
           "queries, keys = SequenceRows(tile.begin, tile.row)", "full", WRONG),
    Mutant("results behind the sequence", FORWARD, "place_of(SequenceRows(tile.out_begin, tile.count)",
           "place_of(SequenceRows(tile.out_begin, tile.count + 64)", "causal", STUCK, races=True),
    Mutant("one row before the bound", RAGGED, "LAST - rows.count + row", "LAST - rows.count + row + 1", "causal"),
    Mutant("first columns in every part", RAGGED, "part * descriptor.block_shape[4]", "0", "parts", WRONG),
    Mutant("logarithms of the first sequence", FORWARD, "gl.cast(tile.out_begin + rows,", "gl.cast(rows,", "causal"),
    Mutant("logarithms of one head", FORWARD, "* call.heads + tile.head", "* call.heads", "causal"),
    Mutant("no logarithm of the last row", FORWARD, "mask=rows < tile.count)", "mask=rows < tile.count - 1)", "causal"),
    Mutant("no weight of a sink", FORWARD, "row_sum * rescale + gl.exp2(sink - shift)", "row_sum * rescale", "full",
           WRONG),
    Mutant("values not rescaled to a sink", FORWARD, "factor = rescale / row_sum", "factor = 1.0 / row_sum", "window",
           WRONG),
    Mutant("wrong KV head", FORWARD, "kv_head = tile.head // call.group", "kv_head = tile.head % 2", "group", WRONG),
    Mutant("rows of the first consumer", FORWARD, "row = tile.row + CONSUMER * ROWS", "row = tile.row", "causal"),
    Mutant("stale state", FORWARD, "no mask.\n        state, turn", "no mask.\n        _, turn", "full", WRONG),
    Mutant("wrong scale", LAUNCH, "else scale * LOG2_E,", "else scale,", "full", WRONG),
    Mutant("too few slots", LAUNCH, "slots = tokens // tile.rows + batch", "slots = tokens // tile.rows + 1", "causal"),
    Mutant("lost tile", TABLE, "TILE.rows) - 1 - behind)", "TILE.rows) - 1 - behind // 2 * 2)", "causal"),
    Mutant("keys by the offsets of queries", TABLE, "keys_of = Sequences(cu_seqlens_k,",
           "keys_of = Sequences(cu_seqlens_q,", "full"),
    Mutant("first tile of each sequence", TABLE, "tl.sum(tl.where(is_found, slot - ends + tiles + 1, 0))",
           "tl.sum(tl.where(is_found, 1, 0))", "turns"),
    Mutant("next tile of another program", FORWARD, "number + gl.num_programs(0), tiles - 1", "number + 1, tiles - 1",
           "causal", STUCK, races=True),
    Mutant("slots handed back in the wrong phase", RAGGED, "(turn // SLOTS & 1) ^ 1)", "turn // SLOTS & 1)", "full",
           (Status.HANG,), races=True),
    Mutant("queries never handed back", FORWARD, "        if not SCHEDULE.out_in_queries:\n            hand_back",
           "        if False:\n            hand_back", "full", (Status.HANG,), races=True),
    Mutant("queries of the same slot", FORWARD, "q_turn += CONSUMERS\n        tile", "q_turn += 1\n        tile",
           "full", STUCK, races=True),
    Mutant("values handed back early", FORWARD,
           f"        {PRODUCT}\n        hand_back(v_ring, turn - 1, SLOTS)",
           f"        hand_back(v_ring, turn - 1, SLOTS)\n        {PRODUCT}", "group", races=True),
    Mutant("results over those that leave", FORWARD, "wait_copies_out(0)  # of the tile before", "pass", "causal",
           STUCK, races=True),
    Mutant("queries handed back under results", FORWARD,
           "            wait_copies_out(0)\n            hand_back", "            hand_back", "turns", STUCK,
           races=True),
    Mutant("last results left behind", FORWARD, "        tile = next_tile\n    wait_copies_out(0)",
           "        tile = next_tile", "full", (Status.LAUNCH_ERROR,), races=True),
)  # fmt: skip

PLANTED: Final = Planted({name: gate_of(name) for name in SHAPES}, MUTANTS)
