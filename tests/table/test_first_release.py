"""Stores and tables of the first release: each row is read, none is lost, and new ones go to the new places."""

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.device import NVIDIA_H200
from autotune.errors import TableError
from autotune.space import Config
from autotune.table import Store, merge, served_winners
from autotune.table.first_release import names_of, operation_then
from autotune.table.parquet import decode, owner_of
from autotune.trial import Candidate, Trial
from tests.table import sample
from tests.table.growth import change_space
from tests.table.old_tables import append_as_then, first_release_bytes

FLEX = Config(BLOCK_M=64, BLOCK_N=64, num_warps=4, num_stages=2, PRESCALE_QK=0, BLOCKS_ARE_CONTIGUOUS=0, USE_TMA=0)
DENSE = Config(
    BLOCK_Q=64,
    BLOCK_K=64,
    num_warps=4,
    num_stages=2,
    loads="pointer",
    waves_per_eu=None,
    matrix_instr_nonkdim=None,
    kpack=None,
)


def attention(number: int, implementation: str = "triton") -> Trial:
    config = DENSE if implementation == "triton" else FLEX
    found = sample.trial(number, operation="flash_attention")
    return replace(found, outcome=replace(found.outcome, candidate=Candidate(implementation, config)))


def _files(root: Path) -> set[str]:
    return {path.parent.relative_to(root).as_posix() for path in root.rglob("*.parquet")}


def test_names() -> None:
    assert names_of("flex_attention") == ("flash_attention", "flex")
    assert names_of("paged_decode") == ("paged_decode", "triton")
    assert operation_then("flash_attention", "flex") == "flex_attention"
    assert operation_then("flash_attention", "triton") == "flash_attention"
    assert operation_then("flash_attention", "gluon_hopper") is None


def test_rows_read_as_they_would_be_written_now() -> None:
    for rows in ([sample.trial(1), sample.trial(2)], [attention(1, "flex")]):
        data = first_release_bytes(rows)
        assert decode(data, "table") == (rows, [])
        assert owner_of(data, "table") == (rows[0].operation, rows[0].implementation)


def test_a_row_of_another_operation_is_damage() -> None:
    data = first_release_bytes([sample.trial(1)])
    with pytest.raises(TableError, match="row 0: operation="):
        decode(
            data.replace(b"autotune.operation\x18\x0ctable_sample", b"autotune.operation\x18\x0ctable_simple"), "table"
        )


def test_a_store_is_read_beside_what_is_new(tmp_path: Path) -> None:
    store = Store(tmp_path)
    append_as_then(tmp_path, [attention(1), attention(2)])
    append_as_then(tmp_path, [attention(3, "flex")])
    store.append([attention(2), attention(4), attention(5, "flex")])
    assert store.trials("flash_attention") == [
        *(attention(number) for number in (1, 2)),
        attention(3, "flex"),
        attention(4),
        attention(5, "flex"),
    ]
    assert store.trials("flash_attention", implementation="flex") == [attention(3, "flex"), attention(5, "flex")]
    assert store.trials("flex_attention") == []
    assert store.outsiders() == []
    served = {row.trial.implementation for row in served_winners("flash_attention", root=tmp_path)}
    assert served >= {"triton", "flex"}


def test_compaction_moves_every_row_to_the_new_places(tmp_path: Path) -> None:
    store = Store(tmp_path)
    append_as_then(tmp_path, [attention(1)])
    append_as_then(tmp_path, [attention(2, "flex")])
    store.append([attention(3)])
    before, winners = store.trials("flash_attention"), store.winners("flash_attention")
    store.compact("flash_attention", NVIDIA_H200)
    assert store.trials("flash_attention") == before
    assert store.winners("flash_attention") == winners
    assert _files(tmp_path) == {f"nvidia_h200/flash_attention/{name}" for name in ("triton", "flex")}


def test_rows_that_left_the_space_stay_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = append_as_then(tmp_path, [sample.trial(1), sample.trial(2, config=sample.config(64))])
    block, *others = sample.PARAMETERS
    change_space(monkeypatch, sample.NAME, "triton", (replace(block, values=(16, 32)), *others))
    store = Store(tmp_path)
    store.append([sample.trial(3)])
    store.append([sample.trial(4)])
    store.compact(sample.NAME, NVIDIA_H200)
    assert [trial.number for trial in store.trials(sample.NAME)] == [1, 3, 4]
    assert part.exists()
    (outsider,) = store.outsiders()
    assert (outsider.where, outsider.reason) == (str(part), "BLOCK=64 is not one of (16, 32)")


def test_files_and_stores_are_merged(tmp_path: Path) -> None:
    append_as_then(tmp_path / "then", [sample.trial(1)])
    part = append_as_then(tmp_path / "then", [attention(2, "flex")])
    store = Store(tmp_path / "mine")
    store.append([sample.trial(1)])
    assert merge([tmp_path / "then", part], store).added == 1
    assert store.trials("flash_attention") == [attention(2, "flex")]
    assert _files(store.root) == {"nvidia_h200/table_sample/triton", "nvidia_h200/flash_attention/flex"}
