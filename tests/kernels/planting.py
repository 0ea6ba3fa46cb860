"""Copies of a kernel's package with one planted bug each."""

import importlib
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from autotune.operation import Kernel

KERNELS: Final = Path(__file__).parents[2] / "kernels"


@dataclass(frozen=True, slots=True)
class Bug:
    """In ``file``, ``right`` is replaced by ``wrong``; it shows on the problem of that name."""

    name: str
    file: str
    right: str
    wrong: str
    shows_on: str


def load_copy(kernel: str, bug: Bug | None, folder: Path) -> Kernel:
    """Copy that kernel's package into the folder, plant the bug, and import the copy."""
    package = f"{kernel}_{bug.name.replace(' ', '_') if bug else 'unchanged'}"
    if package not in sys.modules:
        shutil.copytree(KERNELS / kernel, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
        if bug is not None:
            path = folder / package / bug.file
            text = path.read_text()
            assert text.count(bug.right) == 1, f"{bug.file} has {bug.right!r} {text.count(bug.right)} times"
            path.write_text(text.replace(bug.right, bug.wrong))
        for path in (folder / package).glob("*.py"):
            path.write_text(path.read_text().replace(f"autotune.kernels.{kernel}", package))
        sys.path.insert(0, str(folder))
    try:
        copy: Kernel = importlib.import_module(f"{package}.kernel").KERNEL
    finally:
        if str(folder) in sys.path:
            sys.path.remove(str(folder))
    return copy
