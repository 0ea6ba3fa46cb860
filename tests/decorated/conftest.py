"""The user's kernels, registered for one test, and tables of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune import dispatch
from autotune.decorated import first_call
from tests import sample
from tests.outside import row_scale


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    row_scale.isolate(monkeypatch)
    from tests.outside import decorated_kernels

    for kernel in decorated_kernels.KERNELS:
        kernel.register()
    sample.serve_from(monkeypatch, tmp_path / "home", tmp_path / "results")
    sample.hide_gpu(monkeypatch)
    monkeypatch.setattr(first_call, "_searched", set())
    dispatch.reload()
    yield
    monkeypatch.undo()
    dispatch.reload()
