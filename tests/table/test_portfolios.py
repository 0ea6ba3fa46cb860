"""Portfolios as files: whole or refused by name, and their rows stay as spaces and shapes grow."""

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from autotune.device import NVIDIA_H200
from autotune.errors import TableError
from autotune.registry import get_implementation, get_operation
from autotune.space import Parameter
from autotune.table import (
    Assignment,
    Store,
    merge,
    shipped_portfolios,
    shipped_sweeps,
    shipped_winners,
    write_portfolio,
)
from autotune.table.parquet import to_parquet
from autotune.table.portfolios import decode, encode
from tests import sample
from tests.table.growth import GROWN, change_shape, change_space

NEW: Final = Parameter("PERSISTENT", (0, 1), absent=0)
ROWS: Final = [
    sample.assignment(sample.shape(512), transfer_distance=1.5, transfer_regret=0.0),
    sample.assignment(sample.shape(1024), sample.config(BLOCK_K=64), regret=None, left_out_regret=None, timed=2),
]
OWNER: Final = ("flash_attention", "triton")


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = write_portfolio(ROWS, results=tmp_path)
    assert path == tmp_path / "sm_90/flash_attention/portfolios/triton.parquet"
    assert shipped_portfolios("flash_attention", results=tmp_path) == ROWS
    assert shipped_portfolios("flash_attention", implementation="flex", results=tmp_path) == []
    assert shipped_portfolios("paged_decode", results=tmp_path) == []
    assert encode(ROWS) == path.read_bytes() == encode(ROWS)


def test_it_is_neither_winners_nor_a_sweep_nor_merged(tmp_path: Path) -> None:
    write_portfolio(ROWS, results=tmp_path / "results")
    assert shipped_winners("flash_attention", results=tmp_path / "results") == []
    assert shipped_sweeps("flash_attention", results=tmp_path / "results") == []
    assert merge([tmp_path / "results"], Store(tmp_path / "home")).refused == ()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "got no rows"),
        ([ROWS[0], replace(ROWS[1], device=replace(NVIDIA_H200, arch="sm_80"))], "got sm_80/flash_attention/"),
        ([replace(ROWS[0], regret=-0.1)], "row 0: regret=-0.1 is not allowed"),
        ([replace(ROWS[0], transfer_distance=0.0)], "row 0: transfer_distance=0.0 is not allowed"),
        ([replace(ROWS[0], config=sample.config(BLOCK_Q=48))], "is not of the space of flash_attention/triton"),
        ([replace(ROWS[0], implementation="naive")], "implementation='naive' of flash_attention is unknown"),
    ],
    ids=["nothing", "two architectures", "regret", "distance", "config", "implementation"],
)
def test_what_makes_no_portfolio_is_not_written(tmp_path: Path, rows: list[Assignment], message: str) -> None:
    with pytest.raises(TableError, match=message):
        write_portfolio(rows, results=tmp_path)
    assert list(tmp_path.rglob("*.parquet")) == []


def edited(edit: Callable[[pa.Table], pa.Table], **metadata: str) -> bytes:
    """The bytes of a portfolio after an edit of its table, as another program writes them."""
    data = encode(ROWS)
    said = {key.decode(): value.decode() for key, value in pq.read_metadata(io.BytesIO(data)).metadata.items()}
    return to_parquet(edit(pq.read_table(io.BytesIO(data))).replace_schema_metadata(None), {**said, **metadata})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"PAR1", "cannot be read as Parquet"),
        (edited(lambda table: table.drop_columns(["timed"])), "missing, doubled or wrong: timed"),
        (edited(lambda table: table.append_column("timed", table["timed"])), "two columns|doubled"),
        (edited(lambda table: table, **{"autotune.portfolio_version": "9"}), "portfolio_version='9' cannot be read"),
        (edited(lambda table: table, other="x"), "not a portfolio of autotune"),
        (edited(lambda table: table, **{"autotune.implementation": "flex"}), "implementation='triton' is not allowed"),
    ],
    ids=["bytes", "column", "twice", "version", "foreign", "owner"],
)
def test_what_is_no_portfolio_is_refused_with_the_reason(data: bytes, message: str) -> None:
    with pytest.raises(TableError, match=message) as caught:
        decode(data, "here.parquet")
    assert str(caught.value).startswith("here.parquet: ")


def test_one_at_the_place_of_another_is_refused(tmp_path: Path) -> None:
    path = write_portfolio(ROWS, results=tmp_path)
    other = write_portfolio(
        [replace(each, device=replace(NVIDIA_H200, name="NVIDIA A100", arch="sm_80")) for each in ROWS],
        results=tmp_path,
    )
    sums = (tmp_path / "SHA256SUMS").read_text().split()
    (tmp_path / "SHA256SUMS").write_text(f"{sums[0]}  {path.relative_to(tmp_path)}\n")
    path.write_bytes(other.read_bytes())
    other.unlink()
    with pytest.raises(TableError, match=r"damaged|belongs at sm_80/flash_attention/portfolios/triton\.parquet"):
        shipped_portfolios("flash_attention", results=tmp_path)


def test_an_implementation_that_is_not_registered_is_passed_over() -> None:
    assert decode(edited(lambda table: table, **{"autotune.implementation": "retired"}), "here") == []


def test_a_default_that_changed_since_is_the_config_that_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    space = get_implementation(*OWNER).space
    default = space.default(ROWS[0].shape, NVIDIA_H200)
    row = replace(ROWS[0], config=default, is_default=True)
    assert decode(data := encode([row]), "here") == [row]
    change_space(monkeypatch, *OWNER, space.parameters, default=lambda shape, device: sample.FAST)
    assert decode(data, "here") == [replace(row, is_default=False, default_regret=None, left_out_regret=None)]


@pytest.mark.parametrize("operation", ["flash_attention", "paged_decode", "paged_prefill"])
def test_what_ships_stays_when_a_parameter_and_a_field_join(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = shipped_portfolios(operation)
    for name in {row.implementation for row in before}:
        space = get_implementation(operation, name).space
        default = space.default
        grown = {"default": lambda *of, default=default: type(default(*of))({**default(*of), NEW.name: 0})}
        change_space(monkeypatch, operation, name, (*space.parameters, NEW), **grown)
    change_shape(monkeypatch, operation, GROWN[get_operation(operation).shape_class])
    after = shipped_portfolios(operation)

    def common(row: Assignment) -> tuple[Any, ...]:
        values = {**row.config, **row.shape.as_dict()}
        kept = {name: value for name, value in values.items() if name not in (NEW.name, "sink")}
        return kept, row.is_default, row.regret, row.left_out_regret

    assert before
    assert list(map(common, after)) == list(map(common, before))
    assert {row.config[NEW.name] for row in after} == {0}


def test_rows_that_left_the_space_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    space = get_implementation(*OWNER).space
    fewer = tuple(
        replace(each, values=tuple(value for value in each.values if value != 64)) if each.name == "BLOCK_K" else each
        for each in space.parameters
    )
    data = encode(ROWS)
    change_space(monkeypatch, *OWNER, fewer)
    assert decode(data, "here") == ROWS[:1]
