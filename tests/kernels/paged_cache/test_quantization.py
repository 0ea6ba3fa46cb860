"""The error of one-byte keys and values stays within what ``quantization`` states."""

import math

import pytest
import torch

from autotune.kernels.paged_cache.quantization import LARGEST, dequantize, quantize

FLOATS = [torch.float8_e4m3fn, torch.float8_e5m2]
# Of the quotient and its rounding, in fp32: a few units in the last place of up to 127.
SLACK = 1.0 + 2.0**-13


def draw(factor: float = 1.0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Rows ``[200, 3, 72]`` whose sizes differ by orders of magnitude, and some that are 0."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(200, 3, 72, generator=generator) * torch.randn(200, 3, 1, generator=generator).mul(2.0).exp()
    rows[::50] = 0.0
    return (rows * factor).to(dtype)


def error(rows: torch.Tensor, values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (dequantize(values, scale, torch.float64) - rows.double()).abs()


def float_bound(rows: torch.Tensor, dtype: torch.dtype, scale: torch.Tensor) -> torch.Tensor:
    """The docstring's, of rows that are not clamped; ``scale`` broadcasts."""
    relative, absolute = {torch.float8_e4m3fn: (1 / 16, 2.0**-10), torch.float8_e5m2: (1 / 8, 2.0**-17)}[dtype]
    return torch.maximum(rows.double().abs() * relative, scale.double() * absolute) * SLACK


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_int8_is_within_half_a_scale(dtype: torch.dtype) -> None:
    rows = draw(dtype=dtype)
    values, scale = quantize(rows, torch.int8)
    assert scale.dtype == torch.float32
    assert (error(rows, values, scale) <= scale.double()[..., None] / 2 * SLACK).all()
    torch.testing.assert_close(scale, rows.float().abs().amax(-1) / 127.0, rtol=2**-23, atol=0.0)
    filled = scale > 0
    assert (values.int().abs().amax(-1)[filled] == 127).all()
    assert not values[~filled].any()


@pytest.mark.parametrize("factor", [2.0**-110, 1e-6, 1e30])
def test_int8_does_not_depend_on_the_magnitude(factor: float) -> None:
    rows = draw(factor)
    values, scale = quantize(rows, torch.int8)
    assert (error(rows, values, scale) <= scale.double()[..., None] / 2 * SLACK).all()


@pytest.mark.parametrize("factor", [2.0**-123, 2.0**-135])
def test_int8_of_the_least_numbers_is_within_their_peak(factor: float) -> None:
    rows = torch.tensor([[1.0, -1.0, 0.5, 0.0, 0.001]]) * factor
    values, scale = quantize(rows, torch.int8)
    assert (error(rows, values, scale) <= factor * 2.0).all()
    assert (error(rows, values, scale)[:, 2:] <= factor).all()


def test_int8_ties_go_to_the_even() -> None:
    values, scale = quantize(torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5]]), torch.int8)
    assert values.tolist() == [[127, 0, 2, 2, 0, -2]]
    assert scale.tolist() == [1.0]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("factor", [1.0, 1e-3, 1e-6])
@pytest.mark.parametrize("scale", [None, torch.tensor(0.3), torch.tensor([0.01, 1.0, 7.5])])
def test_floats_are_within_half_a_unit(dtype: torch.dtype, factor: float, scale: torch.Tensor | None) -> None:
    rows = draw(factor)
    values, returned = quantize(rows, dtype, scale)
    each = returned[:, None] if returned.ndim else returned
    limit = LARGEST[dtype] * each.double()
    inside = rows.double().abs() <= limit
    found = error(rows, values, returned)
    assert (found[inside] <= float_bound(rows, dtype, each)[inside]).all()
    assert torch.equal(found[~inside], (rows.double().abs() - limit)[~inside])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_finite_value_stands_for_itself(dtype: torch.dtype) -> None:
    every = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype)
    finite = every.float().isfinite()
    values, scale = quantize(every.float(), dtype)
    assert torch.equal(values.view(torch.uint8)[finite], every.view(torch.uint8)[finite])
    assert scale.item() == 1.0


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floats_are_clamped_and_nan_stays(dtype: torch.dtype) -> None:
    values, _ = quantize(torch.tensor([1e30, -math.inf, math.nan, 0.0]), dtype)
    assert values.float()[:2].tolist() == [LARGEST[dtype], -LARGEST[dtype]]
    assert values.float().isnan().tolist() == [False, False, True, False]


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_int8_of_what_is_not_finite_is_nan(broken: float) -> None:
    rows = torch.ones(2, 4)
    rows[1, 2] = broken
    values, scale = quantize(rows, torch.int8)
    assert values[1].tolist() == [0] * 4
    assert scale.isfinite().tolist() == [True, False]
    assert dequantize(values, scale, torch.float32)[1].isnan().all()
