"""Runs a case, and says how any of its outputs misses the truth."""

from collections.abc import Callable
from dataclasses import replace

import torch
from triton.runtime.errors import OutOfResources

from autotune import platforms
from autotune.correctness import STATISTIC_UNITS, error_limit
from autotune.registry import get_implementation, load_definition, load_kernel
from tests.contract.sampling import Case
from tests.contract.suite import data_of
from tests.kernels.numerics import compare


def launched(case: Case, device: str) -> tuple[object, tuple[torch.Tensor, ...]]:
    """Launch a case; its inputs, and all outputs."""
    definition, kernel = load_definition(case.operation), load_kernel(case.operation, case.implementation)
    inputs = definition.make_inputs(case.shape, seed=1, device=device)
    outputs = definition.empty_outputs(inputs)
    kernel.launch(case.config, inputs, outputs)
    return inputs, outputs


def case_failure(case: Case, device: str) -> str | None:
    """Say what is wrong with an output of a case, or None; each is compared with the truth in fp64."""
    inputs, outputs = launched(case, device)
    data = data_of(case.operation)
    expected = data.truth(inputs, torch.float64)
    assert len(outputs) == len(expected)
    for index, (output, true) in enumerate(zip(outputs, expected, strict=True)):
        rounded = data.truth(inputs, output.dtype)[index]
        limit = error_limit(true, rounded, output.dtype, **({"units": STATISTIC_UNITS} if index else {}))
        found = compare(output, true, limit + (data.slack(inputs) if index else 0.0))
        if found is not None:
            return f"output {index}: {found}"
    return None


def gpu_failure(check: Callable[[Case, str], str | None], case: Case) -> str | None:
    """Run a check on the GPU; where the compiler refuses the config, which a space may propose, that of the default."""
    try:
        return check(case, "cuda")
    except OutOfResources:
        default = get_implementation(case.operation, case.implementation).space.default(
            case.shape, platforms.current_device()
        )
        assert default != case.config, f"the default of {case.shape} does not fit"
        return check(replace(case, config=default), "cuda")


def repeat_failure(case: Case, device: str) -> str | None:
    """Run a case twice: every output must be the same to the bit."""
    runs = [launched(case, device)[1] for _ in range(2)]
    same = [torch.equal(*pair) for pair in zip(*runs, strict=True)]
    return None if all(same) else f"outputs {[index for index, is_same in enumerate(same) if not is_same]} differ"
