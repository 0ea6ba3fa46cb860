"""A disk that fails at a chosen call."""

import os
from collections.abc import Callable
from typing import Any

import pytest

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
