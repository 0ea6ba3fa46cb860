"""A launch by our decorator takes no more Python than one by Triton's, by instructions: their number is no time."""

import pytest

from benchmarks import decorator_launch
from tests.outside import row_scale


@pytest.mark.parametrize("name", ["rmsnorm", "matmul"])
def test_a_launch_takes_fewer_instructions_than_by_tritons_decorator(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row_scale.isolate(monkeypatch)
    monkeypatch.setattr(decorator_launch, "least_us", lambda launches: dict.fromkeys(launches, 0.0))
    found = decorator_launch.measure()[name]
    ours, theirs = (found[each]["instructions"] for each in ("autotune.tuned", "triton.autotune"))
    assert 0 < ours < theirs
