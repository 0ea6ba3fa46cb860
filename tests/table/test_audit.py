"""The check of a build: damaged files, kernels that changed, and winners that a newer race shows to be slower."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import TableError
from autotune.space import Config
from autotune.table import Store, raise_damaged, write_portfolio, write_shipped
from autotune.table.audit import Fault, audit
from autotune.table.compilations import write_compilations
from autotune.table.pruning import Rules, compact_store, prune
from autotune.table.shipped import write_listed
from autotune.trial import Conditions, Status, Trial
from tests import sample as flash
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


def beside(tmp_path: Path) -> dict[str, Path]:
    """A sound folder of results with a file of each kind, and their paths."""
    results = table(tmp_path)
    sweep = [raced(RIVAL, 100.0, "s", **OLDER)]
    write_shipped(Path(f"nvidia_h200/{sample.NAME}/sweeps/triton_any.parquet"), sweep, results=results)
    found = {
        "winners": results / "nvidia_h200" / sample.NAME / "triton.parquet",
        "sweep": results / "nvidia_h200" / sample.NAME / "sweeps" / "triton_any.parquet",
        "portfolio": write_portfolio([flash.assignment()], results=results),
        "compilations": write_compilations([flash.compilation("3.6.0")], results=results),
    }
    assert faults(results) == []
    return found


KINDS = ["winners", "sweep", "portfolio", "compilations"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_of_any_kind_fails(tmp_path: Path, kind: str) -> None:
    path = beside(tmp_path)[kind]
    path.write_bytes(path.read_bytes()[:-1])
    ((found, reason),) = faults(tmp_path / "results")
    assert (found, reason.startswith(f"{path}: damaged")) == ("damaged", True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("inside", ["", "above"])
def test_a_file_that_a_list_names_and_that_is_missing_fails(tmp_path: Path, kind: str, inside: str) -> None:
    path = beside(tmp_path)[kind]
    path.unlink()
    checked = path.parents[1] if inside else tmp_path / "results"
    ((found, reason),) = faults(checked)
    assert (found, reason) == ("damaged", f"{path}: not there, and {tmp_path / 'results' / 'SHA256SUMS'} names it")


def test_a_listed_file_that_is_no_table_is_checked_too(tmp_path: Path) -> None:
    beside(tmp_path)
    results = tmp_path / "results"
    write_listed("notes.md", b"# Notes", results)
    assert faults(results) == []
    (results / "notes.md").write_bytes(b"# Other")
    ((_, reason),) = faults(results)
    assert reason.startswith(f"{results / 'notes.md'}: damaged")


@pytest.mark.parametrize("kind", ["portfolio", "compilations"])
def test_what_is_computed_and_lies_elsewhere_or_is_none_fails(tmp_path: Path, kind: str) -> None:
    path = beside(tmp_path)[kind]
    results = tmp_path / "results"
    name = path.relative_to(results).as_posix()
    write_listed(name.replace("sm_90", "sm_80"), path.read_bytes(), results)
    ((_, reason),) = faults(results)
    assert "that belongs at sm_90/" in reason
    write_listed(name.replace("sm_90", "sm_80"), b"PAR1", results)
    ((_, reason),) = faults(results)
    assert "sm_80" in reason
    unlisted = path.with_name("gone.parquet")
    unlisted.write_bytes(path.read_bytes())
    assert [str(unlisted) in reason for _, reason in faults(results)] == [False, True]


def test_a_missing_part_of_a_store_fails_until_it_is_compacted(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    (lost,) = store.append([raced(WINNER, 100.0, "a")])
    store.append([raced(RIVAL, 90.0, "b", 5)])
    for shelf in store.shelves():
        shelf.write_snapshot()
    assert faults(store.root) == []
    lost.unlink()
    ((kind, reason),) = faults(store.root)
    assert (kind, reason.startswith(f"{lost}: not there")) == ("damaged", True)
    assert "`autotune tables compact` writes the list anew" in reason
    compact_store(store, raise_damaged)
    assert faults(store.root) == []


def test_what_is_pruned_whole_is_not_missed(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.append([raced(WINNER, 100.0, "a", source_hash="cd" * 32)])
    compact_store(store, raise_damaged)
    prune(store, Rules(stale=True), raise_damaged, apply=True)
    assert faults(store.root) == []
    assert not [path for path in store.root.rglob("*") if path.is_file()]


def test_a_race_counts_once_however_many_winners_are_older(tmp_path: Path) -> None:
    other = {"implementation": "foreign", "config": Config(TILE=1)}
    both = [raced(WINNER, 100.0, "a"), sample.trial(1, race_id="a", source_hash=source_of_foreign(), **other)]
    later = [raced(WINNER, 100.0, "b", 10), sample.trial(11, race_id="b", source_hash=source_of_foreign(), **other)]
    shipped = tmp_path / "shipped"
    for name, row in zip(("triton", "foreign"), both, strict=True):
        write_shipped(Path(f"nvidia_h200/{sample.NAME}/{name}.parquet"), [row], results=shipped)
    assert audit(shipped, [newer(tmp_path, *later)]).races == 1


def source_of_foreign() -> str:
    return sample.FOREIGN.source_hash


def test_damage_of_races_that_are_only_beside_is_told_and_no_fault(tmp_path: Path) -> None:
    results = table(tmp_path)
    told: list[TableError] = []
    (part,) = Store(tmp_path / "races").append([raced(WINNER, 100.0, "b", 10)])
    part.write_bytes(part.read_bytes()[:-1])
    assert [fault.kind for fault in audit(results, [tmp_path / "races"]).faults] == ["damaged"]
    assert audit(results, [tmp_path / "races"], on_damaged_race=told.append).faults == ()
    assert [str(error).startswith(f"{part}: damaged") for error in told] == [True]
