"""Every shipped winner computes its operation on a GPU of its model: every output, on the cases of a search."""

from typing import Any

import pytest

from autotune import platforms
from autotune.correctness import check_config, make_cases
from autotune.implementation import Implementation
from autotune.registry import load_definition, load_kernel
from autotune.table import shipped_winners
from autotune.trial import Status, Trial
from tests.contract.suite import IMPLEMENTATIONS

WINNERS = [
    pytest.param(implementation, winner, id=f"{implementation.title}-{winner.shape}".replace(" ", "_"))
    for implementation in IMPLEMENTATIONS
    for winner in shipped_winners(implementation.operation, implementation=implementation.name)
]


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, when it loads inductor
@pytest.mark.parametrize(("implementation", "winner"), WINNERS)
def test_gpu_shipped_winner_is_right(implementation: Implementation[Any], winner: Trial) -> None:
    if platforms.current_device().model != winner.device.model:
        pytest.skip(f"it is of an {winner.device.name}")
    definition = load_definition(winner.operation)
    shapes = (implementation.check_shapes or definition.check_shapes)(winner.shape)
    cases = make_cases(definition, shapes, device="cuda")
    kernel = load_kernel(winner.operation, winner.implementation)
    verdict = check_config(kernel, winner.config, cases, every_output=True)
    assert (verdict.status, verdict.message) == (Status.OK, "")
