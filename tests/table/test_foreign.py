"""Tables of others are read whatever they are, and kept apart until they are confirmed."""

import json
import shutil
from pathlib import Path

from autotune.table import Store, export, served_winners
from autotune.table.foreign import (
    keep_confirmed,
    keep_unconfirmed,
    read_foreign,
    unconfirmed_trials,
)
from autotune.table.inventory import all_roots, take_inventory
from autotune.trial import Stage
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
        assert [row.trial for row in served_winners(sample.NAME, root=tmp_path)] == [trial]
        assert [each.number for each in unconfirmed_trials(store)] == [2]
    assert len(store.trials(sample.NAME)) == 1
