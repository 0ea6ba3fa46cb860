"""Differences of two tables: by winners, and by times of one race alone."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from autotune.table import Store, raise_damaged, write_shipped
from autotune.table.difference import Difference, differences
from autotune.table.vouched import read_files
from autotune.trial import Policy, Trial
from tests.table import sample

FIRST, SECOND = sample.config(16), sample.config(64)


def raced(config: object, median: float, race: str, number: int = 0, **changes: object) -> Trial:
    return sample.trial(number, config=config, timing=sample.timing(median), race_id=race, **changes)


def compare(tmp_path: Path, old: list[Trial], new: list[Trial]) -> list[Difference]:
    folders = []
    for name, rows in (("old", old), ("new", new)):
        Store(tmp_path / name).append(rows)
        folders.append(tmp_path / name)
    return differences(*(list(read_files([folder], raise_damaged)) for folder in folders))


def test_equal_tables_do_not_differ(tmp_path: Path) -> None:
    rows = [raced(FIRST, 100.0, "a"), raced(SECOND, 120.0, "a", 1)]
    assert compare(tmp_path, rows, rows) == []


def test_a_winner_that_moved_has_the_times_of_the_race_that_measured_both(tmp_path: Path) -> None:
    old = [raced(FIRST, 100.0, "a")]
    new = [raced(FIRST, 220.0, "b", 10), raced(SECOND, 200.0, "b", 11)]
    (found,) = compare(tmp_path, old, new)
    assert found.change == "moved"
    assert found.race is not None
    # 100 us of race a is no time to compare with the 200 us of race b.
    assert (found.race.before.median_us, found.race.after.median_us) == (220.0, 200.0)
    assert found.race.gain == pytest.approx(0.1)


def test_winners_of_different_races_are_not_compared(tmp_path: Path) -> None:
    (found,) = compare(tmp_path, [raced(FIRST, 100.0, "a")], [raced(SECOND, 50.0, "b", 1)])
    assert (found.change, found.race) == ("moved", None)


def test_of_several_races_the_newest_says_it(tmp_path: Path) -> None:
    old = [raced(FIRST, 100.0, "a"), raced(SECOND, 130.0, "a", 1)]
    new = [raced(FIRST, 220.0, "b", 10), raced(SECOND, 200.0, "b", 11)]
    (found,) = compare(tmp_path, old, new)
    assert found.race is not None
    assert found.race.race_id == "b"


def test_added_removed_and_measured_again(tmp_path: Path) -> None:
    other: dict[str, Any] = {"device": sample.CAPPED_H200}
    third: dict[str, Any] = {"policy": Policy("eager", "cold")}
    old = [raced(FIRST, 100.0, "a"), raced(FIRST, 100.0, "x", **third)]
    new = [raced(FIRST, 101.0, "b", 5, started_at=sample.START + timedelta(days=1))]
    Store(tmp_path / "new").append([raced(SECOND, 90.0, "c", **other)])
    found = compare(tmp_path, old, new)
    assert sorted(each.change for each in found) == ["added", "measured again", "removed"]
    assert {each.change: each.trial.config for each in found}["added"] == SECOND


def test_a_recorded_sweep_is_no_winner_and_its_race_counts(tmp_path: Path) -> None:
    results, place = tmp_path / "results", f"nvidia_h200/{sample.NAME}"
    write_shipped(Path(f"{place}/triton.parquet"), [raced(FIRST, 100.0, "a")], results=results)
    sweep = [raced(FIRST, 110.0, "s", 90), raced(SECOND, 100.0, "s", 91)]  # newer, and of another winner
    write_shipped(Path(f"{place}/sweeps/triton_any.parquet"), sweep, results=results)
    Store(tmp_path / "new").append([raced(SECOND, 100.0, "b", 5)])
    (found,) = differences(*(list(read_files([tmp_path / name], raise_damaged)) for name in ("results", "new")))
    assert (found.before and found.before.config, found.after and found.after.config) == (FIRST, SECOND)
    assert found.race is not None
    assert found.race.race_id == "s"
