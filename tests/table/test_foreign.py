"""Tables of others are read whatever they are, and kept apart until they are confirmed."""

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from autotune.errors import TableError
from autotune.table import Store, export, merge, served_winners
from autotune.table.foreign import (
    keep_confirmed,
    keep_unconfirmed,
    read_foreign,
    unconfirmed_trials,
)
from autotune.table.future import require_past
from autotune.table.inventory import all_roots, take_inventory
from autotune.table.outsiders import Outsider, Table
from autotune.table.schema import MAX_TEXT_LENGTH
from autotune.table.winners import IMPORTED, as_imported, winners
from autotune.trial import Conditions, Stage
from tests.table import sample


def test_tables_and_exports_of_any_name_are_read(tmp_path: Path) -> None:
    (part,) = Store(tmp_path / "store").append([sample.trial(1), sample.trial(2, stage=Stage.SCREEN)])
    folder = tmp_path / "theirs"
    folder.mkdir()
    shutil.copy(part, folder / "table.parquet")
    other = sample.trial(3, device=sample.MI300X, config=sample.config(kpack=1))
    (folder / "winners.json").write_text(export([other], "json"))
    (folder / "notes.json").write_text(json.dumps({"by": "hand"}))
    found = read_foreign([folder])
    assert {trial.number for trial in found.winners} == {1, 3}
    assert ["notes.json" in str(error) for error in found.refused] == [True]


def test_a_file_that_is_not_what_its_name_says_is_refused(tmp_path: Path) -> None:
    (part,) = Store(tmp_path).append([sample.trial(1)])
    part.write_bytes(part.read_bytes()[:-1])
    (error,) = read_foreign([tmp_path]).refused
    assert "damaged" in str(error)


def test_what_is_not_confirmed_is_kept_listed_and_not_served(tmp_path: Path) -> None:
    store, trial = Store(tmp_path), sample.trial(1)
    keep_unconfirmed(store, trial)
    keep_unconfirmed(store, sample.trial(2))
    assert [each.number for each in unconfirmed_trials(store)] == [1, 2]
    assert not served_winners(sample.NAME, root=tmp_path)
    assert not store.trials(sample.NAME)
    roots, _ = all_roots(tmp_path)
    assert [found.root.title for found in take_inventory(roots) if "confirmed" in found.root.title] == [
        "user not confirmed"
    ]
    for _ in range(2):
        keep_confirmed(store, trial)
        assert [row.trial for row in served_winners(sample.NAME, root=tmp_path)] == [as_imported(trial)]
        assert [each.number for each in unconfirmed_trials(store)] == [2]
    assert len(store.trials(sample.NAME)) == 1


def test_no_import_outranks_a_race_that_was_measured_here(tmp_path: Path) -> None:
    """However much newer, and whatever else ran on the GPU of the race here."""
    store = Store(tmp_path)
    mine = sample.trial(1, conditions=Conditions(contended=True))
    replayed = sample.trial(2, executor="replay", race_id="20261121-replayed")
    newer = sample.trial(0, started_at=sample.START + timedelta(days=2), config=sample.config(64), race_id="theirs")
    store.append([replayed])
    keep_confirmed(store, newer)
    assert [trial.config for trial in store.winners(sample.NAME)] == [newer.config]  # a replay measured nothing
    store.append([mine])
    store.compact(sample.NAME, mine.device)
    assert store.winners(sample.NAME) == [mine]
    again = as_imported(replace(newer, race_id="x" * MAX_TEXT_LENGTH))
    assert as_imported(again) == again
    assert again.race_id.endswith(IMPORTED)
    assert len(again.race_id) == MAX_TEXT_LENGTH


def test_of_two_imports_the_newer_decides(tmp_path: Path) -> None:
    old, new = (
        sample.trial(number, config=sample.config(block), race_id=f"race-{9 - number}")
        for number, block in ((1, 16), (2, 64))
    )
    for order in ((old, new), (new, old)):
        assert [trial.config for trial in winners(map(as_imported, order))] == [new.config]


def test_an_own_row_that_comes_back_is_not_added_again(tmp_path: Path) -> None:
    store, trial = Store(tmp_path), sample.trial(1)
    store.append([trial])
    keep_confirmed(store, trial)
    assert store.trials(sample.NAME) == [trial]


def test_a_file_with_a_row_of_the_future_is_refused_by_name(tmp_path: Path) -> None:
    later = datetime.now(UTC) + timedelta(days=365)
    (part,) = Store(tmp_path / "theirs").append([sample.trial(1), sample.trial(2, started_at=later)])
    document = tmp_path / "theirs" / "winners.json"
    document.write_text(export([sample.trial(3, started_at=later)], "json"))
    found = read_foreign([tmp_path / "theirs"])
    assert found.winners == ()
    for path, error in zip((part, document), found.refused, strict=True):
        assert str(error).startswith(f"{path}: a row is dated {later:%Y-%m-%d %H:%M} UTC, later than now")
    store = Store(tmp_path / "mine")
    merged = merge([part], store)
    assert (merged.files, merged.added, merged.refused) == (0, 0, (str(found.refused[0]),))
    assert store.trials(sample.NAME) == []
    columns = {"started_at": int(later.timestamp()) * 1_000_000}
    outsider = Outsider("x", 0, sample.NAME, "gone", sample.MI300X, "not registered", columns)
    with pytest.raises(TableError, match=r"^x: a row is dated .* later than now"):
        require_past(Table([], [outsider]), "x")
    (part,) = Store(tmp_path / "ahead").append([sample.trial(4, started_at=datetime.now(UTC) + timedelta(minutes=1))])
    assert merge([part], store).added == 1  # as far as clocks differ
