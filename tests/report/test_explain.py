"""What became of a config is read off the trials: pruned, failed, lost, level, leading, won, or never tried."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from autotune.device import NVIDIA_H200
from autotune.report.explain import (
    Explanation,
    Fate,
    Source,
    explain_config,
    explanation_data,
    explanation_lines,
)
from autotune.search_spaces.flash_attention import OPERATION
from autotune.search_spaces.flex_attention import OPERATION as FLEX
from autotune.space import Config
from autotune.trial import Resources, Stage, Status, Trial
from tests.report import flex_sample, sample

SHAPE = sample.shape()
SLOW = sample.config(BLOCK_Q=64, BLOCK_K=64, num_warps=4)
SLOWER = sample.config(BLOCK_Q=32, BLOCK_K=64, num_warps=2)
SMALL = Resources(shared_bytes=1024, registers=64, spill_bytes=8)


def screened(config: Config, median: float, **changes: Any) -> Trial:
    return sample.trial(SHAPE, config, stage=Stage.SCREEN, race_id="", timing=sample.timing(median), **changes)


def raced(config: Config, median: float, **changes: Any) -> Trial:
    return sample.trial(SHAPE, config, timing=sample.timing(median), **changes)


def explained(config: Config, *trials: Trial, more: Sequence[Source] = ()) -> Explanation:
    return explain_config(OPERATION, SHAPE, NVIDIA_H200, config, [Source("your tables", trials), *more])


def verdict(found: Explanation) -> str:
    (line,) = [line for line in explanation_lines(found) if line.startswith("verdict")]
    return line.split(maxsplit=1)[1]


def test_a_winner_won() -> None:
    won = raced(sample.FAST, 200)
    found = explained(sample.FAST, screened(sample.FAST, 210), won, raced(SLOW, 300))
    assert (found.fate, found.trial, found.winner, found.faster) == (Fate.WON, won, won, 0)
    lines = explanation_lines(found)
    assert lines[3] == "verdict   won; worth using: 20 % faster than the untuned default, and faster than sdpa cudnn"
    assert "takes     168 registers, 0 bytes spilled, 98304 bytes of shared memory" in lines
    assert [line.split()[0] for line in lines] == [
        *("config", "shape", "device", "verdict", "recorded", "takes", "time", "default", "baseline"),
    ]


def test_what_lost_the_race_is_set_beside_the_winner_of_that_race() -> None:
    trials = [screened(SLOW, 100), raced(sample.FAST, 200), raced(SLOW, 300, resources=SMALL), raced(SLOWER, 400)]
    found = explained(SLOW, *trials)
    assert (found.fate, found.rival, found.faster, found.compared) == (Fate.LOST, trials[1], 1, 3)
    lines = explanation_lines(found)
    assert verdict(found) == "lost in the race: 1 of 2 others were faster"
    assert "time      300.0 us (298.5-301.5) against 200.0 us (199.0-201.0), 1.50x (1.49-1.52) as long" in lines
    assert "takes     64 registers, 8 bytes spilled, 1024 bytes of shared memory" in lines
    assert "against   168 registers, 0 bytes spilled, 98304 bytes of shared memory" in lines
    assert lines[-1] == f"winner    {sample.FAST}"
    assert any("2026-11-21 06:00 UTC, measured by host:1 with triton 3.6.0, driver 580.1 in your" in x for x in lines)


def test_what_is_unknown_of_a_config_is_said_to_be() -> None:
    known = raced(sample.FAST, 200)
    found = explained(SLOW, known, raced(SLOW, 300, resources=Resources()))
    lines = explanation_lines(found)
    assert "takes     registers and shared memory are not known" in lines
    assert "against   168 registers, 0 bytes spilled, 98304 bytes of shared memory" in lines


def test_of_a_kernel_of_a_library_its_version_is_told() -> None:
    mine = flex_sample.trial(flex_sample.SMALL)
    sources = [Source("your tables", [mine])]
    found = explain_config(FLEX, flex_sample.SMALL, NVIDIA_H200, mine.config, sources)
    (line,) = [line for line in explanation_lines(found) if line.startswith("recorded")]
    assert line.endswith("measured by host:1 with triton 3.6.0, torch 2.11.0+cu130, driver 580.1 in your tables")


def test_what_was_not_raced_lost_at_screening_against_the_winners_screening() -> None:
    mine, rival = screened(SLOWER, 400, status=Status.SLOW), screened(sample.FAST, 210)
    found = explained(SLOWER, mine, rival, screened(SLOW, 205), raced(sample.FAST, 200))
    assert (found.trial, found.rival, found.faster) == (mine, rival, 2)
    assert verdict(found) == "lost at screening, stopped early: 2 of 2 others were faster"


def test_what_is_level_with_the_winner_lost_to_the_fixed_order() -> None:
    found = explained(SLOW, raced(sample.FAST, 200.4, is_default=True), raced(SLOW, 200))
    assert (found.fate, found.faster) == (Fate.LOST, 0)
    assert verdict(found).startswith("lost in the race, level with the winner: measurement cannot tell")


def test_the_winner_of_an_earlier_race_lost_to_a_newer_one() -> None:
    newer = sample.START.replace(hour=12)
    found = explained(SLOW, raced(SLOW, 200), raced(sample.FAST, 210, race_id="race-2", started_at=newer))
    assert verdict(found) == "lost: it won an earlier race, and a newer one decides"


@pytest.mark.parametrize(
    "older",
    [{"source_hash": "0" * 64}, {"toolchain": replace(sample.TOOLCHAIN, triton="3.5.0")}],
    ids=["source", "triton"],
)
def test_screenings_of_another_source_or_triton_are_not_compared(older: dict[str, Any]) -> None:
    then = [screened(SLOWER, 100, **older), screened(sample.FAST, 90, **older)]
    now = [screened(SLOW, 300), screened(sample.FAST, 210), raced(sample.FAST, 200)]
    found = explained(SLOW, *then, *now)
    assert (found.rival, found.faster, found.compared) == (now[1], 1, 2)
    alone = explained(SLOWER, then[0], *now)
    assert (alone.fate, alone.rival, alone.compared) == (Fate.LOST, None, 1)
    assert verdict(alone) == ("lost: the fastest of 1 screened of its source and Triton, and a race of others decides")


def test_without_a_race_the_fastest_leads_and_the_others_trail() -> None:
    trials = [screened(sample.FAST, 200), screened(SLOW, 300)]
    assert verdict(explained(sample.FAST, *trials)) == (
        "leading at screening, the fastest of 2; no race has decided yet"
    )
    assert verdict(explained(SLOW, *trials)) == "lost at screening: 1 of 1 others were faster"


@pytest.mark.parametrize("stage", Stage)
def test_a_failure_says_its_status_message_and_place(stage: Stage) -> None:
    mine = sample.trial(SHAPE, SLOW, status=Status.WRONG_RESULT, message="off by 3", timing=None, stage=stage)
    found = explained(SLOW, raced(sample.FAST, 200), mine)
    assert (found.fate, found.reason) == (Fate.FAILED, "off by 3")
    place = "in the race" if stage is Stage.RACE else "at screening"
    assert verdict(found) == f"failed {place} as wrong_result: off by 3"


def test_what_the_space_refuses_was_pruned_whatever_was_recorded() -> None:
    broken = sample.config(num_warps=16)
    found = explained(broken, raced(broken, 100), raced(sample.FAST, 200))
    reason = OPERATION.space.reject(broken, SHAPE, NVIDIA_H200)
    assert (found.fate, found.reason, found.trial) == (Fate.PRUNED, reason, None)
    assert verdict(found) == f"pruned before compiling: {reason}"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_warps": 3}, "num_warps=3 is not one of (1, 2, 4, 8, 16)"),
        ({"loads": "magic"}, "loads='magic' is not one of ('pointer', 'descriptor')"),
        ({"BLOCK_M": 64}, "BLOCK_M is no parameter of flash_attention; it has BLOCK_Q, BLOCK_K, num_warps"),
    ],
)
def test_what_no_space_has_was_pruned(changes: dict[str, Any], words: str) -> None:
    assert words in verdict(explained(Config({**sample.FAST, **changes})))


def test_what_no_table_knows_was_never_tried() -> None:
    found = explained(SLOW, raced(sample.FAST, 200), screened(sample.FAST, 200))
    assert (found.fate, found.winner) == (Fate.UNTRIED, raced(sample.FAST, 200))
    assert verdict(found) == "never tried: it is valid, and 1 other config was tried at this shape"
    assert explained(SLOW).winner is None
    assert verdict(explained(SLOW)) == "never tried: it is valid, but nothing was tried at this shape yet"


def test_of_a_shape_whose_winner_alone_ships_nothing_is_said_to_be_untried() -> None:
    found = explained(SLOW, more=[Source("the shipped winners", [raced(sample.FAST, 200)])])
    assert (found.fate, found.winner) == (Fate.UNKNOWN, raced(sample.FAST, 200))
    assert verdict(found) == "not in any table here: it is valid, and of this shape only the winner ships"
    assert explanation_data(found)["fate"] == "not in any table"
    assert explanation_lines(found)[-1] == f"winner    {sample.FAST}"


def test_a_default_that_won_is_judged_by_how_many_were_tried() -> None:
    won = raced(sample.FAST, 200, is_default=True, default_timing=sample.timing(200), baseline="", baseline_timing=None)
    other_triton = screened(SLOWER, 300, toolchain=replace(sample.TOOLCHAIN, triton="3.5.0"))
    limited = "won; nothing faster than the default among the"
    mine = [screened(sample.FAST, 200), won]
    assert verdict(explained(sample.FAST, *mine, other_triton)) == f"{limited} 1 config tried"
    assert verdict(explained(sample.FAST, *mine, screened(SLOW, 300))) == f"{limited} 2 configs tried"
    alone = "won; tuning gains nothing at this shape: the default is among the fastest"
    assert verdict(explained(sample.FAST, won)) == alone


def test_the_first_source_that_knows_the_config_decides() -> None:
    swept = Source("the shipped sweep s", [raced(SLOW, 300), raced(sample.FAST, 200)])
    assert explained(SLOW, raced(sample.FAST, 100), more=[swept]).source == "the shipped sweep s"
    assert explained(SLOW, raced(SLOW, 100), more=[swept]).source == "your tables"


@pytest.mark.parametrize(
    "trials",
    [
        (),
        (raced(sample.FAST, 200), raced(SLOW, 300)),
        (screened(SLOW, 300, status=Status.HANG),),
    ],
    ids=["none", "race", "failed"],
)
def test_an_explanation_as_data_is_json(trials: tuple[Trial, ...]) -> None:
    data = json.loads(json.dumps(explanation_data(explained(SLOW, *trials))))
    assert data["config"] == {name: value for name, value in SLOW.items() if value is not None}
    assert (data["trial"] is None) == (data["stage"] is None) == (not trials)
    assert data["fate"] in list(Fate)
