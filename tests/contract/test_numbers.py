"""Every implementation computes what its operation is, every output of it, over pairs of fields and of parameters."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from autotune.device import NVIDIA_H200
from autotune.implementation import Implementation
from tests.contract.covering import Rules, all_pairs, cover, pairs_of
from tests.contract.interpreting import interpret
from tests.contract.running import case_failure, gpu_failure, repeat_failure
from tests.contract.sampling import Case, cases_of
from tests.contract.suite import IMPLEMENTATIONS, data_of, each_implementation

QUICK = 1  # case of an implementation that is interpreted in the quick suite, as are ``tests.kernels``' own
REPEATED = 12


def all_cases(implementations: Iterable[Implementation[Any]]) -> Iterator[Case]:
    for each in implementations:
        yield from cases_of(each.operation, each.name)


def in_half(cases: Iterable[Case]) -> Iterator[Case]:
    """Those in float16, and again in bfloat16."""
    for case in cases:
        yield case
        fields = case.shape.as_dict()
        if fields["dtype"] == "float16":
            changed = {name: "bfloat16" for name in ("dtype", "kv_dtype") if fields.get(name) == "float16"}
            yield replace(case, shape=replace(case.shape, **changed))


INTERPRETED = [
    pytest.param(case, marks=[] if number < QUICK else [pytest.mark.slow])
    for each in IMPLEMENTATIONS
    if each.can_interpret
    for number, case in enumerate(cases_of(each.operation, each.name))
]
ON_GPU = list(in_half(all_cases(IMPLEMENTATIONS)))


@pytest.mark.parametrize("case", INTERPRETED, ids=lambda case: f"{case.operation}-{case.implementation}-{case}")
def test_interpreted_outputs_are_true(case: Case) -> None:
    assert interpret(case_failure, case, "cpu") is None


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, when it loads inductor
@pytest.mark.parametrize("case", ON_GPU, ids=lambda case: f"{case.operation}-{case.implementation}-{case}")
def test_gpu_outputs_are_true(case: Case) -> None:
    assert gpu_failure(case_failure, case) is None


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@each_implementation
def test_gpu_deterministic_configs_repeat_to_the_bit(implementation: Implementation[Any]) -> None:
    cases = [
        case
        for case in cases_of(implementation.operation, implementation.name)
        if implementation.is_deterministic(case.config)
    ]
    assert {str(case): gpu_failure(repeat_failure, case) for case in cases[:REPEATED]} == {
        str(case): None for case in cases[:REPEATED]
    }


@each_implementation
def test_cases_hold_every_value_of_a_parameter_but_what_no_problem_allows(implementation: Implementation[Any]) -> None:
    cases = cases_of(implementation.operation, implementation.name)
    data = data_of(implementation.operation)
    rows = cover(data.fields_of(implementation.name), Rules(score=lambda found, row: found))
    supported = [row for row in rows if implementation.supports(data.large(row), NVIDIA_H200) is None]
    assert len({str(case) for case in cases}) == len(cases) >= len(supported) > 0
    held = {(name, value) for case in cases for name, value in case.config.items()}
    missing = {
        (parameter.name, value)
        for parameter in implementation.space.parameters
        if parameter.exists_on(NVIDIA_H200)
        for value in parameter.values
        if (parameter.name, value) not in held
    }
    # One stage is needless where copies are asynchronous; no case is in bfloat16 but on a GPU; one consumer pays for
    # few tiles alone, as in gates.
    assert missing <= {("num_stages", 1), ("PARTIALS", "bfloat16"), ("consumers", 1)}


@each_implementation
def test_fields_are_those_of_the_shape_and_meet(implementation: Implementation[Any]) -> None:
    fields = data_of(implementation.operation).fields_of(implementation.name)
    rows = cover(fields, Rules(score=lambda found, row: found))
    held = {pair for row in rows for pair in pairs_of(row)}
    assert [pair for pair in all_pairs(fields) if pair not in held] == []
