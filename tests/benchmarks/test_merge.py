"""Recordings of several GPUs into one folder of results: by hand-made tables, in any order, once or twice."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from autotune.device import NVIDIA_H200
from autotune.space import Config
from autotune.table import Store, shipped_grid, shipped_sweeps, shipped_winners, write_shipped
from autotune.trial import Policy, Stage, Trial
from benchmarks import merge
from tests import flex_sample, sample

H100 = replace(NVIDIA_H200, name="NVIDIA H100 80GB HBM3")
TABLE = Path("nvidia_h200/flash_attention/flex.parquet")
SWEEP = Path("nvidia_h200/flash_attention/sweeps/flex_small.parquet")


def run(*arguments: object) -> None:
    merge.main([str(argument) for argument in arguments])


def later(row: Trial, hours: int) -> Trial:
    return replace(row, race_id=f"{row.race_id}-{hours}", started_at=row.started_at + timedelta(hours=hours))


def by_shape(results: Path) -> dict[object, Trial]:
    return {trial.shape: trial for trial in shipped_winners("flash_attention", implementation="flex", results=results)}


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """Recordings of four GPUs, of two problems each."""
    rows, folders = flex_sample.winners(), [tmp_path / f"gpu{number}" for number in range(4)]
    for number, folder in enumerate(folders):
        flex_sample.ship(folder, rows[2 * number : 2 * number + 2])
    return folders


def test_what_four_gpus_recorded_becomes_one_table(
    parts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = []
    for number, order in enumerate(itertools.permutations(parts)):
        results = tmp_path / f"results{number}"
        run(*order, "--results", results)
        tables.append((results / TABLE).read_bytes())
    assert len(set(tables)) == 1
    assert by_shape(results) == {winner.shape: winner for winner in flex_sample.winners()}
    run(*parts, *parts, "--results", results)
    assert (results / TABLE).read_bytes() == tables[0]
    assert "flash_attention: 8 winners, 0 sweeps\n" in capsys.readouterr().out
    assert sorted(path.name for path in results.rglob("*") if path.is_file()) == ["SHA256SUMS", TABLE.name]


def test_the_newest_race_of_a_problem_decides(tmp_path: Path) -> None:
    rows = flex_sample.winners()
    results, first, second = tmp_path / "results", tmp_path / "first", tmp_path / "second"
    flex_sample.ship(results, [later(rows[0], 1), later(rows[1], 5), rows[7]])
    flex_sample.ship(first, [later(rows[0], 2), later(rows[1], 2)])
    flex_sample.ship(second, [later(rows[0], 3)])
    run(first, second, "--results", results)
    found = by_shape(results)
    assert [found[row.shape].started_at - row.started_at for row in (rows[0], rows[1], rows[7])] == [
        *(timedelta(hours=3), timedelta(hours=5), timedelta())
    ]


def test_other_devices_and_operations_keep_their_tables(tmp_path: Path, parts: list[Path]) -> None:
    results = tmp_path / "results"
    write_shipped(Path("nvidia_h200/flash_attention/triton.parquet"), [sample.trial()], results=results)
    elsewhere = [replace(row, device=H100) for row in flex_sample.winners()[:3]]
    write_shipped(Path(H100.slug) / "flash_attention" / "flex.parquet", elsewhere, results=results)
    before = {path: path.read_bytes() for path in results.rglob("*.parquet")}
    run(*parts, "--results", results)
    assert {path: path.read_bytes() for path in before} == before
    assert len(shipped_winners("flash_attention", implementation="flex", results=results)) == 11
    assert shipped_winners("flash_attention", implementation="triton", results=results) == [sample.trial()]


def test_trials_of_a_store_join_the_grid_as_far_as_they_may_ship(tmp_path: Path) -> None:
    winner = sample.trial()
    slower = Config({**sample.FAST, "num_stages": 4})
    screened = sample.trial(chosen=slower, stage=Stage.SCREEN, race_id="")
    others = [sample.trial(executor="replay"), sample.trial(policy=Policy("eager")), sample.trial(source_hash="0" * 16)]
    Store(tmp_path / "store").append([winner, screened, *others])
    results = tmp_path / "results"
    for _ in range(2):
        run("--store", tmp_path / "store", "--results", results)
        assert set(shipped_grid("flash_attention", results=results)) == {winner, screened}
        assert shipped_winners("flash_attention", results=results) == [winner]


def test_nothing_to_add_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run("--results", tmp_path / "results")
    assert ended.value.code == 2
    assert "expected a FOLDER or a --store" in capsys.readouterr().err


def swept(rows: Sequence[Trial], hours: int) -> list[Trial]:
    return [replace(row, started_at=row.started_at + timedelta(hours=hours)) for row in rows]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_of_two_sweeps_of_a_problem_the_newer_is_kept(tmp_path: Path, order: tuple[int, ...]) -> None:
    rows, folders = flex_sample.sweep(), [tmp_path / str(hours) for hours in range(3)]
    for hours, folder in enumerate(folders):
        write_shipped(SWEEP, swept(rows, hours), results=folder)
    write_shipped(SWEEP.with_name("flex_other.parquet"), rows, results=folders[1])
    target, *others = (folders[number] for number in order)
    run(*others, "--results", target)
    merged = shipped_sweeps("flash_attention", implementation="flex", results=target)
    found = {sweep.name: sweep.trials() for sweep in merged}
    assert found == {"flex_small": swept(rows, 2), "flex_other": rows}


def test_a_damaged_table_is_named_and_nothing_of_its_operation_is_written(tmp_path: Path, parts: list[Path]) -> None:
    (parts[2] / TABLE).write_bytes(b"junk")
    with pytest.raises(SystemExit) as ended:
        run(*parts, "--results", tmp_path / "results")
    assert str(ended.value.code).startswith(f"benchmarks.merge: {parts[2] / TABLE}: ")
    assert not (tmp_path / "results" / TABLE).exists()


def test_what_is_no_recording_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(tmp_path, tmp_path / "absent", "--results", tmp_path / "results")
    assert ended.value.code == 2
    assert f"{tmp_path / 'absent'} is no folder" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        run(tmp_path, "--results", tmp_path / "results")
    assert ended.value.code == f"benchmarks.merge: no table in {tmp_path}"
    assert not (tmp_path / "results").exists()
