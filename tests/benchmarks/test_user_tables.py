"""The user's tables stand aside while a benchmark serves by others, and then stand again."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune import dispatch
from autotune.dispatch import get_kernel
from autotune.table import Store
from benchmarks.user_tables import tables_in
from tests import sample

HOME = "AUTOTUNE_HOME"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The tables of a user, who has tuned one shape."""
    sample.serve_from(monkeypatch, tmp_path / "home", tmp_path / "results")
    Store(tmp_path / "home").append([sample.trial()])
    dispatch.reload()
    yield tmp_path / "home"
    dispatch.reload()


def rung() -> str:
    return get_kernel(sample.shape(), device="NVIDIA H200").provenance.rung


def test_the_users_tables_are_read_before_and_after_alone(home: Path) -> None:
    assert rung() == "exact"
    with tables_in() as empty:
        assert os.environ[HOME] == str(empty)
        assert rung() == "default"
    assert not empty.exists()
    assert (os.environ[HOME], rung()) == (str(home), "exact")


def test_tables_of_a_folder_are_read_and_stay(tmp_path: Path) -> None:
    with tables_in():
        with tables_in(tmp_path / "home") as place:
            assert rung() == "exact"
        assert rung() == "default"
    assert place.exists()


def test_an_error_restores_them_and_so_does_a_variable_that_was_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HOME)
    with pytest.raises(RuntimeError, match="broken"), tables_in():
        raise RuntimeError("broken")
    assert HOME not in os.environ
