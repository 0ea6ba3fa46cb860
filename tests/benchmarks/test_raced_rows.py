"""Tables that outlive a change of binaries: races of both sources carry rows over, and nothing else does."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.registry import get_implementation
from autotune.table import shipped_winners, write_shipped
from autotune.trial import Trial
from benchmarks import raced_rows
from benchmarks.raced_rows import LEAST, carried, device_text, read_races
from tests import sample

OLD, OTHER = "a" * 64, "c" * 64
TRITON = get_implementation("flash_attention", "triton")
FILE = Path("nvidia_h200/flash_attention/triton.parquet")


def row(length: int, source_hash: str = OLD) -> Trial:
    return sample.trial(sample.shape(length), source_hash=source_hash)


def race(raced: Trial, ratio: float, **changes: Any) -> dict[str, Any]:
    """Return a race as ``benchmarks.revision_race`` keeps it."""
    found = {
        "operation": raced.operation,
        "implementation": raced.implementation,
        "device": device_text(raced.device),
        "before": OLD,
        "now": TRITON.source_hash,
        "shape": str(raced.shape),
        "config": str(raced.config),
        "ratio": ratio,
    }
    return found | changes


ROWS = [row(256 * number) for number in range(1, LEAST + 3)]
EVEN = [race(each, ratio) for each, ratio in zip(ROWS[:LEAST], [1.004, 0.998] * LEAST, strict=False)]


def run(races: list[dict[str, Any]], folder: Path, rows: list[Trial] = ROWS) -> tuple[int, list[str]]:
    """Carry rows over by races; return the exit code and their hashes afterwards."""
    write_shipped(FILE, rows, results=folder / "results")
    (folder / "races.json").write_text(json.dumps(races), encoding="utf-8")
    code = raced_rows.main([str(folder / "races.json"), "--results", str(folder / "results")])
    found = shipped_winners("flash_attention", results=folder / "results")
    hashes = {each.shape: each.source_hash for each in found}
    return code, [hashes[each.shape] for each in rows]


def test_rows_of_the_earlier_source_are_today_s_where_races_end_alike(tmp_path: Path) -> None:
    code, hashes = run(EVEN, tmp_path, [*ROWS[:-1], row(256 * len(ROWS), OTHER)])
    assert (code, hashes) == (0, [TRITON.source_hash] * (len(ROWS) - 1) + [OTHER])


@pytest.mark.parametrize("change", [{"name": "NVIDIA H100 80GB HBM3"}, {"power_cap_watts": 400}], ids=str)
def test_rows_of_another_device_stay(change: dict[str, Any]) -> None:
    [raced] = read_races(EVEN)
    elsewhere = replace(ROWS[0], device=replace(ROWS[0].device, **change))
    assert carried([elsewhere], raced) == [elsewhere]


def test_a_row_whose_own_race_was_far_off_is_to_be_recorded_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, hashes = run([*EVEN[:-1], race(ROWS[LEAST - 1], 1.06)], tmp_path)
    assert code == 1
    assert [number for number, each in enumerate(hashes) if each == OLD] == [LEAST - 1]
    assert f"record again: {ROWS[LEAST - 1].shape}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("races", "reason"),
    [
        ([each | {"ratio": 1.011} for each in EVEN], "takes 1.0110 of the time, beyond 1%"),
        ([each | {"ratio": 0.985} for each in EVEN], "takes 0.9850 of the time, beyond 1%"),
        ([each | {"ratio": ratio} for each, ratio in zip(EVEN, [1.1, 0.91] * LEAST, strict=False)], ": race more"),
        (EVEN[:-1], f"{LEAST - 1} races of {len(ROWS)} winners; wanted are {LEAST}"),
        ([each | {"now": OTHER} for each in EVEN], f"its races were of the source {OTHER[:12]}"),
    ],
    ids=["slower", "faster", "scattered", "few", "of another source"],
)
def test_races_that_say_too_little_carry_nothing_over(
    races: list[dict[str, Any]], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(races, tmp_path) == (1, [OLD] * len(ROWS))
    assert reason in capsys.readouterr().out


def test_three_races_that_scatter_are_told_apart_from_three_that_agree() -> None:
    few = ROWS[:3]
    scattered = [race(each, ratio) for each, ratio in zip(few, (1.02, 1.0, 0.98), strict=True)]
    [wide], [narrow] = read_races(scattered), read_races([race(each, 1.001) for each in few])
    assert wide.mean_end == pytest.approx(0.9514, abs=2e-4)  # exp(-4.303 * 0.02 / sqrt(3)), around a mean of 0.9999
    assert "all were raced" in wide.why_not(3, TRITON.source_hash)
    assert narrow.why_not(3, TRITON.source_hash) == ""
    [again] = read_races([*scattered, race(few[0], 0.98), race(few[2], 1.02)])
    assert again.mean == pytest.approx(1.0, abs=1e-3)


def test_all_winners_raced_are_enough(tmp_path: Path) -> None:
    assert run([race(ROWS[0], 1.0), race(ROWS[1], 1.0)], tmp_path, ROWS[:2]) == (0, [TRITON.source_hash] * 2)
