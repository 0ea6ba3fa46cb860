"""Searches of recordings until they converge: with too many configs in flight they stop before they have learned."""

import math

import pytest

from benchmarks.in_flight import MISSED, Converged, converge
from benchmarks.search_efficiency.recordings import Recording, load


@pytest.fixture(scope="module")
def recording() -> Recording:
    return next(r for r in load() if r.name == "flash_attention_b4_h8_s4096_d256_causal_bfloat16")


def search(recording: Recording, in_flight: int) -> Converged:
    """With a seed for which 32 in flight are too many."""
    return converge(recording, recording.seed(2), compilers=31, in_flight=in_flight)


def test_what_is_in_flight_teaches_nothing(recording: Recording) -> None:
    one, few, many = (search(recording, in_flight) for in_flight in (1, 16, 32))
    assert max(one.regret, few.regret) <= MISSED < many.regret
    assert one.seconds > 2 * few.seconds > 2 * many.seconds  # compilers are idle behind few


def test_a_search_stops_no_earlier_than_at_a_quarter_and_within_its_budget(recording: Recording) -> None:
    found = search(recording, 1)
    assert math.ceil(recording.size / 4) <= found.tried <= recording.budget
