"""The check of a build: damaged files, kernels that changed, and winners that a newer race shows to be slower."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from autotune.space import Config
from autotune.table import Store, write_shipped
from autotune.table.audit import Fault, audit
from autotune.trial import Conditions, Status, Trial
from tests.table import sample

WINNER, RIVAL = sample.config(16), sample.config(64)
SOURCE = sample.IMPLEMENTATION.source_hash
OLDER: dict[str, Any] = {"started_at": sample.START - timedelta(days=1)}


def raced(config: Config, median: float, race: str, number: int = 0, **changes: Any) -> Trial:
    given = {"source_hash": SOURCE, "timing": sample.timing(median), **changes}
    return sample.trial(number, config=config, race_id=race, **given)


def table(tmp_path: Path, *trials: Trial) -> Path:
    path = Path(f"nvidia_h200/{sample.NAME}/triton.parquet")
    write_shipped(path, trials or [raced(WINNER, 100.0, "a")], results=tmp_path / "results")
    return tmp_path / "results"


def faults(results: Path, *races: Path, **options: Any) -> list[tuple[str, str]]:
    return [(fault.kind, fault.reason) for fault in audit(results, races, **options).faults]


def newer(tmp_path: Path, *trials: Trial) -> Path:
    Store(tmp_path / "races").append(trials)
    return tmp_path / "races"


def test_a_sound_table_passes(tmp_path: Path) -> None:
    found = audit(table(tmp_path))
    assert (found.faults, len(found.winners), found.races) == ((), 1, 0)


def test_a_table_whose_kernel_changed_fails(tmp_path: Path) -> None:
    results = table(tmp_path, raced(WINNER, 100.0, "a", source_hash="cd" * 32))
    why = f"the kernel changed: measured with source cdcdcdcdcdcd, here it is {SOURCE[:12]}"
    assert faults(results) == [("stale", why)]


def test_a_winner_that_lost_a_newer_race_by_more_than_5_percent_fails(tmp_path: Path) -> None:
    results = table(tmp_path)
    rows = [raced(WINNER, 110.0, "b", 10), raced(RIVAL, 100.0, "b", 11)]
    ((kind, reason),) = faults(results, newer(tmp_path, *rows))
    assert kind == "slower"
    assert "took 10 % longer than triton BLOCK=64" in reason
    assert "race b (110 us against 100 us" in reason
    assert faults(results, tmp_path / "races", slower=0.11) == []


@pytest.mark.parametrize(
    "rows",
    [
        [raced(WINNER, 104.0, "b", 10), raced(RIVAL, 100.0, "b", 11)],  # less than 5 %
        [raced(WINNER, 110.0, "b", **OLDER), raced(RIVAL, 100.0, "b", **OLDER)],  # older than the winner's race
        [raced(WINNER, 110.0, "b", 10), raced(RIVAL, 100.0, "c", 11)],  # two races, which are not compared
        [raced(RIVAL, 10.0, "b", 11)],  # the winner was not in it
        [raced(WINNER, 110.0, "b", 10), raced(RIVAL, 100.0, "b", 11, status=Status.WRONG_RESULT)],
        [raced(WINNER, 110.0, "b", 10), raced(RIVAL, 100.0, "b", 11, executor="replay")],
        [
            raced(WINNER, 110.0, "b", 10),
            raced(RIVAL, 100.0, "b", 11, conditions=Conditions(contended=True)),  # of another process
        ],
    ],
    ids=["within", "older", "two races", "absent", "wrong", "replayed", "disturbed"],
)
def test_other_rows_are_no_reason(tmp_path: Path, rows: list[Trial]) -> None:
    assert faults(table(tmp_path), newer(tmp_path, *rows)) == []


def test_overlapping_intervals_are_no_reason(tmp_path: Path) -> None:
    wide = [
        raced(config, median, "b", 10 + place, timing=sample.timing(median, spread=20.0))
        for place, (config, median) in enumerate([(WINNER, 110.0), (RIVAL, 100.0)])
    ]
    assert faults(table(tmp_path), newer(tmp_path, *wide)) == []


def test_the_newest_race_decides(tmp_path: Path) -> None:
    lost = [raced(WINNER, 110.0, "b", 10), raced(RIVAL, 100.0, "b", 11)]
    won = [raced(WINNER, 100.0, "c", 20), raced(RIVAL, 110.0, "c", 21)]
    assert faults(table(tmp_path), newer(tmp_path, *lost, *won)) == []


def test_a_damaged_table_fails_with_its_name(tmp_path: Path) -> None:
    results = table(tmp_path)
    path = results / "nvidia_h200" / sample.NAME / "triton.parquet"
    path.write_bytes(path.read_bytes()[:-1])
    ((kind, reason),) = faults(results)
    assert kind == "damaged"
    assert str(path) in reason


def test_a_sweep_may_be_older_than_the_kernel(tmp_path: Path) -> None:
    results = table(tmp_path)
    sweep = [raced(RIVAL, 100.0, "s", source_hash="cd" * 32, **OLDER)]
    write_shipped(Path(f"nvidia_h200/{sample.NAME}/sweeps/triton_any.parquet"), sweep, results=results)
    assert faults(results) == []


def test_a_fault_names_its_winner(tmp_path: Path) -> None:
    results = table(tmp_path, raced(WINNER, 100.0, "a", source_hash="cd" * 32))
    (fault,) = audit(results).faults
    assert isinstance(fault, Fault)
    assert fault.winner is not None
    assert fault.winner.config == WINNER
