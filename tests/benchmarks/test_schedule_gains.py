"""Gains of parameters, by a sweep made by hand and by those that ship."""

import math

import pytest

from autotune.search_spaces.flash_attention.triton import IMPLEMENTATION
from autotune.trial import Stage, Status
from benchmarks import schedule_gains
from tests import sample


def test_a_value_costs_what_the_best_config_with_it_takes_longer() -> None:
    times = {(64, 2): 100.0, (64, 3): 120.0, (128, 2): 110.0, (128, 3): 105.0}
    rows = [
        sample.trial(
            chosen=sample.config(BLOCK_K=keys, num_stages=stages),
            timing=sample.timing(time),
            stage=Stage.SCREEN,
            race_id="",
        )
        for (keys, stages), time in times.items()
    ]
    rows.append(
        sample.trial(chosen=sample.config(num_stages=4), status=Status.COMPILE_ERROR, stage=Stage.SCREEN, race_id="")
    )
    found = schedule_gains.gains(IMPLEMENTATION, rows)
    assert found["BLOCK_K"] == {64: 1.0, 128: pytest.approx(1.05)}
    assert found["num_stages"] == {2: 1.0, 3: pytest.approx(1.05)}
    assert all(math.isfinite(ratio) for values in found.values() for ratio in values.values())


def test_each_column_of_what_ships_has_a_value_that_costs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    schedule_gains.main([])
    head, _, *rows = capsys.readouterr().out.splitlines()
    sweeps = head.count("bfloat16")
    assert sweeps >= 4
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    for name in {row[0] for row in cells}:
        for column in range(2, 2 + sweeps):
            ratios = [float(row[column]) for row in cells if row[0] == name and row[column]]
            assert min(ratios) == 1.0
