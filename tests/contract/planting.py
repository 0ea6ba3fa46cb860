"""Copies of a Triton kernel, with the tiles that it shares, and with one planted bug each; and the gate's verdict."""

import importlib
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from autotune.correctness import Verdict, check_config, make_cases
from autotune.implementation import Kernel
from autotune.registry import load_definition
from autotune.shape import Shape
from autotune.space import Config
from autotune.trial import Status

KERNELS: Final = Path(__file__).parents[2] / "kernels"
CAUGHT: Final = (Status.NAN_RESULT, Status.WRONG_RESULT)  # which of them may depend on what memory held before
NAN: Final = (Status.NAN_RESULT,)
WRONG: Final = (Status.WRONG_RESULT,)


@dataclass(frozen=True, slots=True)
class Gate:
    """A problem and a config that the correctness gate is asked about; one that takes the interpreter long is slow."""

    shape: Shape
    config: Config
    is_slow: bool = False


@dataclass(frozen=True, slots=True)
class Mutant:
    """In ``file``, ``right`` is replaced by ``wrong``; it shows at the gate of that name, as one of ``statuses``.

    Files of ``tiles/`` are those that kernels share. One that ``races`` may hang a GPU, or come out right on it by
    luck: it is judged by a simulator alone.
    """

    name: str
    file: str
    right: str
    wrong: str
    gate: str
    statuses: tuple[Status, ...] = CAUGHT
    races: bool = False


@dataclass(frozen=True, slots=True)
class Planted:
    """The gates of an implementation, which it passes, and the bugs that they must catch."""

    gates: dict[str, Gate]
    mutants: tuple[Mutant, ...]


def package_of(operation: str, implementation: str, mutant: Mutant | None) -> str:
    """Return the name of the package that a copy is imported as."""
    return f"{operation}_{implementation}_{mutant.name.replace(' ', '_') if mutant else 'unchanged'}"


def source_of(operation: str, implementation: str, mutant: Mutant) -> Path:
    """Return the file of the repository that the mutant changes in a copy."""
    folder = KERNELS if mutant.file.startswith("tiles/") else KERNELS / operation / implementation
    return folder / mutant.file


def load_copy(operation: str, implementation: str, mutant: Mutant | None, folder: Path) -> Kernel:
    """Copy that implementation's kernel and the tiles into the folder, plant the bug, and import the copy."""
    package = package_of(operation, implementation, mutant)
    if package not in sys.modules:
        source = KERNELS / operation / implementation
        for origin, target in ((source, package), (KERNELS / "tiles", f"{package}/tiles")):
            shutil.copytree(origin, folder / target, ignore=shutil.ignore_patterns("__pycache__"))
        if mutant is not None:
            path = folder / package / mutant.file
            text = path.read_text()
            assert text.count(mutant.right) == 1, f"{mutant.file} has {mutant.right!r} {text.count(mutant.right)} times"
            path.write_text(text.replace(mutant.right, mutant.wrong))
        for path in (folder / package).rglob("*.py"):
            text = path.read_text().replace(f"autotune.kernels.{operation}.{implementation}", package)
            path.write_text(text.replace("autotune.kernels.tiles", f"{package}.tiles"))
        sys.path.insert(0, str(folder))
    try:
        copy: Kernel = importlib.import_module(f"{package}.kernel").KERNEL
    finally:
        if str(folder) in sys.path:
            sys.path.remove(str(folder))
    return copy


def judge_copy(
    operation: str, implementation: str, gate: Gate, mutant: Mutant | None, folder: Path, device: str
) -> Verdict:
    """Judge a copy by the correctness gate, every output of it."""
    kernel, definition = load_copy(operation, implementation, mutant, folder), load_definition(operation)
    is_small = hasattr(gate.shape, "lengths")  # a problem of a gate alone, with sequences of its own
    shapes = (gate.shape,) if is_small else definition.check_shapes(gate.shape)
    cases = make_cases(definition, shapes, device=device)
    return check_config(kernel, gate.config, cases, every_output=True)
