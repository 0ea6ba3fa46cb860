"""Copies of paged decode with one planted bug each, and the gate that must catch them."""

import importlib
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from autotune.correctness import Verdict, check_config, make_cases
from autotune.operation import Kernel
from autotune.shape import PagedShape
from autotune.space import Config
from autotune.trial import Status

SOURCE: Final = Path(__file__).parents[3] / "kernels" / "paged_decode"
SIZES: Final[dict[str, Any]] = {"batch": 2, "heads": 2, "kv_heads": 1, "max_context": 1024, "head_dim": 32}
SHAPES: Final = {
    "plain": PagedShape(**SIZES, dtype="float16"),
    "window": PagedShape(**SIZES, dtype="float16", window=100, seq_q=2, sinks=True),
    "many heads": PagedShape(**{**SIZES, "heads": 4, "kv_heads": 4, "max_context": 150}, dtype="float16"),
}
CAUGHT: Final = (Status.NAN_RESULT, Status.WRONG_RESULT)  # which of them may depend on what memory held before


def config_of(schedule: str) -> Config:
    """``split`` merges in the program that finishes last, ``flat`` in a second kernel."""
    amounts: dict[str, dict[str, int | str]] = {
        "split": {"NUM_SPLITS": 2, "COMBINE": "last", "PARTIALS": "float32"},
        "flat": {"PROGRAMS_PER_SM": 1},
    }
    tile = {"BLOCK_ROWS": 16, "HEADS": 1, "BLOCK_K": 64, "num_warps": 4, "num_stages": 3}
    return Config({"schedule": schedule, **amounts[schedule], **tile})


@dataclass(frozen=True, slots=True)
class Mutant:
    """A bug: in ``file``, ``right`` is replaced by ``wrong``; it shows under that schedule and shape."""

    name: str
    file: str
    right: str
    wrong: str
    schedule: str
    shape: str


MUTANTS: Final = (
    Mutant("stale pages", "forward.py", "pages = next_pages\n    accu", "pages = pages\n    accu", "split", "plain"),
    Mutant("unmasked tail", "fold.py", "visible = ahead <= 0", "visible = ahead <= 1", "split", "plain"),
    Mutant("window too long", "fold.py", "ahead > -window", "ahead >= -window", "split", "window"),
    Mutant("wrong half", "forward.py", "2 * program + began", "2 * program + 1 - began", "flat", "plain"),
    Mutant("wrong half of many", "forward.py", "2 * program + began", "2 * program + 1 - began", "flat", "many heads"),
    Mutant("lost tile", "forward.py", "leaves, next_first, tile", "leaves, next_first + 1, tile", "flat", "plain"),
    Mutant("stale queries", "forward.py", "k_scale, following,", "k_scale, sequence,", "flat", "plain"),
    Mutant("unweighted parts", "partials.py", "parts * weights[:, :, None]", "parts", "split", "plain"),
    Mutant("no empty sequence", "tiles.py", "tl.maximum(tiles, 1)", "tl.maximum(tiles, 0)", "flat", "plain"),
    Mutant("never merges", "partials.py", "== count - 1", "== count", "split", "plain"),
    Mutant("sink per part", "softmax.py", "row_sum * rescale + tl.exp2(sinks", "row_sum * rescale + 2 * tl.exp2(sinks",
           "split", "window"),
)  # fmt: skip


def load(mutant: Mutant | None, folder: Path) -> Kernel:
    """Copy the kernel's package into the folder, plant the bug, and import the copy."""
    package = "paged_" + (mutant.name.replace(" ", "_") if mutant else "unchanged")
    if package not in sys.modules:
        shutil.copytree(SOURCE, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
        if mutant is not None:
            path = folder / package / mutant.file
            text = path.read_text()
            assert text.count(mutant.right) == 1, f"{mutant.file} has {mutant.right!r} {text.count(mutant.right)} times"
            path.write_text(text.replace(mutant.right, mutant.wrong))
        for path in (folder / package).glob("*.py"):
            path.write_text(path.read_text().replace("autotune.kernels.paged_decode", package))
        sys.path.insert(0, str(folder))
    try:
        kernel: Kernel = importlib.import_module(f"{package}.kernel").KERNEL
    finally:
        if str(folder) in sys.path:
            sys.path.remove(str(folder))
    return kernel


def judge_copy(mutant: Mutant | None, schedule: str, shape: str, folder: Path, device: str) -> Verdict:
    """What the correctness gate says about a copy."""
    kernel = load(mutant, folder)
    return check_config(kernel, config_of(schedule), make_cases(kernel, SHAPES[shape], device=device))
