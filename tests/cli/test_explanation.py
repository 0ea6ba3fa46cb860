"""Explanations of configs: their fates by the trials, as plain data, and as text in one golden file."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from autotune.cli.explanation import (
    Explanation,
    Fate,
    Source,
    explain_candidate,
    explanation_data,
    explanation_lines,
)
from autotune.device import NVIDIA_H200
from autotune.search_spaces.flash_attention.operation import OPERATION
from autotune.search_spaces.flash_attention.triton import IMPLEMENTATION
from autotune.space import Config
from autotune.trial import Resources, Stage, Status, Trial
from tests import flex_sample, sample
from tests.golden import assert_golden

SHAPE = sample.shape()
SLOW = sample.config(BLOCK_Q=64, BLOCK_K=64, num_warps=4)
SLOWER = sample.config(BLOCK_Q=32, BLOCK_K=64, num_warps=2)
SMALL = Resources(shared_bytes=1024, registers=64, spill_bytes=8)
OLDER: Final[Mapping[str, dict[str, Any]]] = {
    "source": {"source_hash": "0" * 64},
    "triton": {"toolchain": replace(sample.TOOLCHAIN, triton="3.5.0")},
}


def screened(config: Config, median: float, **changes: Any) -> Trial:
    return sample.trial(SHAPE, config, stage=Stage.SCREEN, race_id="", timing=sample.timing(median), **changes)


def raced(config: Config, median: float, **changes: Any) -> Trial:
    return sample.trial(SHAPE, config, timing=sample.timing(median), **changes)


def failed(config: Config, stage: Stage) -> Trial:
    return sample.trial(SHAPE, config, status=Status.WRONG_RESULT, message="off by 3", timing=None, stage=stage)


def explained(config: Config, *trials: Trial, more: Sequence[Source] = ()) -> Explanation:
    sources = [Source("your tables", trials), *more]
    return explain_candidate(OPERATION, SHAPE, NVIDIA_H200, sample.candidate(config), sources)


WON = raced(sample.FAST, 200)
DEFAULT_WON = raced(
    sample.FAST, 200, is_default=True, default_timing=sample.timing(200), baseline="", baseline_timing=None
)
NEWER = raced(sample.FAST, 210, race_id="race-2", started_at=sample.START.replace(hour=12))
RAN_AT_SCREENING = (
    screened(SLOWER, 400, status=Status.SLOW),
    screened(sample.FAST, 210),
    screened(SLOW, 205),
    WON,
)
RACED = (screened(SLOW, 100), WON, raced(SLOW, 300, resources=SMALL), raced(SLOWER, 400))
LEADING = (screened(sample.FAST, 200), screened(SLOW, 300))
SHIPPED = Source("the shipped winners", [WON])
FLEX_TRIAL = flex_sample.trial(flex_sample.SMALL)

EXPLAINED: Final[Mapping[str, Explanation]] = {
    "won": explained(sample.FAST, screened(sample.FAST, 210), WON, raced(SLOW, 300)),
    "lost the race": explained(SLOW, *RACED),
    "lost with unknown resources": explained(SLOW, WON, raced(SLOW, 300, resources=Resources())),
    "lost at screening": explained(SLOWER, *RAN_AT_SCREENING),
    "lost level with the winner": explained(SLOW, raced(sample.FAST, 200.4, is_default=True), raced(SLOW, 200)),
    "lost to a newer race": explained(SLOW, raced(SLOW, 200), NEWER),
    "lost at screening with another source": explained(SLOWER, screened(SLOWER, 100, **OLDER["source"]), WON),
    "leading": explained(sample.FAST, *LEADING),
    "trailing": explained(SLOW, *LEADING),
    "failed at screening": explained(SLOW, WON, failed(SLOW, Stage.SCREEN)),
    "failed in the race": explained(SLOW, WON, failed(SLOW, Stage.RACE)),
    "pruned": explained(sample.config(num_warps=16), raced(sample.config(num_warps=16), 100), WON),
    "pruned by a value": explained(Config({**sample.FAST, "num_warps": 3})),
    "pruned by a word": explained(Config({**sample.FAST, "loads": "magic"})),
    "pruned by a parameter": explained(Config({**sample.FAST, "BLOCK_M": 64})),
    "never tried": explained(SLOW, WON, screened(sample.FAST, 200)),
    "never tried and served": replace(explained(SLOW, WON, LEADING[0]), served="nearest: a shape 0.5 away"),
    "nothing tried": explained(SLOW),
    "only the winner ships": explained(SLOW, more=[SHIPPED]),
    "a default that won": explained(sample.FAST, DEFAULT_WON),
    "a default that won among 1": explained(
        sample.FAST, LEADING[0], DEFAULT_WON, screened(SLOWER, 300, **OLDER["triton"])
    ),
    "a default that won among 2": explained(sample.FAST, *LEADING, DEFAULT_WON),
    "of a library": explain_candidate(
        OPERATION, flex_sample.SMALL, NVIDIA_H200, FLEX_TRIAL.candidate, [Source("your tables", [FLEX_TRIAL])]
    ),
}


def test_golden() -> None:
    parts = ("\n".join([f"# {name}", *explanation_lines(found)]) for name, found in EXPLAINED.items())
    assert_golden(Path(__file__).parent / "golden" / "explanation.txt", "\n\n".join(parts))


def test_a_winner_won() -> None:
    found = EXPLAINED["won"]
    assert (found.fate, found.trial, found.winner, found.faster) == (Fate.WON, WON, WON, 0)


def test_a_loser_is_compared_with_the_winner_of_its_race() -> None:
    found = EXPLAINED["lost the race"]
    assert (found.fate, found.rival, found.faster, found.compared) == (Fate.LOST, WON, 1, 3)


def test_a_config_that_was_not_raced_is_compared_with_the_winners_screening() -> None:
    mine, rival, *_ = RAN_AT_SCREENING
    found = EXPLAINED["lost at screening"]
    assert (found.trial, found.rival, found.faster) == (mine, rival, 2)


def test_a_config_level_with_the_winner_lost_to_the_fixed_order() -> None:
    found = EXPLAINED["lost level with the winner"]
    assert (found.fate, found.faster) == (Fate.LOST, 0)


def test_the_winner_of_an_earlier_race_lost_to_a_newer_one() -> None:
    found = EXPLAINED["lost to a newer race"]
    assert (found.fate, found.winner) == (Fate.LOST, NEWER)


@pytest.mark.parametrize("older", OLDER.values(), ids=OLDER)
def test_screenings_of_another_source_or_triton_are_not_compared(older: dict[str, Any]) -> None:
    then = [screened(SLOWER, 100, **older), screened(sample.FAST, 90, **older)]
    now = [screened(SLOW, 300), screened(sample.FAST, 210), WON]
    found = explained(SLOW, *then, *now)
    assert (found.rival, found.faster, found.compared) == (now[1], 1, 2)
    alone = explained(SLOWER, then[0], *now)
    assert (alone.fate, alone.rival, alone.compared) == (Fate.LOST, None, 1)


def test_without_a_race_the_fastest_leads() -> None:
    assert [EXPLAINED[name].fate for name in ("leading", "trailing")] == [Fate.LEADING, Fate.LOST]


@pytest.mark.parametrize("name", ["failed at screening", "failed in the race"])
def test_a_failure_has_its_message(name: str) -> None:
    assert (EXPLAINED[name].fate, EXPLAINED[name].reason) == (Fate.FAILED, "off by 3")


def test_a_config_that_the_space_refuses_was_pruned_although_it_was_recorded() -> None:
    found = EXPLAINED["pruned"]
    reason = IMPLEMENTATION.space.reject(found.candidate.config, SHAPE, NVIDIA_H200)
    assert (found.fate, found.reason, found.trial) == (Fate.PRUNED, reason, None)
    assert {EXPLAINED[f"pruned by a {what}"].fate for what in ("value", "word", "parameter")} == {Fate.PRUNED}


def test_a_config_without_a_row_was_never_tried() -> None:
    found = EXPLAINED["never tried"]
    assert (found.fate, found.winner) == (Fate.UNTRIED, WON)
    assert (EXPLAINED["nothing tried"].fate, EXPLAINED["nothing tried"].winner) == (Fate.UNTRIED, None)


def test_a_shape_whose_winner_alone_ships_does_not_show_what_was_tried() -> None:
    found = EXPLAINED["only the winner ships"]
    assert (found.fate, found.winner) == (Fate.UNKNOWN, WON)
    assert explanation_data(found)["fate"] == "not in any table"


def test_a_default_that_won_is_judged_by_the_configs_of_its_source_and_triton() -> None:
    tried = [EXPLAINED[f"a default that won{among}"].tried for among in ("", " among 1", " among 2")]
    assert tried == [0, 1, 2]


def test_the_first_source_that_has_the_config_decides() -> None:
    swept = Source("the shipped sweep s", [raced(SLOW, 300), raced(sample.FAST, 200)])
    assert explained(SLOW, raced(sample.FAST, 100), more=[swept]).source == "the shipped sweep s"
    assert explained(SLOW, raced(SLOW, 100), more=[swept]).source == "your tables"


@pytest.mark.parametrize("found", EXPLAINED.values(), ids=EXPLAINED)
def test_an_explanation_as_data_is_json(found: Explanation) -> None:
    data = json.loads(json.dumps(explanation_data(found)))
    assert data["config"] == {name: value for name, value in found.candidate.config.items() if value is not None}
    assert (data["trial"] is None) == (data["stage"] is None) == (found.trial is None)
    assert data["fate"] in list(Fate)
