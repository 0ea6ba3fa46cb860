"""A disk that fails at a chosen call, and a writer to kill."""

import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from autotune.device import NVIDIA_H200
from autotune.table import Store
from tests.table import sample

CALLS = ("mkdir", "write", "fsync", "replace", "unlink")


def fail_call(monkeypatch: pytest.MonkeyPatch, fatal: int, code: int) -> Callable[[], int]:
    """Make the Nth call that changes the disk fail with an errno; what is returned tells how many there were."""
    calls = 0

    def failing(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == fatal:
                raise OSError(code, os.strerror(code))
            return original(*arguments, **named)

        return call

    for name in CALLS:
        monkeypatch.setattr(os, name, failing(getattr(os, name)))
    return lambda: calls


def write_until_killed(root: Path, first: int, acknowledge: "Connection[int, int]") -> None:
    """Append one trial after another, numbered from ``first``, and send the number of each that is kept."""
    store = Store(root)
    for number in range(first, first + 10_000):
        store.append([sample.trial(number)])
        acknowledge.send(number)
        if number % 5 == 4:
            store.compact(sample.NAME, NVIDIA_H200)
