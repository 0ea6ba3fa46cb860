"""Decorated kernels in Triton's interpreter: the gate passes what is right, and refuses a config that is not."""

from typing import Any

import pytest

from tests.contract.interpreting import interpret


def check(name: str, fields: dict[str, Any], place: int = 0) -> tuple[str, str]:
    """In the interpreter: check a config of a kernel as a search does."""
    from autotune.correctness import check_config, make_cases
    from tests.outside import decorated_kernels

    kernel = getattr(decorated_kernels, name)
    shape = kernel.shape_class(**fields)
    cases = make_cases(kernel.definition, kernel.definition.check_shapes(shape), device="cpu")
    verdict = check_config(kernel.launched, kernel.prune(shape)[place], cases, every_output=True)
    return verdict.status.value, verdict.message


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("scale", {"size": 1000}),
        ("total", {"size": 1000}),  # masked, by a heuristic below
        ("total", {"size": 2048}),  # not masked
        ("transpose", {"rows": 40, "columns": 300, "KIND": "exp"}),  # strides are derived
        ("transpose", {"rows": 1, "columns": 17, "KIND": "none"}),
    ],
)
def test_numbers_are_compared_with_the_users_reference(name: str, fields: dict[str, Any], dtype: str) -> None:
    assert interpret(check, name, {**fields, "dtype": dtype}) == ("ok", "")
    assert interpret(check, name, {**fields, "dtype": dtype}, -1) == ("ok", "")


def test_without_a_reference_they_are_compared_with_the_first_config_which_the_row_says() -> None:
    status, message = interpret(check, "step", {"size": 300})
    assert (status, message) == ("ok", "compared with the first config's numbers, as no reference= is given")


def check_broken(with_reference: bool) -> str:
    """In the interpreter: a kernel whose second config computes something else."""
    import triton

    from autotune.correctness import check_config, make_cases
    from autotune.decorated import tuned
    from tests.outside.broken_kernel import broken
    from tests.outside.decorated_kernels import by_block

    kernel = tuned(
        [triton.Config({"BLOCK": 64, "ADDED": added}) for added in (0, 1)],
        key=["size"],
        inputs={"x_ptr": ("size",), "out_ptr": ("size",)},
        grid=by_block,
        reference=(lambda x_ptr: x_ptr * 2) if with_reference else None,
        name="broken",
    )(broken)
    shape = kernel.shape_class(size=100)
    cases = make_cases(kernel.definition, kernel.definition.check_shapes(shape), device="cpu")
    return " ".join(check_config(kernel.launched, each, cases).status.value for each in kernel.prune(shape))


@pytest.mark.parametrize("with_reference", [True, False])
def test_a_config_with_other_numbers_is_refused(with_reference: bool) -> None:
    assert interpret(check_broken, with_reference) == "ok wrong_result"


def launch() -> list[float]:
    """In the interpreter: launch as code written for Triton's autotuner does."""
    import torch

    from tests.outside.decorated_kernels import by_block, scale, step, transpose, wrapped

    x = torch.arange(100.0)
    out = torch.empty_like(x)
    scale[by_block](x, out, 100, 2.0)
    found = [(out - 2 * x).abs().max().item()]
    scale[(1,)](x_ptr=x, out_ptr=out, size=100, factor=5.0)
    found.append((out - 5 * x).abs().max().item())
    scale.run(x, out, 100, factor=7.0, grid=by_block)
    found.append((out - 7 * x).abs().max().item())
    step[by_block](x, torch.ones(1, dtype=torch.int32), 100)  # once: nothing is tuned
    found.append((x - torch.arange(100.0) - 1).abs().max().item())
    turned = torch.empty(10, 10)
    transpose[lambda meta: (10, 1)](x.view(10, 10), turned, 10, 10, 10, 1, 10, 1, KIND="")
    found.append((turned - x.view(10, 10).T).abs().max().item())
    wrapped[by_block](out, 100)
    found.append((out - torch.arange(1.0, 101.0)).abs().max().item())
    return found


def test_launches_are_as_of_tritons_autotuner() -> None:
    assert interpret(launch) == [0.0] * 6
