"""Arguments of ``tune`` that are refused before anything is searched."""

import math
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import UnionType
from typing import Final

from autotune.device import NVIDIA_H200
from autotune.errors import UsageError, require_text
from autotune.executor.head_start import HeadStart
from autotune.executor.settings import GpuNames, Settings
from autotune.search import Observer
from autotune.table import Store
from autotune.trial import LARGEST_SEED

KINDS: Final[dict[str, tuple[type, str]]] = {
    "settings": (Settings, "Settings, such as autotune.executor.settings.Settings(jobs=4)"),
    "store": (Store, "a Store, such as autotune.table.Store(pathlib.Path('tables'))"),
    "observer": (Observer, "an Observer, such as autotune.tuning.Observer()"),
    "ship_to": (Path, "a Path, such as pathlib.Path('results')"),
    "begun": (HeadStart, "a HeadStart, such as autotune.executor.head_start.HeadStart()"),
}


def check_numbers(budget: float | None, trials: int | None, seed: int) -> None:
    """Validate the numbers among the arguments of ``tune``; True is none."""
    if budget is not None and not (_is_number(budget, int | float) and 0 < budget < math.inf):
        raise UsageError(f"budget={budget!r} is not allowed; expected seconds, more than 0, or None for no limit")
    if trials is not None and not (_is_number(trials, int) and trials >= 1):
        raise UsageError(f"trials={trials!r} is not allowed; expected an integer from 1, or None for no limit")
    if not (_is_number(seed, int) and 0 <= seed <= LARGEST_SEED):
        raise UsageError(f"seed={seed!r} is not allowed; expected an integer from 0 to {LARGEST_SEED}")


def check_places(
    device: object, target: object, gpus: GpuNames | None, *, must_measure: bool, must_replay: bool
) -> None:
    """Validate what says where trials run, and for what is compiled beside; not if it is here or known."""
    if must_replay and (must_measure or gpus is not None):
        beside = "must_measure=True" if must_measure else f"gpus={gpus!r}"
        raise UsageError(f"must_replay=True is not allowed with {beside}, which measures; name one of them")
    for name, given, example in (("device", device, NVIDIA_H200.name), ("target", target, NVIDIA_H200.arch)):
        if given is not None:
            require_text(name, given, example)


def check_kinds(**given: object) -> None:
    """Validate by their types those of these arguments of ``tune`` that are objects; None is allowed for each."""
    for name, value in given.items():
        kind, allowed = KINDS[name]
        if value is not None and not isinstance(value, kind):
            given_kind = type(value).__name__
            raise UsageError(f"{name}={value!r} is of type {given_kind}; expected {allowed}, or None for the default")


def check_flags(**given: object) -> None:
    """Validate switches: a text such as "no" would count as True."""
    for name, value in given.items():
        if type(value) is not bool:
            raise UsageError(f"{name}={value!r} is not allowed; expected True or False")


def _is_number(value: object, kind: type | UnionType) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def read_names(implementations: object) -> tuple[str, ...]:
    """Return names of implementations, given as one or several; each is judged where it is looked up."""
    if isinstance(implementations, str):
        return (implementations,)
    if not isinstance(implementations, Iterable):
        expected = "expected names such as ('triton', 'flex')"
        raise UsageError(f"implementations={implementations!r} is not allowed; {expected}")
    return tuple(implementations)


def why_unwritable(root: Path) -> str | None:
    """Return the reason why a folder cannot hold tables, or None; leave nothing there."""
    parent = next(path for path in (root, *root.parents) if os.path.exists(path))
    try:
        with tempfile.TemporaryFile(dir=parent):  # permissions do not tell of read-only file systems
            return None
    except OSError as error:
        return error.strerror or str(error)
