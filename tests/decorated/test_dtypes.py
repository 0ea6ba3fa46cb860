"""The dtype of a shape is one thing for a search, which is told one, and for a launch, which sees tensors."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import autotune
from tests.contract.interpreting import interpret

CONFIGS = [triton.Config({"BLOCK": 128})]


def made(shape: Any) -> dict[str, Any]:
    """Return a tensor of fp32 and one of the shape's dtype, of those that can be drawn."""
    dtype = getattr(torch, shape.dtype)
    x = torch.randn(shape.size, dtype=dtype)
    return {"max_ptr": torch.empty(shape.size), "x_ptr": x, "size": shape.size}


def made_alike(shape: Any) -> dict[str, Any]:
    x = torch.empty(shape.size, dtype=torch.bfloat16)
    return {"max_ptr": torch.empty(shape.size), "x_ptr": x, "size": shape.size}


def decorate(inputs: Any) -> Any:
    @autotune.tuned(CONFIGS, key=["size"], inputs=inputs, grid=(1,))
    @triton.jit
    def largest(max_ptr, x_ptr, size, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(max_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < size), mask=offsets < size)

    return largest


def launched(kernel: Any, dtype: torch.dtype) -> Any:
    named: Mapping[str, Any] = {"max_ptr": torch.empty(8), "x_ptr": torch.empty(8, dtype=dtype), "size": 8}
    return kernel.shape_of(named)


@pytest.mark.parametrize("inputs", [{"max_ptr": ("size", "float32"), "x_ptr": ("size",)}, made])
def test_a_first_tensor_that_is_always_fp32_does_not_part_a_launch_from_its_row(inputs: Any) -> None:
    kernel = decorate(inputs)
    for dtype in ("float16", "bfloat16", "float32"):
        searched = kernel.shape_class(size=8, dtype=dtype)
        assert searched == launched(kernel, getattr(torch, dtype))
        assert searched.dtype == dtype


def test_a_dtype_that_the_inputs_do_not_heed_is_not_kept() -> None:
    kernel = decorate(made_alike)
    searched = kernel.shape_class(size=8, dtype="float16")
    assert (searched.dtype, searched.dtypes) == ("float32", "float32+bfloat16")
    assert searched == launched(kernel, torch.bfloat16)


def test_dtypes_that_no_dtype_makes_leave_that_of_the_first_tensor() -> None:
    assert launched(decorate(made), torch.int8).dtype == "float32"
    assert launched(decorate(made_alike), torch.float16).dtype == "float32"


def test_a_kernel_without_inputs_has_the_dtype_of_its_first_tensor() -> None:
    assert launched(decorate(None), torch.bfloat16).dtype == "float32"


def keys_of_calls() -> int:
    """Launch with an argument that is a number, a tensor, and one of another dtype; return how many keys differ."""

    @autotune.tuned(CONFIGS, key=["size"], inputs={"out_ptr": ("size",), "scale": 1.0}, grid=(1,))
    @triton.jit
    def fill(out_ptr, scale, size, BLOCK: tl.constexpr):
        offsets = tl.arange(0, BLOCK)
        tl.store(out_ptr + offsets, 1.0, mask=offsets < size)

    for scale in (1.0, torch.ones(1), torch.ones(1, dtype=torch.float16), 2.0):
        fill[(1,)](torch.empty(8), scale, 8)
        fill[(1,)](out_ptr=torch.empty(8), scale=scale, size=8)
    return len(fill.cache)


def test_an_argument_that_was_a_number_parts_calls_once_it_is_a_tensor() -> None:
    assert interpret(keys_of_calls) == 2 * 3  # by position, and by name
