"""Paged decode over latents in Triton: the problems of its gate, and the bugs that those must catch."""

from typing import Any, Final

from autotune.shape import PagedShape
from autotune.space import Config, Value
from tests.contract.planting import WRONG, Gate, Mutant, Planted

SIZES: Final[dict[str, Any]] = {"batch": 2, "max_context": 150, "head_dim": 288, "page_size": 8, "dtype": "float16"}


def config_of(**changes: Value) -> Config:
    """Return a config of the smallest tiles, two splits a sequence."""
    tile: dict[str, Value] = {"BLOCK_ROWS": 16, "BLOCK_K": 32, "SCORES": "each", "num_warps": 4, "num_stages": 2}
    return Config({"NUM_SPLITS": 2, **tile, **changes})


GATES: Final = {
    "plain": Gate(PagedShape(**SIZES, heads=3), config_of()),
    "window": Gate(PagedShape(**SIZES, heads=3, seq_q=2, window=40, sinks=True), config_of()),
    "blocks": Gate(PagedShape(**SIZES, heads=18), config_of(NUM_SPLITS=1, BLOCK_K=64)),  # of rows, two
    "capped": Gate(PagedShape(**SIZES, heads=3, softcap=True), config_of(NUM_SPLITS=1)),
    "shared": Gate(PagedShape(**SIZES, heads=3), config_of(NUM_SPLITS=1, SCORES="shared")),
    # Each key a page, some of them left out, as top-k indices may be.
    "indices": Gate(PagedShape(**{**SIZES, "page_size": 1}, heads=3, alibi=True), config_of(NUM_SPLITS=3)),
}
FORWARD, MASKS = "forward.py", "tiles/masks.py"
MUTANTS: Final = (
    Mutant("stale pages", FORWARD, "pages = next_pages\n    if", "pages = pages\n    if", "plain"),
    Mutant("no second part", FORWARD, "latent.T, scores)\n    return", "latent.T)\n    return", "plain", WRONG),
    Mutant("no second part of shared scores", FORWARD, "latent.T, scores)\n        else", "latent.T)\n        else",
           "shared", WRONG),
    Mutant("keys that are left out", FORWARD, "hide_keys(scores, present[None, :],", "hide_keys(scores, None,",
           "indices", WRONG),
    Mutant("second part from the first column", FORWARD, "gather_rows(pointer + WIDTHS.latent,", "gather_rows(pointer,",
           "plain", WRONG),
    Mutant("missing rescale", FORWARD, "state.accumulator * rescale[:, None]", "state.accumulator", "plain", WRONG),
    Mutant("sum without rescale", FORWARD, "state.row_sum * rescale + tl.sum", "state.row_sum + tl.sum", "plain",
           WRONG),
    Mutant("unmasked future", MASKS, "ahead <= 0", "ahead <= 1", "window", WRONG),
    Mutant("window too long", MASKS, "ahead > -window", "ahead >= -window", "window", WRONG),
    Mutant("window too short", FORWARD, "masking.window + 1, 0)", "masking.window + 2, 0)", "window", WRONG),
    Mutant("first tile left out", FORWARD, "tl.range(first + split,", "tl.range(first + split + SPLITS,", "plain",
           WRONG),
    Mutant("rows of the first block", FORWARD, "locate_rows(0, block, TILE)", "locate_rows(0, 0, TILE)", "blocks",
           WRONG),
    Mutant("one place for all splits", FORWARD, "lane * SPLITS + split", "lane * SPLITS", "plain"),
    Mutant("wrong scale", "launch.py", "else ScoreScaling(scale * LOG2_E, 0.0)", "else ScoreScaling(scale, 0.0)",
           "plain", WRONG),
    Mutant("scale not over the softcap", "launch.py", "(scale / softcap, softcap", "(scale, softcap", "capped", WRONG),
)  # fmt: skip

PLANTED: Final = Planted(GATES, MUTANTS)
