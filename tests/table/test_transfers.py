"""The loss of another kind's winner is reported where one race or one screening timed both, and only there."""

from dataclasses import replace
from typing import Any

import pytest

from autotune.device import NVIDIA_H200
from autotune.space import Config
from autotune.table.transfers import transfers
from autotune.trial import Stage, Status, Trial
from tests.table import sample

H100 = replace(NVIDIA_H200, name="NVIDIA H100 80GB HBM3", memory_mib=81559)
THEIRS, OURS = sample.config(64), sample.config(32)
WINNERS = [
    sample.trial(1, device=H100, config=THEIRS),
    sample.trial(2, device=NVIDIA_H200, config=OURS, race_id="race-2"),
]


def row(config: Config, median: float, **changes: Any) -> Trial:
    fields = {"stage": Stage.SCREEN, "race_id": "", "timing": sample.timing(median)}
    return sample.trial(9, config=config, **{**fields, **changes})


def found(*timed: Trial) -> tuple[float | None, str]:
    here = [each for each in transfers(WINNERS, timed) if each.target.device == NVIDIA_H200]
    assert [each.source for each in here] == WINNERS[:1]
    return here[0].ratio, here[0].reason


RACE = {"stage": Stage.RACE, "race_id": "race-2"}


@pytest.mark.parametrize(
    ("timed", "expected"),
    [
        ([], (None, "not timed there")),
        ([row(THEIRS, 120.0), row(OURS, 100.0)], (1.2, "screening")),
        ([row(THEIRS, 120.0), row(OURS, 100.0, study="other")], (None, "not timed together there")),
        ([row(THEIRS, 120.0), row(OURS, 100.0), row(THEIRS, 90.0, **RACE), row(OURS, 60.0, **RACE)], (1.5, "race")),
        ([row(THEIRS, 120.0, device=H100), row(OURS, 100.0)], (None, "not timed there")),
        ([row(THEIRS, 120.0, executor="replay"), row(OURS, 100.0)], (None, "not timed there")),
        ([row(THEIRS, 1.0, status=Status.HANG, timing=None), row(OURS, 100.0)], (None, "hang there")),
    ],
)
def test_a_ratio_is_of_times_that_were_taken_together(timed: list[Trial], expected: tuple[float | None, str]) -> None:
    assert found(*timed) == expected


def test_one_config_transfers_in_full_and_capped_devices_are_one_kind() -> None:
    same = [sample.trial(1, device=H100), sample.trial(2, race_id="race-2")]
    assert [(each.ratio, each.reason) for each in transfers(same)] == [(1.0, "the same config")] * 2
    assert transfers([sample.trial(1), sample.trial(2, device=sample.CAPPED_H200)]) == []
    assert transfers([sample.trial(1), sample.trial(2, device=H100, shape=replace(sample.SHAPE, batch=9))]) == []
