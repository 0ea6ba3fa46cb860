"""Compilations as files: whole or refused by name, listed, and no trials."""

from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from autotune.device import NVIDIA_H200
from autotune.errors import TableError
from autotune.registry import get_implementation
from autotune.space import Config, Parameter
from autotune.table import (
    Compilation,
    Store,
    merge,
    portfolios,
    shipped_compilations,
    shipped_portfolios,
    shipped_winners,
    write_compilations,
    write_portfolio,
)
from tests import sample
from tests.table.growth import change_space

NEW: Final = Parameter("PERSISTENT", (0, 1), absent=0)
ROWS: Final = [
    sample.compilation("3.6.0"),
    sample.compilation("3.9.0", spill_bytes=160, loop_spills=91, registers=255),
    sample.compilation("3.8.0", sample.shape(512), refusal="out_of_resources: 300000 bytes of shared memory"),
    sample.compilation("3.7.1", shared_bytes=None, registers=None, spill_bytes=None, loop_spills=None),
]


def test_what_was_written_is_read_by_architecture_and_implementation(tmp_path: Path) -> None:
    path = write_compilations(ROWS, results=tmp_path)
    assert path == tmp_path / "sm_90/flash_attention/compilations/triton.parquet"
    assert shipped_compilations("flash_attention", results=tmp_path) == ROWS
    assert shipped_compilations("flash_attention", arch="sm_90", implementation="triton", results=tmp_path) == ROWS
    assert shipped_compilations("flash_attention", arch="sm_80", results=tmp_path) == []
    assert shipped_compilations("flash_attention", implementation="flex", results=tmp_path) == []
    data = path.read_bytes()
    assert write_compilations(ROWS, results=tmp_path).read_bytes() == data


def test_they_are_no_trials_and_no_portfolio(tmp_path: Path) -> None:
    path = write_compilations(ROWS, results=tmp_path / "results")
    write_portfolio([sample.assignment()], results=tmp_path / "results")
    assert shipped_winners("flash_attention", results=tmp_path / "results") == []
    assert shipped_portfolios("flash_attention", results=tmp_path / "results") == [sample.assignment()]
    assert merge([tmp_path / "results"], Store(tmp_path / "home")).refused == ()
    with pytest.raises(TableError, match="not a portfolio of autotune"):
        portfolios.decode(path.read_bytes(), "here")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "a file of compilations is of one implementation and one architecture, got no rows"),
        ([ROWS[0], replace(ROWS[1], device=replace(NVIDIA_H200, arch="sm_80"))], "got sm_80/flash_attention/"),
        ([replace(ROWS[0], spill_bytes=-1)], "row 0: spill_bytes=-1 is not allowed"),
        ([replace(ROWS[0], triton_version="")], "row 0: triton_version='' is not allowed"),
        ([replace(ROWS[0], config=sample.config(BLOCK_Q=48))], "is not of the space of flash_attention/triton"),
    ],
    ids=["nothing", "two architectures", "spills", "version", "config"],
)
def test_what_makes_no_file_is_not_written(tmp_path: Path, rows: list[Compilation], message: str) -> None:
    with pytest.raises(TableError, match=message):
        write_compilations(rows, results=tmp_path)
    assert list(tmp_path.rglob("*.parquet")) == []


def test_no_truncation_and_no_flipped_byte_is_read(tmp_path: Path) -> None:
    path = write_compilations(ROWS, results=tmp_path)
    data = path.read_bytes()
    damaged = [data[:length] for length in range(0, len(data), 97)]
    damaged += [data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in range(0, len(data), 97)]
    for each in damaged:
        path.write_bytes(each)
        with pytest.raises(TableError, match=r"compilations/triton\.parquet: damaged"):
            shipped_compilations("flash_attention", results=tmp_path)


def test_rows_stay_as_a_space_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_compilations(ROWS, results=tmp_path)
    owner = ("flash_attention", "triton")
    change_space(monkeypatch, *owner, (*get_implementation(*owner).space.parameters, NEW))
    found = shipped_compilations("flash_attention", results=tmp_path)
    assert found == [replace(row, config=Config({**row.config, NEW.name: 0})) for row in ROWS]
