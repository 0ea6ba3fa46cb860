"""Bugs for copies of paged prefill, and the gate that must catch them."""

from pathlib import Path
from typing import Any, Final

from autotune.correctness import Verdict, check_config, make_cases
from autotune.shape import PagedShape
from autotune.space import Config
from autotune.trial import Status
from tests.kernels.planting import Bug, load_copy

SIZES: Final[dict[str, Any]] = {"batch": 2, "heads": 2, "kv_heads": 1, "seq_q": 48, "max_context": 300, "head_dim": 32}
SHAPES: Final = {
    "plain": PagedShape(**SIZES, dtype="float16"),
    "window": PagedShape(**SIZES, dtype="float16", window=60, sinks=True, alibi=True),
}
CONFIG: Final = Config(BLOCK_Q=64, SMALL_Q=16, BLOCK_K=32, order="head", num_warps=4, num_stages=3)
CAUGHT: Final = (Status.NAN_RESULT, Status.WRONG_RESULT)  # which of them may depend on what memory held before

FORWARD: Final = "forward.py"
BUGS: Final = (
    Bug("stale pages", FORWARD, "pages = next_pages", "pages = pages", "plain"),
    Bug("shows a future key", FORWARD, "visible = ahead <= 0", "visible = ahead <= 1", "plain"),
    Bug("top left causal", FORWARD, "offset = length - count ", "offset = tl.minimum(length - count, 0) ", "plain"),
    Bug("window too long", FORWARD, "(ahead > -window)", "(ahead >= -window)", "window"),
    Bug("unmasked diagonal", FORWARD, "full_stop = tl.maximum(tl.maximum(first + 1, 0) //",
        "full_stop = tl.maximum(tl.maximum(last + 1, 0) //", "plain"),
    Bug("unmasked far edge", FORWARD, "full_low = tl.maximum(last - window", "full_low = tl.maximum(first - window",
        "window"),
    Bug("lost tile", FORWARD, "BLOCK_Q) - 1 - behind", "BLOCK_Q) - 2 - behind", "plain"),
    Bug("unwritten row", FORWARD, "is_row = rows < count * GROUP", "is_row = rows < count * GROUP - 1", "plain"),
    Bug("one head for all", FORWARD, "kv_heads * GROUP) + heads", "kv_heads * GROUP) + kv_head * GROUP", "plain"),
    Bug("sequences share slots", FORWARD, "GROUP // BLOCK_Q + sequence", "GROUP // BLOCK_Q", "plain"),
    Bug("too few slots", "launch.py", '// options["BLOCK_Q"] + batch)', '// options["BLOCK_Q"] + 1)', "plain"),
    Bug("missing rescale", FORWARD, "accumulator * rescale[:, None]", "accumulator", "plain"),
    Bug("wrong first pages", FORWARD, "load_pages(table_row, full_stop,", "load_pages(table_row, full_start,",
        "plain"),
    Bug("NaN where no key is seen", FORWARD, "if MASKED else new_max", "if False else new_max", "plain"),
    Bug("unscaled slopes", FORWARD, ".to(tl.float32) * LOG2_E", ".to(tl.float32)", "window"),
)  # fmt: skip


def judge_copy(bug: Bug | None, shape: str, folder: Path, device: str) -> Verdict:
    """What the correctness gate says about a copy."""
    kernel = load_copy("paged_prefill", bug, folder)
    return check_config(kernel, CONFIG, make_cases(kernel, SHAPES[shape], device=device))
