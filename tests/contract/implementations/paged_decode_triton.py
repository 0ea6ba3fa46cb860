"""Paged decode in Triton: the problems of its gate under both schedules, and the bugs that those must catch."""

import itertools
from typing import Any, Final

from autotune.shape import PagedShape
from autotune.space import Config, Value
from tests.contract.planting import Gate, Mutant, Planted

SIZES: Final[dict[str, Any]] = {"batch": 2, "heads": 2, "kv_heads": 1, "max_context": 1024, "head_dim": 32}
SHAPES: Final = {
    "plain": PagedShape(**SIZES, dtype="float16"),
    "window": PagedShape(**SIZES, dtype="float16", window=100, seq_q=2, sinks=True),
    "many heads": PagedShape(**{**SIZES, "heads": 4, "kv_heads": 4, "max_context": 150}, dtype="float16"),
}


def config_of(schedule: str, *, work: int, combine: str = "kernel", **changes: Value) -> Config:
    """Return a config of small tiles; ``work`` are splits or programs of an SM."""
    amounts: dict[str, Value] = {"PROGRAMS_PER_SM": work}
    if schedule == "split":
        amounts = {"NUM_SPLITS": work, "COMBINE": combine, "PARTIALS": "float32"}
    tile: dict[str, Value] = {"BLOCK_ROWS": 16, "HEADS": 1, "BLOCK_K": 32, "num_warps": 4, "num_stages": 3}
    return Config({"schedule": schedule, **amounts, **tile, **changes})


# ``split`` merges in the program that finishes last, ``flat`` in a second kernel.
CONFIGS: Final = {
    "split": config_of("split", work=2, combine="last", BLOCK_K=64),
    "flat": config_of("flat", work=1, BLOCK_K=64),
}


MASKS, SOFTMAX, PARTIALS = "tiles/masks.py", "tiles/softmax.py", "tiles/partials.py"
MUTANTS: Final = (
    Mutant("stale pages", "forward.py", "pages = next_pages\n    whole", "pages = pages\n    whole", "split plain"),
    Mutant("unmasked tail", MASKS, "ahead <= 0", "ahead <= 1", "split plain"),
    Mutant("window too long", MASKS, "ahead > -window", "ahead >= -window", "split window"),
    Mutant("wrong half", "forward.py", "2 * program + began", "2 * program + 1 - began", "flat plain"),
    Mutant("wrong half of many", "forward.py", "2 * program + began", "2 * program + 1 - began", "flat many heads"),
    Mutant("lost tile", "forward.py", "leaves, next_first, tile", "leaves, next_first + 1, tile", "flat plain"),
    Mutant("stale queries", "forward.py", "k_scales, following,", "k_scales, sequence,", "flat plain"),
    Mutant("unweighted parts", PARTIALS, "parts * weights[:, :, None]", "parts", "split plain"),
    Mutant("no empty sequence", "tile_list.py", "tl.maximum(tiles, 1)", "tl.maximum(tiles, 0)", "flat plain"),
    Mutant("never merges", PARTIALS, "== count - 1", "== count", "split plain"),
    Mutant("sink per part", SOFTMAX, "row_sum * rescale + tl.exp2(sinks", "row_sum * rescale + 2 * tl.exp2(sinks",
           "split window"),
)  # fmt: skip
GATED: Final = (*itertools.product(("split", "flat"), ("plain", "window")), ("flat", "many heads"))

PLANTED: Final = Planted(
    {
        f"{schedule} {name}": Gate(SHAPES[name], CONFIGS[schedule], is_slow=name == "many heads")
        for schedule, name in GATED
    },
    MUTANTS,
)
