"""By a batch-invariant pick a sequence's results are the same to the bit in every batch."""

from typing import Any

import pytest

from tests.contract.interpreting import interpret
from tests.kernels.paged_batches import CASES, other_bits

# Partial results of wide heads that are merged at once in a small batch, and one after the other in a large one.
VARYING: dict[str, dict[str, Any]] = {"decode of wide heads": {"NUM_SPLITS": 32, "COMBINE": "kernel", "BLOCK_K": 16}}


@pytest.mark.parametrize("name", CASES)
def test_interpreted_sequences_have_the_same_bits_alone(name: str) -> None:
    assert interpret(other_bits, name, None, "cpu") is None


@pytest.mark.parametrize("name", VARYING)
def test_interpreted_sequences_have_others_by_a_config_that_is_not_invariant(name: str) -> None:
    assert interpret(other_bits, name, VARYING[name], "cpu") is not None


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_gpu_sequences_have_the_same_bits_alone(name: str) -> None:
    assert other_bits(name, None, "cuda") is None
