"""Packages that do not import: which, why, and the command that mends it; needs nothing but Python itself."""

import importlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import TracebackType
from typing import Final

from autotune.errors import one_line

# What the commands need, as pyproject.toml declares it, by the name of the module.
REQUIRED: Final = {
    "click": "click>=8.1",
    "rich": "rich>=13",
    "numpy": "numpy",
    "pyarrow": "pyarrow>=17",
    "optuna": "optuna>=5,<6",
    "threadpoolctl": "threadpoolctl>=3",
}
IMPORT_SECONDS: Final = 120.0  # torch takes two to ten


@dataclass(frozen=True, slots=True)
class BrokenPackage:
    """A package, why it is not imported, and what mends it."""

    name: str
    reason: str
    fix: str

    def __str__(self) -> str:
        return (
            f"{self.name} cannot be imported: {self.reason}; `{self.fix}` mends it, and `autotune doctor` checks more"
        )


def broken_package(error: BaseException) -> BrokenPackage | None:
    """Return the package of somebody else whose import an exception ended; None for an exception of another origin."""
    inner = list(_importing(error.__traceback__))
    if isinstance(error, ModuleNotFoundError) and error.name is not None and not inner:
        inner = [error.name.partition(".")[0]]
    if not inner or inner[0] in ("autotune", *sys.stdlib_module_names):
        return None
    return _broken(inner[0], error)


def _importing(traceback: TracebackType | None) -> Iterator[str]:
    """Yield the packages that are being imported in a traceback, but this one, from outside in."""
    while traceback is not None:
        frame = traceback.tb_frame
        root = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if frame.f_code.co_name == "<module>" and root not in ("autotune", "__main__", "runpy", "importlib"):
            yield root
        traceback = traceback.tb_next


def _broken(name: str, error: BaseException) -> BrokenPackage:
    """Describe a package that was not imported; one that it needs itself, where that is absent."""
    absent = error.name if isinstance(error, ModuleNotFoundError) else None
    is_absent = absent is not None and "." not in absent  # without a part of itself it is broken
    name = absent if absent is not None and is_absent else name
    wanted = f"'{REQUIRED[name]}'" if name in REQUIRED else name
    again = "" if is_absent else "--force-reinstall "
    return BrokenPackage(
        name, "it is not installed" if is_absent else one_line(error)[:200], f"pip install {again}{wanted}"
    )


def examine_required() -> list[BrokenPackage]:
    """Import what the commands need, and return what does not."""
    found = []
    for name in REQUIRED:
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:
            found.append(_broken(name, error))
    return list(dict.fromkeys(found))


def report(found: list[BrokenPackage]) -> None:
    """Print the doctor's lines for packages without which it finds nothing else."""
    for each in found:
        print(f"--  {each.name:15} cannot be imported: {each.reason}")
        print(f"{'':19} fix: {each.fix}")


@cache
def why_no_import(name: str) -> str | None:
    """Return why a package that is installed cannot be imported, by a process of its own; None where it can."""
    if name in sys.modules:
        return None
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", f"import {name}"], capture_output=True, text=True, timeout=IMPORT_SECONDS
        )
    except (OSError, subprocess.SubprocessError) as error:
        return one_line(error)
    words = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    return None if done.returncode == 0 else words[-1]
