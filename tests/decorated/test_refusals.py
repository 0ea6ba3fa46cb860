"""The decorator, a shape and a call refuse bad values by the argument's name, its value and what is allowed."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from autotune.decorated import DecoratedKernel, tuned
from autotune.device import NVIDIA_H200
from autotune.errors import InvalidShapeError, MissingDependencyError, UsageError
from tests.outside.broken_kernel import broken
from tests.outside.decorated_kernels import scale, step, total, transpose

CONFIGS = [triton.Config({"BLOCK": 64, "ADDED": 0})]


@triton.jit  # type: ignore[untyped-decorator]
def evenly(x_ptr, size, BLOCK: tl.constexpr, EVEN: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = tl.arange(0, BLOCK)
    tl.store(x_ptr + offsets, offsets, mask=None if EVEN else offsets < size)


def decorate(**given: Any) -> DecoratedKernel:
    return tuned(**{"configs": CONFIGS, "key": ["size"], "name": "refused", **given})(broken)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"configs": []}, r"configs=\[\] is empty"),
        ({"configs": None}, "configs and parameters: expected one of them"),
        ({"parameters": {"BLOCK": [1]}}, "configs and parameters: expected one of them"),
        ({"configs": None, "parameters": {"BLOCK": []}}, "expected a list of values"),
        ({"configs": ["BLOCK=64"]}, "configs has 'BLOCK=64'; expected triton.Config objects"),
        ({"key": ["length"]}, "key has 'length', no parameter of broken: x_ptr, out_ptr, size"),
        ({"key": ["size", "BLOCK"]}, "key has 'BLOCK', which the configs give; expected arguments of a launch"),
        (
            {"configs": [triton.Config({"BLOCK": 64}), triton.Config({}, num_warps=8)]},
            r"configs has .*num_warps: 8.*, which lacks 'BLOCK'; others have it, and it has no default",
        ),
        ({"key": "size"}, "key='size' is not allowed; expected names"),
        ({"key": {"size": float}}, "key.'size'.=<class 'float'> is not allowed; expected int or str"),
        ({"mode": "always"}, "mode='always' is not allowed; expected 'table' or 'first_call'"),
        ({"budget": 0}, "budget=0 is not allowed"),
        ({"reset_to_zero": ["y"]}, "reset_to_zero has 'y', no parameter"),
        ({"outputs": ["y"]}, "outputs has 'y', no parameter"),
        ({"reference": 1}, "reference=1 is not allowed; expected a function"),
        (
            {"prune_configs_by": {"early": None}},
            "prune_configs_by has 'early'; expected early_config_prune",
        ),
        ({"prune_configs_by": {"top_k": 0}}, "'top_k'.=0 is not allowed"),
        ({"do_bench": print}, r"do_bench=.* is not allowed: times are taken by the engine"),
        ({"speed": 1}, "speed is no argument of tuned; expected configs, key, "),
        ({"refrence": print}, r"refrence is no argument of tuned \(did you mean 'reference'\?\); expected configs"),
        (
            {"configs": [triton.Config({"BLOK": 64, "ADDED": 0})]},
            r"configs has 'BLOK', no parameter of broken \(did you mean 'BLOCK'\?\): x_ptr, out_ptr, size",
        ),
        ({"configs": None, "parameters": {"num_wraps": [4]}}, r"parameters has 'num_wraps', .* mean 'num_warps'\?"),
        ({"reference": lambda x: x}, "reference= takes 'x'.*; expected some of x_ptr, out_ptr, size, by name"),
        ({"reference": lambda size, BLOCK: size}, "reference= takes 'BLOCK'"),
        ({"reference": lambda x_ptr, /: x_ptr}, "reference= takes 'x_ptr' by position alone"),
        ({"reference": torch.mul}, "does not say what its parameters are; expected a function of some of x_ptr"),
        (
            {"inputs": {"z_ptr": ("size",)}},
            "inputs has 'z_ptr', which is no argument here .*; expected x_ptr, out_ptr",
        ),
        ({"inputs": {"x_ptr": ("length",)}}, "has 'length'; expected integers from 0 and integers of the key, size"),
        ({"inputs": {"x_ptr": ("size", -1)}}, "inputs.*'size', -1. has -1; expected integers from 0"),
        ({"key": ["size", "dtype"]}, "no parameter of broken"),
        ({"inputs": {"x_ptr": ("size",)}, "key": {"size": str}}, "has 'size', a text of the key; expected integers"),
        ({"inputs": {"x_ptr": "size"}}, "says the sizes of no tensor; expected such as {'x_ptr': .'size',., ...}"),
        ({"inputs": [("size",)]}, "inputs=.* is not allowed; expected a dict by argument, or a function of the shape"),
        ({"reset_to_zero": "x_ptr"}, "reset_to_zero='x_ptr' is not allowed; expected names of parameters"),
        ({"name": "a b"}, "^name='a b' is not allowed, since a folder of tables is named by it"),
        ({"configs": [triton.Config({"BLOCK": 64, "ADDED": 0}, num_warps=3)]}, "num_warps=3; expected a power of two"),
        ({"configs": [triton.Config({"BLOCK": 64, "ADDED": 0}, num_warps="4")]}, "num_warps='4'; expected a power"),
    ],
)
def test_the_decorator(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        decorate(**given)


def test_options_of_any_vendor_are_no_mistake_nor_what_a_reference_takes_by_default() -> None:
    configs = [triton.Config({"BLOCK": 64, "ADDED": 0, "waves_per_eu": 2})]
    decorate(configs=configs, reference=lambda x_ptr, eps=1e-6, **others: x_ptr)


@pytest.mark.parametrize("is_filled", [True, False])
def test_what_heuristics_fill_in_no_config_lacks(is_filled: bool) -> None:
    some = [triton.Config({"BLOCK": 64, "EVEN": True}), triton.Config({"BLOCK": 128})]
    kernel = triton.heuristics({"EVEN": lambda named: True})(evenly) if is_filled else evenly
    with nullcontext() if is_filled else pytest.raises(UsageError, match="which lacks 'EVEN'; others have it"):
        tuned(some, key=["size"])(kernel)


def test_what_is_no_kernel() -> None:
    with pytest.raises(UsageError, match=r"put @autotune.tuned\(...\) above @triton.jit"):
        tuned(CONFIGS, key=[])(lambda x: x)


def test_a_kernel_under_tritons_own_decorator_is_told_to_lose_it() -> None:
    theirs = triton.autotune(CONFIGS, key=["size"])(broken)
    with pytest.raises(UsageError, match=r"is under triton.autotune; put @autotune.tuned.* in place of that decorator"):
        tuned(CONFIGS, key=["size"])(theirs)


def test_options_of_triton_that_change_nothing_say_why() -> None:
    with pytest.warns(UserWarning, match="rep=100 changes nothing under tuned: the engine repeats"):
        decorate(rep=100)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"size": 1.5}, "size=1.5 is not allowed; expected an integer; a text, .*: str"),
        ({"size": None}, "size=None is not allowed"),
        ({"size": 2**63}, "size=9223372036854775808 is not allowed; expected an integer from -2..63 . 1 to 2..63 - 1"),
        ({"size": -1}, "size=-1 is not allowed; expected 0 or more, as it is a size of x_ptr"),
        ({"size": torch.zeros(10_000)}, "size=tensor.{0,60}is not allowed; expected an integer"),
        ({"size": 8, "dtype": "float12"}, "dtype='float12' is not allowed; expected one of float16"),
        ({"length": 8}, "length is not a field of ScaleShape; allowed: size, dtype, dtypes"),
    ],
)
def test_a_shape(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidShapeError, match=message):
        scale.shape_class(**fields)


def test_a_call() -> None:
    x = torch.empty(4)
    with pytest.raises(UsageError, match="the configs give BLOCK; leave it out"):
        scale[(1,)](x, x, 4, 1.0, BLOCK=64)
    with pytest.raises(UsageError, match="scale: the call lacks size, of the key"):
        scale[(1,)](x, x)
    with pytest.raises(UsageError, match=r"scale is launched as scale\[grid\]"):
        scale(x, x, 4, 1.0)


def test_a_search_of_a_kernel_that_does_not_say_its_arguments() -> None:
    kernel = decorate()
    with pytest.raises(UsageError, match="refused: inputs= is not given"):
        kernel.definition.make_inputs(kernel.shape_class(size=4), seed=0, device="cpu")


def test_dtypes_follow_what_the_inputs_say() -> None:
    assert total.shape_class(size=8).dtypes == "float16+float32"
    assert total.shape_class(size=8, dtype=torch.bfloat16).dtypes == "bfloat16+float32"
    assert step.shape_class(size=8, dtype="fp32").dtypes == "float32+int32"
    assert scale.shape_class(size=8, dtype="bf16").dtypes == "bfloat16"


def test_the_key_of_a_call_is_its_shape() -> None:
    x, turned = torch.empty(5, 3), torch.empty(3, 5, dtype=torch.float16)
    named = {"x": x, "y": turned, "rows": 3, "columns": 5, "KIND": None}
    shape = transpose.shape_of(named)
    assert shape.as_dict() == {
        "rows": 3,
        "columns": 5,
        "KIND": "None",
        "dtype": "float32",
        "dtypes": "float32+float16",
    }
    assert shape.FAMILY == ("KIND", "dtype", "dtypes")
    assert shape.distance(transpose.shape_class(**{**shape.as_dict(), "rows": 6})) == 1.0


def test_sizes_of_checks_are_small_and_off_every_tile_where_the_kernel_masks() -> None:
    definition = scale.definition
    assert [each.size for each in definition.check_shapes(scale.shape_class(size=4096))] == [512, 333]
    assert [each.size for each in definition.check_shapes(scale.shape_class(size=100_000))] == [672, 333]
    assert [each.size for each in definition.check_shapes(scale.shape_class(size=1))] == [1]


def test_a_launch_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object, **__: object) -> None:
        raise RuntimeError("0 active drivers ([]). There should only be one.")

    monkeypatch.setattr(scale, "fn", SimpleNamespace(run=run))
    monkeypatch.setattr(scale.launched, "_kernel", SimpleNamespace(run=run))
    x, message = torch.empty(4), "scale: no GPU is visible to launch on; .* TRITON_INTERPRET=1"
    with pytest.raises(MissingDependencyError, match=message):
        scale[(1,)](x, x, 4, 1.0)
    shape = scale.shape_class(size=4, dtype="float32")
    call = scale.launched.bind(scale.implementation.space.default(shape, NVIDIA_H200), shape)
    with pytest.raises(MissingDependencyError, match=message):
        call(x, x, 4, 1.0)
