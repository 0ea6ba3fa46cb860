"""The user's kernels, registered for one test, and tables of its own."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autotune import dispatch
from autotune.cli.app import main
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


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a command; return its exit and what it printed."""

    def command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["autotune", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return command
