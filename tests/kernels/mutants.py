"""Copies of the kernel with one planted bug each, and the gate that must catch them."""

import importlib
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from autotune.correctness import Verdict, check_config, make_cases
from autotune.operation import Kernel
from autotune.shape import AttentionShape
from autotune.space import Config
from autotune.trial import Status

SOURCE: Final = Path(__file__).parents[2] / "kernels" / "flash_attention"
CONFIG: Final = Config(BLOCK_Q=128, BLOCK_K=128, num_warps=8, num_stages=2, loads="pointer")

SIZES: Final[dict[str, Any]] = {"batch": 1, "heads": 2, "head_dim": 64, "dtype": "float16"}
SHAPES: Final = {
    "causal": AttentionShape(**SIZES, seq_q=1024, causal=True),
    "full": AttentionShape(**SIZES, seq_q=1024),
    "window": AttentionShape(**SIZES, seq_q=1024, causal=True, window=200),
    "blind": AttentionShape(**SIZES, seq_q=1024, seq_kv=600, causal=True),  # the first queries see no key
    "short": AttentionShape(**{**SIZES, "heads": 4, "kv_heads": 2}, seq_q=64),
    "float32": AttentionShape(**{**SIZES, "dtype": "float32"}, seq_q=1024, causal=True),
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """A bug: in ``file``, ``right`` is replaced by ``wrong``; on the shape of that name it shows as ``status``."""

    name: str
    file: str
    right: str
    wrong: str
    shape: str
    status: Status


NAN, WRONG = Status.NAN_RESULT, Status.WRONG_RESULT
LAST = "partial block.\n    "  # ends the comment above the last loop over keys
MUTANTS: Final = (
    Mutant("wrong scale", "launch.py", "else scale * LOG2_E,", "else scale,", "causal", WRONG),
    Mutant("missing rescale", "forward.py", "accumulator * rescale[:, None]", "accumulator", "causal", WRONG),
    Mutant("mask hides diagonal", "forward.py", "& (ahead <= 0)", "& (ahead < 0)", "causal", WRONG),
    Mutant("mask shows one future key", "forward.py", "& (ahead <= 0)", "& (ahead <= 1)", "causal", WRONG),
    Mutant("window one too long", "forward.py", "(ahead > -window)", "(ahead >= -window)", "window", WRONG),
    Mutant("unmasked tail", "forward.py", "(keys < seq_kv)[None, :]", "(keys >= 0)[None, :]", "full", WRONG),
    Mutant("unmasked short tail", "forward.py", "(keys < seq_kv)[None, :]", "(keys >= 0)[None, :]", "short", WRONG),
    Mutant("swapped stride", "forward.py", "stride_qs, stride_qh, seq_q", "stride_qh, stride_qs, seq_q", "full", WRONG),
    Mutant("wrong KV head", "forward.py", "kv_head = head // group", "kv_head = head % 2", "short", WRONG),
    Mutant("stale accumulator", "forward.py", f"{LAST}accumulator,", f"{LAST}stale,", "causal", WRONG),
    Mutant("NaN row", "forward.py", "tl.where(row_sum == 0.0, 1.0, row_sum)", "row_sum", "blind", NAN),
    Mutant("NaN in a window", "forward.py", "if MASKED else new_max", "if False else new_max", "window", NAN),
    Mutant("unwritten row", "forward.py", "in_range = (rows < seq_q)", "in_range = (rows < seq_q - 1)", "causal", NAN),
)  # fmt: skip


def load(mutant: Mutant | None, folder: Path) -> Kernel:
    """Copy the kernel's package into the folder, plant the bug, and import the copy."""
    package = "copy_" + (mutant.name.replace(" ", "_") if mutant else "unchanged")
    shutil.copytree(SOURCE, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    if mutant is not None:
        path = folder / package / mutant.file
        text = path.read_text()
        assert text.count(mutant.right) == 1, f"{mutant.file} has {mutant.right!r} {text.count(mutant.right)} times"
        path.write_text(text.replace(mutant.right, mutant.wrong))
    for path in (folder / package).glob("*.py"):
        path.write_text(path.read_text().replace("autotune.kernels.flash_attention", package))
    sys.path.insert(0, str(folder))
    try:
        kernel: Kernel = importlib.import_module(f"{package}.kernel").KERNEL
    finally:
        sys.path.remove(str(folder))
    return kernel


def judge_copy(mutant: Mutant | None, shape: str, folder: Path, device: str) -> Verdict:
    """What the correctness gate says about a copy."""
    kernel = load(mutant, folder)
    return check_config(kernel, CONFIG, make_cases(kernel, SHAPES[shape], device=device))
