"""A stand-in for the GPU, its tables below a folder of the test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune import dispatch
from benchmarks import record
from benchmarks.model_grid import recording as grid_recording
from tests import sample
from tests.benchmarks.model_grid.fake_gpu import Gpu


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Gpu]:
    sample.serve_from(monkeypatch, tmp_path / "home", tmp_path / "results")
    dispatch.reload()
    made = Gpu()
    monkeypatch.setattr(grid_recording, "RESULTS", tmp_path / "shipped")
    monkeypatch.setattr(record, "open_gpu", lambda settings: made)
    monkeypatch.setattr(record, "require_gpu", lambda name: None)
    yield made
    dispatch.reload()
