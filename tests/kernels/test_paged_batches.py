"""In the batch-invariant mode a sequence's results are the same to the bit in every batch."""

import pytest

from tests.contract.interpreting import interpret
from tests.kernels.paged_batches import alone_failure

CASES = [("paged_decode", "float16"), ("paged_decode", "float8_e5m2"), ("paged_prefill", "float16")]


@pytest.mark.parametrize(("operation", "kv_dtype"), CASES)
def test_interpreted_sequences_have_the_same_bits_alone(operation: str, kv_dtype: str) -> None:
    assert interpret(alone_failure, operation, kv_dtype, "cpu") is None


@pytest.mark.gpu
@pytest.mark.parametrize(("operation", "kv_dtype"), [*CASES, ("paged_prefill", "float8_e5m2")])
def test_gpu_sequences_have_the_same_bits_alone(operation: str, kv_dtype: str) -> None:
    assert alone_failure(operation, kv_dtype, "cuda") is None
