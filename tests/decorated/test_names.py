"""A kernel is found by the name that a module has bound it to, whatever the name of its function."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest
import torch

from autotune import dispatch, references, registry
from autotune.console.kernel_option import named_operation
from autotune.device import NVIDIA_H200
from autotune.errors import UnknownNameError, UsageError
from autotune.executor.messages import refer_to_problem

LIBRARY: Final = """
import triton
import triton.language as tl

@triton.jit
def _fill(x_ptr, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + offsets, offsets, mask=offsets < size)
"""
HEADER: Final = """
import triton
import autotune
from a_library import _fill

def tuned(block, **named):
    return autotune.tuned([triton.Config({"BLOCK": block})], key=["size"], inputs={"x_ptr": ("size",)},
                          grid=lambda meta: (triton.cdiv(meta["size"], meta["BLOCK"]),), **named)(_fill)
"""
DECORATE: Final = HEADER.partition("def tuned")[0] + (
    'decorate = autotune.tuned([triton.Config({"BLOCK": 64})], key=["size"], name="filled")\n'
)


@pytest.fixture
def make_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Import a module of that source beside the library whose kernel it tunes."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(registry, "_unbound", {})
    (tmp_path / "a_library.py").write_text(LIBRARY)
    for name in ("a_library", "a_user"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    def make(source: str) -> ModuleType:
        (tmp_path / "a_user.py").write_text(source)
        importlib.invalidate_caches()
        return importlib.import_module("a_user")

    return make


@pytest.mark.parametrize(
    ("line", "reference"),
    [
        ("other_name = decorate(_fill)", "a_user:other_name"),
        ("_fill = decorate(_fill)", "a_user:_fill"),
        ("even = triton.heuristics({})(decorate(_fill))", "a_user:even"),
    ],
    ids=["another-name", "its-functions-name", "under-heuristics"],
)
def test_a_kernel_of_a_library_is_found_where_it_was_tuned(
    make_module: Callable[[str], ModuleType],
    line: str,
    reference: str,
) -> None:
    made = make_module(f"{DECORATE}\n{line}\n")
    assert registry.decorated_kernel("filled") == reference
    found = getattr(made, reference.partition(":")[2])
    operation = registry.get_operation("filled")
    assert operation is (found.fn if line.startswith("even") else found).operation
    shape = operation.shape_class(size=64)
    assert dispatch.get_kernel(shape, device=NVIDIA_H200.name).config["BLOCK"] == 64
    assert named_operation(None, reference) == "filled"


def test_another_process_finds_it_by_the_message_of_a_search(
    make_module: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = make_module(f"{DECORATE}\nother_name = decorate(_fill)\n").other_name.shape_class(size=64)
    message = refer_to_problem(registry.get_operation("filled"), shape)
    for names in (registry._operations, registry._implementations):
        for key in [each for each in names if "filled" in each]:
            del names[key]  # type: ignore[arg-type]
    monkeypatch.setattr(references, "_loaded", {})
    del sys.modules["a_user"]
    operation, again = message.resolve()
    assert operation is sys.modules["a_user"].other_name.operation
    assert again.as_dict() == shape.as_dict()


def test_two_kernels_of_one_function_need_names(make_module: Callable[[str], ModuleType]) -> None:
    made = make_module(f"{HEADER}\nfirst = tuned(64, name='shared')\nsecond = tuned(128, name='shared')\n")
    assert registry.decorated_kernel("shared") == "a_user:second"
    with pytest.raises(UsageError, match="a_user:first: shared is the operation of a_user:second now; give one"):
        made.first[(1,)](torch.empty(64), 64)
    with pytest.raises(UsageError, match="--kernel='a_user:first': shared is the operation of a_user:second; give one"):
        named_operation(None, "a_user:first")


def test_one_that_only_a_container_holds_is_no_operation(make_module: Callable[[str], ModuleType]) -> None:
    made = make_module(f"{HEADER}\nKERNELS = {{64: tuned(64, name='held')}}\n")
    assert made.KERNELS[64].reference == ""
    with pytest.raises(UnknownNameError, match="'held' is unknown"):
        registry.get_operation("held")


def test_the_name_of_an_operation_of_another_module_is_taken(make_module: Callable[[str], ModuleType]) -> None:
    with pytest.raises(
        UnknownNameError, match=r"'scale' is registered already as tests\.outside\.decorated_kernels:scale"
    ):
        make_module(f"{HEADER}\nmine = tuned(64, name='scale')\n")
