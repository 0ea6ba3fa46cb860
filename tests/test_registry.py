"""Operations are found by name, and what they need is said where it is missing."""

import importlib

import pytest

from autotune import registry
from autotune.errors import MissingDependencyError


def test_a_kernel_without_its_compiler_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise ModuleNotFoundError("No module named 'triton'", name="triton")

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(MissingDependencyError, match="triton is not installed; `pip install torch triton`"):
        registry._load("somewhere:KERNEL")


def test_any_other_missing_module_is_named_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise ModuleNotFoundError("No module named 'mine'", name="mine")

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(ModuleNotFoundError, match="mine"):
        registry._load("somewhere:KERNEL")
