"""Sums that are cut off as tensor cores cut them stay within the slack of a log-sum-exp, and need it."""

import pytest
import torch

from autotune.correctness import make_case
from autotune.kernels.paged_decode.definition import DEFINITION
from autotune.kernels.product_precision import BITS, STEP, truncation_error
from autotune.shape import PagedShape


def cut_off(numbers: torch.Tensor, unit: torch.Tensor) -> torch.Tensor:
    return (numbers / unit).trunc() * unit


def summed_by_steps(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Return the products of rows, summed in steps whose addends are cut off towards 0, as the sum is to fp32."""
    total = torch.zeros(len(q), len(k), dtype=torch.float64)
    for columns in range(0, q.shape[1], STEP):
        addends = q[:, None, columns : columns + STEP] * k[None, :, columns : columns + STEP]
        largest = torch.maximum(addends.abs().amax(-1), total.abs())
        unit = torch.ldexp(torch.ones_like(largest), torch.frexp(largest)[1] - BITS)
        total = cut_off(addends, unit[..., None]).sum(-1) + cut_off(total, unit)
        total = cut_off(total, torch.ldexp(torch.ones_like(total), torch.frexp(total)[1] - 24))
    return total


@pytest.mark.parametrize("data", ["normal", "large", "tails"])
def test_a_log_sum_exp_of_latents_needs_the_slack_of_truncated_sums_and_keeps_to_it(data: str) -> None:
    shape = PagedShape(batch=1, heads=16, max_context=64, head_dim=576, page_size=64, dtype="float16")
    case = make_case(DEFINITION, shape, data, device="cpu", seed=0)
    q, cache = case.inputs.q.double(), case.inputs.k_cache.double()
    keys = cache[case.inputs.page_table[0, 0]].flatten(0, 1)[: int(case.inputs.seq_lens[0])]
    scores = summed_by_steps(q.flatten(0, 2), keys) * case.inputs.scale
    error = (scores.logsumexp(-1) - case.references[1].double().flatten()).abs().max().item()
    slack = DEFINITION.statistic_slack(case.inputs)
    assert error < slack
    assert error < case.limits[1]
    if data == "tails":
        assert error > case.limits[1] - slack


@pytest.mark.parametrize(("columns", "dtype"), [(256, torch.float16), (576, torch.float32)])
def test_other_products_have_no_slack(columns: int, dtype: torch.dtype) -> None:
    q, k = (torch.ones(rows, columns, dtype=dtype) for rows in (2, 3))
    assert truncation_error(q, k, 1.0) == 0.0
    assert truncation_error(q.half().repeat(1, 2), k.half().repeat(1, 2), 1.0) > 0.0
