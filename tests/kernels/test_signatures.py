"""Sources of kernels: no wall of arguments, and every module that a launch reaches counts in the source's hash."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from autotune.registry import get_implementation

KERNELS: Final = Path(__file__).parents[2] / "kernels"
ROOT: Final = KERNELS.parent
MOST_PARAMETERS: Final = 20
OPERATIONS: Final = ("flash_attention", "flash_attention_varlen", "paged_decode", "paged_prefill")
# Reached by launches, and no part of what they compute.
COUNTERS: Final = {"autotune/space.py", "autotune/device.py"}


def jit_functions(text: str) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            decorators = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
            if any(ast.unparse(each) == "triton.jit" for each in decorators):
                yield node


def count_parameters(function: ast.FunctionDef) -> int:
    return len(function.args.posonlyargs) + len(function.args.args) + len(function.args.kwonlyargs)


def test_no_signature_is_a_wall() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {function.name}": count_parameters(function)
        for path in KERNELS.rglob("*.py")
        for function in jit_functions(path.read_text(encoding="utf-8"))
    }
    assert len(found) > 40
    assert {name: count for name, count in found.items() if count > MOST_PARAMETERS} == {}


def test_parameters_of_every_kind_are_counted() -> None:
    text = "@triton.jit(do_not_specialize=['b'])\ndef kernel(a, /, b, *, C: tl.constexpr = 1):\n    pass\n"
    assert [count_parameters(function) for function in jit_functions(text)] == [3]


def imported(path: Path) -> set[Path]:
    """Return the files of ours that a file imports at its top."""
    names = [
        node.module.removeprefix("autotune.").replace(".", "/")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("autotune.")
    ]
    found = {folder / f"{name}.py" for name in names for folder in (ROOT, ROOT / "autotune")}
    return {file for file in found if file.is_file() and not file.is_relative_to(ROOT / "autotune" / "kernels")}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_hash_counts_every_module_that_the_launch_reaches(operation: str) -> None:
    sources = {path.resolve() for path in get_implementation(operation, "triton").sources}
    assert all(path.is_file() for path in sources)
    pending, reached = [KERNELS / operation / "triton" / "launch.py"], set()
    while pending:
        path = pending.pop().resolve()
        if path not in reached:
            reached.add(path)
            pending.extend(imported(path))
    missing = {str(path.relative_to(ROOT)) for path in reached - sources}
    assert {name for name in missing if name not in COUNTERS and not name.startswith("autotune/")} == set()
