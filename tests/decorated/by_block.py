"""A GPU on which the largest block wins, and launches that reach no GPU, for the tests of decorated kernels."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import pytest
import torch

from autotune import platforms
from autotune.decorated import DecoratedKernel, kernel
from autotune.executor import Race
from autotune.trial import Candidate, Outcome, Status
from autotune.tuning import tuner
from tests import sample
from tests.benchmarks.model_grid.fake_gpu import H100, Gpu
from tests.outside.decorated_kernels import scale, total

NOTE: Final = "compared with the first config's numbers, as no reference= is given"


class ByBlock(Gpu):
    """A GPU on which the last config is the fastest, and whose verdicts carry a note."""

    def microseconds(self, candidate: Candidate) -> float:
        return 200.0 - 20.0 * float(sum(scale.implementation.space.order(candidate.config)))

    def outcome(self, candidate: Candidate) -> Outcome:
        return Outcome(
            candidate=candidate, status=Status.OK, message=NOTE, timing=sample.timing(self.microseconds(candidate))
        )

    def race(self, candidates: list[Candidate], *, seconds: float, baselines: Any = "none") -> Race:
        return Race(tuple(map(self.outcome, candidates)))


def use_gpu(monkeypatch: pytest.MonkeyPatch) -> ByBlock:
    """Let searches find that GPU, and launches happen on it."""
    found = ByBlock()
    monkeypatch.setattr(tuner, "open_executor", lambda *_: found)
    monkeypatch.setattr(tuner, "open_gpu", lambda *_: found)
    monkeypatch.setattr(kernel, "_place_of", lambda values: H100)
    monkeypatch.setattr(platforms, "has_gpu", lambda: True)
    return found


def watch_launches(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return the options that launches pass to Triton from now on, in a list that grows."""
    calls: list[dict[str, Any]] = []
    run: Callable[..., None] = lambda *args, **named: calls.append(named)  # noqa: E731
    for each in (scale, total):
        monkeypatch.setattr(each, "fn", SimpleNamespace(run=run))
    return calls


def launch(chosen: DecoratedKernel = scale, size: int = 4096, dtype: torch.dtype = torch.float16) -> None:
    x = torch.empty(size, dtype=dtype)
    chosen[lambda meta: (1,)](x, x, size, 1.0)
