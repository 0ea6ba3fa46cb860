"""Triton's hash of its files is taken once, whoever asks first, and a machine without Triton is no error."""

import importlib
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.executor import compiler_key


class SlowHash:
    """Stands in for ``triton.runtime.cache``: a hash that ends when a test says so, and that keeps its answer."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.hashed = 0
        self.is_known = False

    def triton_key(self) -> None:
        if self.is_known:
            return
        self.begun.set()
        assert self.may_end.wait(20.0)
        self.hashed += 1
        self.is_known = True


def test_who_comes_second_waits_for_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SlowHash()
    monkeypatch.setattr(compiler_key, "_import_compiler", lambda: slow)
    compiler_key.begin_hashing()
    assert slow.begun.wait(20.0)
    second = threading.Thread(target=compiler_key.hash_compiler)
    second.start()
    assert second.is_alive()
    slow.may_end.set()
    second.join(20.0)
    assert not second.is_alive()
    assert slow.hashed == 1


@pytest.mark.parametrize("missing", ["triton", "its hash"])
def test_what_is_missing_is_left_to_the_compile_to_tell(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    def import_module(name: str) -> Any:
        if missing == "triton":
            raise ImportError(name)
        return SimpleNamespace()

    monkeypatch.setattr(importlib, "import_module", import_module)
    compiler_key.hash_compiler()


def test_triton_has_a_hash_that_is_kept() -> None:
    cache = pytest.importorskip("triton.runtime.cache")
    compiler_key.hash_compiler()
    before = cache.triton_key.cache_info().misses
    compiler_key.hash_compiler()
    assert cache.triton_key.cache_info().misses == before == 1
