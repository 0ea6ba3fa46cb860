"""Host time beside SDPA: what is measured, and what is beyond the wanted ratios."""

from itertools import count

import pytest
import torch

import autotune.torch_ops  # noqa: F401  (defines the op)
from autotune import get_kernel, reload
from autotune.dispatch.pins import CONFIG
from benchmarks import host_time
from benchmarks.host_time import SDPA, HostCall, measure, plain_arguments, report


def test_the_least_time_of_all_rounds_counts_and_all_take_turns() -> None:
    ticks = count()
    order: list[str] = []
    pauses = iter([5, 0, 1, 2])  # of the clock, in the calls of each turn

    def call(name: str) -> None:
        order.append(name)
        for _ in range(next(pauses)):
            next(ticks)

    entrants = {name: HostCall(lambda name=name: call(name)) for name in "ab"}  # type: ignore[misc]
    least = measure(entrants, rounds=2, calls=1, clock=lambda: float(next(ticks)), wait=lambda: None)
    assert order == ["a", "b", "a", "b"]
    assert least == {"a": 2e6, "b": 1e6}


@pytest.mark.parametrize(
    ("entrant", "microseconds", "is_within"),
    [
        (HostCall(int, 1.2), 22.7, True),
        (HostCall(int, 1.2), 22.9, False),
        (HostCall(int, most_us=0.6), 0.59, True),
        (HostCall(int, most_us=0.6), 0.61, False),
        (HostCall(int), 1e9, True),
    ],
)
def test_what_is_beyond(entrant: HostCall, microseconds: float, is_within: bool) -> None:
    assert entrant.is_within(microseconds, 19.0) is is_within
    lines = list(report({SDPA: HostCall(int), "ours": entrant}, {SDPA: 19.0, "ours": microseconds}))
    assert lines[-1].endswith("beyond") is not is_within


def test_decode_is_measured_with_both_of_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONFIG, host_time.TWO_KERNELS)
    reload()
    try:
        config = get_kernel(host_time.PAGED, device="NVIDIA H200").config
    finally:
        monkeypatch.undo()
        reload()
    assert (config["schedule"], config["COMBINE"]) == ("split", "kernel")
    assert config.integer("NUM_SPLITS") > 1


def test_the_op_takes_what_it_is_called_with() -> None:
    op = torch.ops.autotune.attention.default
    tensor = torch.empty(1, 8, 2, 16, dtype=torch.float16, device="meta")
    assert op(tensor, tensor, tensor, *plain_arguments(op)).shape == tensor.shape
