"""Paged decode over latents in Gluon: the problems of its gate, and the bugs that those must catch."""

from typing import Any, Final

from autotune.kernels.paged_decode.inputs import CheckShape
from autotune.space import Config
from autotune.trial import Status
from tests.contract.planting import CAUGHT, NAN, WRONG, Gate, Mutant, Planted

# About a pair of tiles, none of any, and turns in which slots are used again.
LENGTHS: Final = (600, 0, 129, 65)
SIZES: Final[dict[str, Any]] = {
    "batch": len(LENGTHS),
    "heads": 3,
    "max_context": max(LENGTHS),
    "head_dim": 288,
    "page_size": 16,
    "dtype": "float16",
    "lengths": LENGTHS,
}


def gate_of(*, splits: int = 1, slots: int = 2, **fields: Any) -> Gate:
    return Gate(CheckShape(**SIZES | fields), Config(NUM_SPLITS=splits, slots=slots))


GATES: Final = {
    "plain": gate_of(),
    "whole": gate_of(head_dim=320, page_size=64, slots=4),  # tiles, in one copy
    "splits": gate_of(splits=2, slots=4),
    "queries": gate_of(seq_q=3, sinks=True),
    "pages": gate_of(page_size=128),  # longer than tiles
    "blocks": gate_of(heads=70, page_size=32),  # of rows, two
    "indices": gate_of(page_size=1, splits=2, heads=70),
}
FORWARD, RINGS, WEIGHTS, LAUNCH = "forward.py", "latent_ring.py", "latent_weights.py", "launch.py"
GATHER: Final = "latent_gather.py"
QUERIES, RESULTS, SHARES = "latent_queries.py", "latent_results.py", "latent_share.py"
PRODUCT: Final = "accumulator = warpgroup_mma_wait(0, deps=[accumulator])"
HEARD: Final = "row_max = hear(boxes[1], pair)"
STUCK: Final = (*CAUGHT, Status.HANG, Status.LAUNCH_ERROR)
MUTANTS: Final = (
    Mutant("no third part of scores", FORWARD,
           "return warpgroup_mma(queries.beside.index(0), keys, scores, is_async=True)", "return scores", "plain",
           WRONG),
    Mutant("first factor twice", FORWARD, "queries.halves.index(1 - GROUP)", "queries.halves.index(GROUP)", "whole",
           WRONG),
    Mutant("values not rescaled", FORWARD,
           "accumulator = rescaled(state, rescale)\n        values = ring.halves.index(2 * slot)\n",
           "accumulator = state.accumulator\n        values = ring.halves.index(2 * slot)\n", "plain", WRONG),
    Mutant("sum not rescaled", WEIGHTS, "state.row_sum * rescale)", "state.row_sum)", "plain", WRONG),
    Mutant("weights of its own tile", FORWARD, "ring.weights.index(slot + 1)", "ring.weights.index(slot)", "plain",
           WRONG),
    Mutant("weights of one group alone", FORWARD, "state.row_sum + hear(boxes[1], share.pairs)", "state.row_sum",
           "plain", WRONG),
    Mutant("maxima of its own tiles alone", FORWARD, "raise_maxima(with_accumulator(state, accumulator), row_max)",
           "raise_maxima(with_accumulator(state, accumulator), state.row_max)", "whole", WRONG),
    Mutant("future keys", WEIGHTS, "share.length - TILE.queries + rows // TILE.group", "share.length - 1 + 0 * rows",
           "queries", WRONG),
    Mutant("keys that are left out", WEIGHTS, " & is_listed[None, :]", "", "plain", WRONG),
    Mutant("slots behind the end", RINGS, "(rows < count)[:, None]", "(rows < KEYS)[:, None]", "plain", NAN),
    Mutant("first columns in every copy", RINGS, "HALF * BLOCKS + copy * AT_ONCE", "HALF * BLOCKS", "plain", WRONG),
    Mutant("first page in every copy", RINGS, "place = [pages[piece],", "place = [pages[0],", "blocks", WRONG),
    Mutant("first slots of every page", SHARES, "return (tile * KEYS + piece * LATENTS.run) % LATENTS.page_size",
           "return 0 * tile", "pages", WRONG),
    Mutant("lost pairs", SHARES, "+ SPLITS - 1 - split, 0)", "- split, 0)", "splits"),
    Mutant("rows of the first block", QUERIES, "rows = share.block * ROWS + gl", "rows = gl", "blocks", WRONG),
    Mutant("one place for all splits", RESULTS, "share.lane * SPLITS + share.split", "share.lane * SPLITS", "splits"),
    Mutant("no weight of a sink", RESULTS, "row_sum * rescale + gl.exp2(sink - shift)", "row_sum * rescale", "queries",
           WRONG),
    Mutant("results of the first half", RESULTS, "columns = GROUP * LATENTS.half + gl.arange(0, LATENTS.half, "
           "gl.SliceLayout(0, VALUES))\n    places = ((first", "columns = gl.arange(0, LATENTS.half, "
           "gl.SliceLayout(0, VALUES))\n    places = ((first", "plain"),
    Mutant("wrong scale", LAUNCH, "scale * LOG2_E, tile", "scale, tile", "plain", WRONG),
    Mutant("indices of the tile before", FORWARD, "rows = next_rows", "rows = rows", "indices", WRONG),
    Mutant("indices of one tile ahead", FORWARD, "+ 1 - group\n", "+ group\n", "indices", WRONG),
    Mutant("indices that are left out", GATHER, "is_row = (rows >= 0)[:, None]", "is_row = (rows >= -1)[:, None]",
           "indices", (Status.LAUNCH_ERROR,), races=True),  # on a GPU it reads what lies before the cache
    Mutant("weights of keys that are left out", WEIGHTS, "share.length, KEYS_OF_SCORES) >= 0",
           "share.length, KEYS_OF_SCORES) >= -1", "indices", WRONG),
    Mutant("left out without a look", SHARES, "gl.min(listed, 0) >= 0", "gl.min(listed, 0) >= -1",
           "indices", WRONG),
    Mutant("first half of a row twice", GATHER, "columns = half * LATENTS.half + gl", "columns = gl", "indices", WRONG),
    Mutant("nothing beside a row", GATHER, "columns = GROUPS * LATENTS.half + gl", "columns = gl", "indices", WRONG),
    Mutant("rows side by side", LAUNCH, "row=_row_stride(k_cache, layout) if", "row=256 if", "indices"),
    Mutant("gathered without a fence", RINGS, "fence_async_shared()  # what", "pass  # what", "indices", races=True),
    Mutant("gathered before it is handed back", GATHER, "phase ^ 1)", "phase)", "indices", (Status.HANG,), races=True),
    Mutant("rows that may still be copied", GATHER, "gathered_arrive(ring.full.index(2 * slot + part), "
           "increment_count=False)", "mbarrier.arrive(ring.full.index(2 * slot + part), count=128)", "indices", STUCK,
           races=True),
    Mutant("half handed back early", FORWARD, f"{HEARD}\n        {PRODUCT}\n        hand_back(ring, slot, 0)",
           f"hand_back(ring, slot, 0)\n        {HEARD}\n        {PRODUCT}", "plain", STUCK, races=True),
    Mutant("maxima of the turn before", FORWARD, HEARD, "row_max = hear(boxes[1], pair + 1)", "plain", STUCK,
           races=True),
    Mutant("slots filled in the wrong phase", RINGS, "mbarrier.wait(ring.empty.index(2 * slot), phase ^ 1)",
           "mbarrier.wait(ring.empty.index(2 * slot), phase)", "plain", (Status.HANG,), races=True),
    Mutant("part never handed back", FORWARD, "hand_back(ring, slot + 1, 1)", "pass", "plain", (Status.HANG,),
           races=True),
    Mutant("scores that may still be computed", FORWARD, "warpgroup_mma_wait(1, deps=[scores])",
           "warpgroup_mma_wait(2, deps=[scores])", "plain", (Status.LAUNCH_ERROR,), races=True),
)  # fmt: skip

PLANTED: Final = Planted(GATES, MUTANTS)
