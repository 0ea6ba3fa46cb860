"""The error rule, judged on outputs whose error is known."""

import math
from dataclasses import dataclass
from typing import Any, cast

import pytest
import torch

from autotune.correctness import Case, check_config, error_limit, judge, make_case, make_cases
from autotune.implementation import Kernel
from autotune.operation import Definition
from autotune.space import Config
from autotune.trial import Status

INF, NAN = math.inf, math.nan
NOTHING = cast(Definition, None)  # of a case that is judged only


def tensor(*values: float, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize(
    ("dtype", "largest", "unit"),
    [
        (torch.float16, 1.0, 2**-10),
        (torch.float16, 1.999, 2**-10),
        (torch.float16, 2.0, 2**-9),
        (torch.float16, 0.3, 2**-12),
        (torch.bfloat16, 1.0, 2**-7),
        (torch.bfloat16, 5.0, 2**-5),
        (torch.float32, 1.0, 2**-23),
        (torch.float32, 1000.0, 2**-14),
    ],
)
def test_an_exact_eager_leaves_two_units_of_the_largest_value(dtype: torch.dtype, largest: float, unit: float) -> None:
    reference = tensor(0.01, -largest, 0.02)
    assert error_limit(reference, reference, dtype) == 2 * unit
    # The unit is the distance to the next number of the type.
    value = torch.tensor(largest, dtype=dtype)
    assert (torch.nextafter(value, torch.tensor(INF, dtype=dtype)) - value).item() == unit


def test_eagers_largest_error_counts_twice() -> None:
    reference, eager = tensor(1.0, 1.0, -1.0), tensor(1.0, 1.25, -1.5)
    assert error_limit(reference, eager, torch.float32) == 2 * 0.5 + 2 * 2**-23


def test_infinities_of_the_reference_set_no_limit() -> None:
    assert error_limit(tensor(1.0, -INF), tensor(1.0, -INF), torch.float32) == 2 * 2**-23
    assert error_limit(tensor(-INF, -INF), tensor(-INF, -INF), torch.float32) == 0.0
    assert error_limit(tensor(0.0), tensor(0.0), torch.float32) == 0.0
    assert error_limit(torch.empty(0), torch.empty(0), torch.float32) == 0.0


def case(reference: torch.Tensor, limit: float) -> Case:
    return Case("normal", NOTHING, None, (reference,), (limit,))


@pytest.mark.parametrize(
    ("output", "status"),
    [
        ((1.0, 2.0, -INF), Status.OK),
        ((1.0, 2.5, -INF), Status.OK),  # the limit itself
        ((1.0, 2.75, -INF), Status.WRONG_RESULT),
        ((0.25, 2.0, -INF), Status.WRONG_RESULT),
        ((1.0, 2.0, 3.0), Status.WRONG_RESULT),
        ((1.0, 2.0, INF), Status.WRONG_RESULT),
        ((1.0, INF, -INF), Status.WRONG_RESULT),
        ((1.0, NAN, -INF), Status.NAN_RESULT),
        ((9.0, NAN, -INF), Status.NAN_RESULT),
    ],
)
def test_judge(output: tuple[float, ...], status: Status) -> None:
    verdict = judge([tensor(*output, dtype=torch.float32)], case(tensor(1.0, 2.0, -INF), 0.5))
    assert verdict.status == status
    assert verdict.error_limit == 0.5
    if status is Status.OK:
        assert (verdict.error, verdict.message) == (abs(output[1] - 2.0), "")
    else:
        assert "output 0 on normal" in verdict.message


def test_messages_count_and_measure() -> None:
    reference = case(tensor(1.0, 2.0), 0.5)
    nan = judge([tensor(NAN, NAN, dtype=torch.float16)], reference)
    assert nan.message == "2 of 2 elements are NaN: output 0 on normal"
    assert nan.error is None
    wrong = judge([tensor(1.0, 3.0, dtype=torch.float16)], reference)
    assert (wrong.error, wrong.message) == (1.0, "largest error 1 exceeds 0.5: output 0 on normal")
    infinite = judge([tensor(1.0, INF, dtype=torch.float16)], reference)
    assert infinite.error is None  # a table's column holds numbers


def test_every_output_is_judged_and_the_closest_to_its_limit_is_told() -> None:
    two = Case("normal", NOTHING, None, (tensor(1.0), tensor(1.0)), (1.0, 0.25))
    verdict = judge([tensor(1.5), tensor(1.2)], two)
    assert verdict.status is Status.OK
    assert verdict.error == pytest.approx(0.2)
    assert verdict.error_limit == 0.25
    assert judge([tensor(1.0), tensor(2.0)], two).message.endswith("output 1 on normal")


@dataclass(frozen=True)
class Doubling:
    """Doubling, as a definition and as a kernel with an error planted on one data set or one shape."""

    error_on: tuple[str, int] | None = None
    writes: bool = True

    def make_inputs(self, shape: int, *, seed: int, device: str, data: str = "normal") -> Any:
        generator = torch.Generator().manual_seed(seed)
        return torch.rand(shape, generator=generator) + 1.0, (data, shape)

    def check_shapes(self, shape: int) -> tuple[int, int]:
        return shape, shape - 1

    def empty_outputs(self, inputs: Any) -> tuple[torch.Tensor, ...]:
        return (torch.full_like(inputs[0], NAN),)

    def launch(self, config: Config, inputs: Any, out: tuple[torch.Tensor, ...]) -> None:
        values, where = inputs
        if self.writes:
            out[0].copy_(values * 2.0)
        if where == self.error_on:
            out[0][-1] += config.integer("error") * 1e-3

    def statistic_slack(self, inputs: Any) -> float:
        return 0.0

    def reference(self, inputs: Any, *, dtype: torch.dtype | None = None) -> tuple[torch.Tensor, ...]:
        return (inputs[0].to(dtype or torch.float64) * 2.0,)


def cases_of(doubling: Doubling) -> list[Case]:
    definition = cast(Definition, doubling)
    return make_cases(definition, definition.check_shapes(16), device="cpu")


def check(doubling: Doubling) -> Any:
    return check_config(cast(Kernel, doubling), Config(error=1), cases_of(doubling))


def test_a_right_kernel_passes_four_cases() -> None:
    assert check(Doubling()).status is Status.OK
    assert [case.name for case in cases_of(Doubling())] == ["normal 16", "large 16", "tails 16", "normal 15"]


@pytest.mark.parametrize("where", [("normal", 16), ("large", 16), ("tails", 16), ("normal", 15)], ids=str)
def test_an_error_on_any_case_is_caught_and_named(where: tuple[str, int]) -> None:
    verdict = check(Doubling(error_on=where))
    assert verdict.status is Status.WRONG_RESULT
    assert verdict.message.endswith(f"output 0 on {where[0]} {where[1]}")
    assert verdict.error == pytest.approx(1e-3, rel=1e-3)


def test_an_output_that_nobody_wrote_is_seen() -> None:
    assert check(Doubling(writes=False)).status is Status.NAN_RESULT


@dataclass(frozen=True)
class Product:
    """A product of two float32 matrices, and a kernel that keeps so many bits of their mantissas."""

    bits: int = 23

    def make_inputs(self, shape: int, *, seed: int, device: str, data: str = "normal") -> Any:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(2, shape, shape, generator=generator)

    def empty_outputs(self, inputs: Any) -> tuple[torch.Tensor, ...]:
        return (torch.full_like(inputs[0], NAN),)

    def reference(self, inputs: Any, *, dtype: torch.dtype | None = None) -> tuple[torch.Tensor, ...]:
        a, b = inputs.to(dtype or torch.float64)
        return (a @ b,)

    def statistic_slack(self, inputs: Any) -> float:
        return 0.0

    def launch(self, config: Config, inputs: Any, out: tuple[torch.Tensor, ...]) -> None:
        mask = -(1 << (23 - self.bits))
        a, b = (inputs.view(torch.int32) & mask).view(torch.float32)  # as tensor cores drop the last bits
        out[0].copy_(a @ b)


@pytest.mark.parametrize("size", [33, 512])
def test_products_that_an_operation_allows_in_tf32_are_judged_by_its_units(size: int) -> None:
    def status(bits: int, products: str) -> Status:
        cases = make_cases(cast(Definition, Product()), (size,), device="cpu", products=products)
        return check_config(cast(Kernel, Product(bits)), Config(), cases).status

    assert [status(bits, "") for bits in (23, 10)] == [Status.OK, Status.WRONG_RESULT]
    assert [status(bits, "float32") for bits in (23, 10)] == [Status.OK, Status.WRONG_RESULT]
    assert [status(bits, "tf32") for bits in (23, 10)] == [Status.OK, Status.OK]
    assert status(5, "tf32") is Status.WRONG_RESULT


def test_torch_rounds_products_to_tf32_only_while_a_case_allows_it() -> None:
    seen: list[str] = []

    class Noting(Product):
        def reference(self, inputs: Any, *, dtype: torch.dtype | None = None) -> tuple[torch.Tensor, ...]:
            seen.append(torch.get_float32_matmul_precision())
            return Product.reference(self, inputs, dtype=dtype)

    before = torch.get_float32_matmul_precision()
    for products in ("", "tf32"):
        make_case(cast(Definition, Noting()), 8, "normal", device="cpu", seed=0, products=products)
    assert seen == [before, before, before, "high"]
    assert torch.get_float32_matmul_precision() == before
