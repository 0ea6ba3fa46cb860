"""Searches of recordings until they converge: what is in flight costs configs, never the count of them."""

import math

from benchmarks.in_flight import converge
from benchmarks.search_efficiency.recordings import load


def test_a_search_stops_where_it_converges_and_says_how_far_off() -> None:
    recording = min(load(), key=lambda recording: recording.size)
    one, many = (converge(recording, 7, compilers=31, in_flight=in_flight) for in_flight in (1, 32))
    for found in (one, many):
        assert math.ceil(recording.size / 4) <= found.tried <= recording.budget
        assert found.regret >= 0.0
    assert one.regret == 0.0
    assert one.seconds > 2 * many.seconds  # 31 compilers are idle behind one config in flight
