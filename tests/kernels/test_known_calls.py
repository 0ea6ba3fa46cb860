"""Calls that a bound kernel takes for known, by a kernel that only says how it was called."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from autotune.kernels import known_calls
from autotune.kernels.known_calls import KnownCalls


class Kernel:
    """Counts what is checked and what is repeated; ``refuses`` what has a NaN."""

    def __init__(self) -> None:
        self.checked = self.repeated = 0
        self.calls = KnownCalls(("q", "k"), self.compute, self.repeat_of)

    def compute(self, q: Any, k: Any, scale: Any, out: Any) -> torch.Tensor:
        self.checked += 1
        if scale == 0:
            raise ValueError("scale")
        return torch.empty_like(q) if out is None else out

    def repeat_of(self, launches: Any, results: Any, device: torch.device) -> Any:
        return _Repeat(self, results)

    def call(self, *tensors: Any, scale: Any = None, out: Any = None) -> tuple[int, int]:
        """Call, and return how many calls were checked and repeated."""
        before = self.checked, self.repeated
        self.calls.call(tensors, (scale,), out)
        return self.checked - before[0], self.repeated - before[1]


class _Repeat:
    device = 0

    def __init__(self, kernel: Kernel, results: Any) -> None:
        self.kernel, self.results = kernel, results

    def __call__(self, inputs: Any, addresses: Any, out: torch.Tensor | None) -> torch.Tensor:
        self.kernel.repeated += 1
        given = inputs if out is None else (*inputs, out)
        assert addresses == [None if each is None else each.data_ptr() for each in given]
        found, _ = self.results.take(inputs[0], inputs, addresses, out)
        return found  # type: ignore[no-any-return]


CHECKED, REPEATED = (1, 0), (0, 1)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    monkeypatch.setattr(known_calls, "is_direct", lambda: True)
    monkeypatch.setattr(known_calls, "current_device", lambda: 0)
    return Kernel()


def tensor(*sizes: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.zeros(sizes or (4, 8), dtype=dtype)


OTHERS: dict[str, Callable[[], torch.Tensor]] = {
    "sizes": lambda: tensor(4, 16),
    "fewer rows": lambda: tensor(3, 8),  # as of a cache with fewer pages, which bounds what may be read
    "strides": lambda: tensor(8, 4).mT,
    "dtype": lambda: tensor(dtype=torch.bfloat16),
    "device": lambda: tensor().to("meta"),
    "alignment": lambda: tensor(33)[1:].view(4, 8),
    "class": lambda: torch.nn.Parameter(tensor(), requires_grad=False),
    "gradients": lambda: tensor().requires_grad_(),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_another_tensor_is_checked(other: Callable[[], torch.Tensor], kernel: Kernel) -> None:
    assert kernel.call(tensor(), tensor()) == CHECKED
    assert kernel.call(tensor(), tensor()) == REPEATED
    assert kernel.call(tensor(), other()) == CHECKED
    assert kernel.call(tensor(), tensor()) == REPEATED


def test_gradients_do_not_count_where_torch_records_none(kernel: Kernel) -> None:
    kernel.call(tensor(), tensor())
    with torch.no_grad():
        assert kernel.call(tensor(), tensor().requires_grad_()) == REPEATED
    assert kernel.call(tensor(), tensor().requires_grad_()) == CHECKED


@pytest.mark.parametrize("scale", [1, True, 2.0, float("nan")], ids=str)
def test_another_option_is_checked(scale: Any, kernel: Kernel) -> None:
    kernel.call(tensor(), tensor(), scale=1.0)
    assert kernel.call(tensor(), tensor(), scale=1.0) == REPEATED
    assert kernel.call(tensor(), tensor(), scale=scale) == CHECKED


@pytest.mark.parametrize("scale", [[1.0], torch.ones(()), "1"], ids=["list", "tensor", "text"])
def test_an_option_that_is_no_number_is_checked_every_time(scale: Any, kernel: Kernel) -> None:
    assert [kernel.call(tensor(), tensor(), scale=scale) for _ in range(2)] == [CHECKED] * 2
    assert len(kernel.calls) == 0


def test_what_is_refused_is_not_kept(kernel: Kernel) -> None:
    for count in (1, 2):
        with pytest.raises(ValueError, match="scale"):
            kernel.call(tensor(), tensor(), scale=0.0)
        assert (kernel.checked, len(kernel.calls)) == (count, 0)


def test_the_output_counts(kernel: Kernel) -> None:
    assert kernel.call(tensor(), tensor()) == CHECKED
    assert kernel.call(tensor(), tensor(), out=tensor()) == CHECKED
    assert kernel.call(tensor(), tensor(), out=tensor()) == REPEATED
    assert kernel.call(tensor(), tensor(), out=tensor(8, 4).mT) == CHECKED


def test_nothing_is_repeated_while_launches_are_watched(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel.call(tensor(), tensor())
    monkeypatch.setattr(known_calls, "is_direct", lambda: False)
    assert kernel.call(tensor(), tensor()) == CHECKED
    monkeypatch.setattr(known_calls, "is_direct", lambda: True)
    assert kernel.call(tensor(), tensor()) == REPEATED


def test_few_calls_are_kept(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_calls, "KEPT", 3)
    for width in range(1, 9):
        kernel.call(tensor(4, width), tensor())
        assert len(kernel.calls) <= 3
    assert kernel.call(tensor(4, 8), tensor()) == REPEATED


def test_a_call_is_repeated_on_its_gpu(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[int | None] = []

    class Device:
        def __init__(self, index: int) -> None:
            entered.append(index)

        def __enter__(self) -> None:
            pass

        def __exit__(self, *error: object) -> None:
            entered.append(None)

    kernel.call(tensor(), tensor())
    monkeypatch.setattr(known_calls, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "device", Device)
    assert kernel.call(tensor(), tensor()) == REPEATED
    assert entered == [0, None]
