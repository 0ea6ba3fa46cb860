"""The tensors that a kernel writes, by its source and every way that Triton's kernels store."""

import textwrap
from pathlib import Path
from typing import Any

import pytest

from autotune.decorated.signature import KernelSource, read_signature, read_source
from tests.outside.decorated_kernels import scale, step, total, transpose


def written(kernel: Any) -> set[str]:
    return set(kernel.signature.source.written)


def test_pointers_are_followed_to_the_parameters() -> None:
    assert written(scale) == {"out_ptr", "BLOCK"}  # BLOCK is of the offsets, and no tensor when it is called
    assert written(total) == {"sum_ptr"}
    assert "x_ptr" in written(step) & step.signature.source.read
    assert "y" in written(transpose) - {"x"}
    assert "x" not in written(transpose)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("tl.store(out, tl.load(x))", {"out"}),
        ("at = out + n\ntl.store(at, tl.load(x))", {"out", "n"}),
        ("out += n\ntl.store(out, 1)", {"out", "n"}),
        ("at = out\nfor i in range(n):\n    tl.store(at, i)\n    at += 64", {"out"}),
        ("tl.store(out + tl.load(x), 1)", {"out"}),  # x is an index
        ("block = tl.make_block_ptr(base=out, shape=(n,))\ntl.store(block, 1, boundary_check=(0,))", {"out", "n"}),
        ("there = tl.make_tensor_descriptor(out, [n], [1], [64])\nthere.store([0], tl.load(x))", {"out", "n"}),
        ("out.store([0], x.load([0]))", {"out"}),
        ("tl.atomic_add(out, 1)", {"out"}),
        ("at = tl.load(x).to(tl.pointer_type(tl.float16))\ntl.store(at, 1)", set()),  # a pointer that is loaded
        ("helper(x, out)", {"out"}),
        ("a, at = x, out\ntl.store(at, 1)", {"x", "out"}),  # a pair is not taken apart
    ],
)
def test_stores(body: str, expected: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"""
import triton
import triton.language as tl

@triton.jit
def helper(source, target):
    tl.store(target, tl.load(source))

@triton.jit
def kernel(x, out, n):
{textwrap.indent(body, "    ")}
"""
    (tmp_path / "stored_kernel.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    import importlib
    import sys

    sys.modules.pop("stored_kernel", None)
    kernel = importlib.import_module("stored_kernel").kernel
    assert set(read_signature(kernel).source.written) == expected


def test_what_a_source_is_asked_beside() -> None:
    found: KernelSource = read_source(total.base_fn)
    assert (found.has_masks, found.has_atomics) == (True, True)
    assert read_source(transpose.base_fn).texts == {"KIND"}
    assert transpose.shape_class.__annotations__["KIND"] is str


def test_a_hash_counts_what_is_computed_and_not_what_is_tried(tmp_path: Path) -> None:
    from autotune.implementation import source_hash

    def hash_of(decorator: str, body: str) -> str:
        path = tmp_path / f"k{len(list(tmp_path.iterdir()))}.py"
        path.write_text(f"SIZES = [64]\n{decorator}\ndef kernel(x):\n    return {body}\n")
        return source_hash((path,), ("kernel",), counts_decorators=False)

    assert hash_of("@tuned(SIZES)", "x") == hash_of("@tuned([64, 128])", "x") != hash_of("@tuned(SIZES)", "x + 1")
