"""A kernel that is defined again replaces the one of its name, and others' answers stay."""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

from autotune import dispatch, registry
from autotune.decorated import DecoratedKernel
from autotune.device import NVIDIA_H200
from autotune.dispatch import table_reading
from tests.outside.decorated_kernels import scale, total

SOURCE: Final = """
import triton
import triton.language as tl
import autotune

@autotune.tuned([triton.Config({{"BLOCK": {block}}})], key=["size"], name="cell")
@triton.jit
def cell(x_ptr, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + offsets, offsets + {added}, mask=offsets < size)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two sources of one second look alike to Python's cache
    (tmp_path / "cells.py").write_text(SOURCE.format(block=64, added=1))
    monkeypatch.delitem(sys.modules, "cells", raising=False)
    return importlib.import_module("cells")


def served(kernel: DecoratedKernel) -> int:
    shape = kernel.shape_class(size=256)
    found = dispatch.get_kernel(shape, device=NVIDIA_H200.name, operation="cell").config["BLOCK"]
    assert isinstance(found, int)
    return found


def test_a_kernel_that_is_defined_again_is_served_as_it_is_now(module: ModuleType) -> None:
    before = module.cell
    assert served(before) == 64
    assert registry.load_definition("cell") is before.definition
    first = before.implementation.source_hash
    Path(str(module.__file__)).write_text(SOURCE.format(block=128, added=2))
    importlib.reload(module)
    assert module.cell is not before
    assert served(module.cell) == 128
    assert registry.get_operation("cell") is module.cell.operation
    assert registry.load_definition("cell") is module.cell.definition
    assert module.cell.implementation.source_hash != first


def test_registering_reads_no_table_again_and_keeps_the_picks_of_other_operations(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = scale.shape_class(size=256)
    pick = dispatch.get_kernel(shape, device=NVIDIA_H200.name)
    read: list[int] = []
    monkeypatch.setattr(table_reading, "forget", lambda: read.append(1))
    del registry._kernels._kernels["cell"]
    importlib.reload(module)
    assert dispatch.get_kernel(shape, device=NVIDIA_H200.name) is pick
    registry.register_implementation("scale", "second", f"{total.reference}.implementation")
    with pytest.warns(RuntimeWarning, match="expected an Implementation of that operation"):
        assert dispatch.get_kernel(shape, device=NVIDIA_H200.name) is not pick
    assert not read
