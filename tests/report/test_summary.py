"""Results in words say what the numbers say, no more."""

import json
from collections import Counter
from typing import Any

import pytest

from autotune.report.summary import (
    Ratio,
    describe_time,
    result_data,
    result_lines,
    speed_up,
    status_text,
    trial_data,
    verdict,
    winner_lines,
)
from autotune.search import Ending, SearchResult
from autotune.search_spaces.flash_attention import OPERATION
from autotune.trial import Policy, Status, Timing, Trial
from tests.report import sample


def test_speed_up_is_the_ratio_of_medians_and_the_widest_that_the_intervals_allow() -> None:
    ratio = speed_up(Timing(200.0, 190.0, 220.0, 15), Timing(100.0, 95.0, 110.0, 15))
    assert ratio == Ratio(2.0, 190 / 110, 220 / 95)
    assert str(ratio) == "2.00x (1.73-2.32)"


@pytest.mark.parametrize(
    ("timing", "text"),
    [
        (Timing(123.456, 120.0, 130.04, 15), "123.5 us (120.0-130.0)"),
        (Timing(999.9, 999.0, 1001.0, 15), "999.9 us (999.0-1001.0)"),
        (Timing(1000.0, 990.0, 1234.5678, 15), "1.000 ms (0.990-1.235)"),
    ],
)
def test_times_come_in_the_unit_that_reads_best(timing: Timing, text: str) -> None:
    assert describe_time(timing) == text


DEFAULT_WINS = "tuning gains nothing at this shape: the default is among the fastest"
CLEAR_GAIN = "worth using: 20 % faster than the untuned default"
WITHIN_NOISE = "as good as the default: the difference is within measurement"
NO_DEFAULT = "worth using: the default does not run here"

VERDICTS: dict[str, tuple[dict[str, Any], str]] = {
    "default wins": ({"is_default": True, "default_timing": sample.timing(200)}, DEFAULT_WINS),
    "clear gain": ({"default_timing": sample.timing(240)}, CLEAR_GAIN),
    "gain whose interval reaches 1 %": ({"default_timing": sample.timing(204)}, WITHIN_NOISE),
    "gain that noise hides": ({"default_timing": sample.timing(240, spread=0.2)}, WITHIN_NOISE),
    "default does not run": ({"default_timing": None}, NO_DEFAULT),
}


@pytest.mark.parametrize(("changes", "text"), VERDICTS.values(), ids=VERDICTS)
def test_the_verdict_on_the_default(changes: dict[str, Any], text: str) -> None:
    assert verdict(sample.trial(**changes, baseline="", baseline_timing=None)) == text


BASELINES = {
    "faster": (sample.timing(220), f"{CLEAR_GAIN}, and faster than sdpa cudnn"),
    "slower": (sample.timing(160), f"{CLEAR_GAIN}; sdpa cudnn is 25 % faster here, where it offers all you need"),
    "level": (sample.timing(201), f"{CLEAR_GAIN}, and level with sdpa cudnn"),
}


@pytest.mark.parametrize(("timing", "text"), BASELINES.values(), ids=BASELINES)
def test_the_verdict_on_torch(timing: Timing, text: str) -> None:
    assert verdict(sample.trial(baseline_timing=timing)) == text


def test_the_last_lines_say_winner_gains_and_verdict() -> None:
    assert winner_lines(sample.trial()) == [
        "winner    BLOCK_Q=128 BLOCK_K=128 num_warps=8 num_stages=2 loads=descriptor",
        "time      200.0 us (199.0-201.0), 344 TFLOP/s",
        "default   1.20x (1.19-1.21) the speed of the default config",
        "baseline  1.05x (1.04-1.06) the speed of sdpa cudnn, the fastest that was compared",
        f"verdict   {CLEAR_GAIN}, and faster than sdpa cudnn",
    ]


def test_a_policy_is_said_where_it_is_not_the_usual_one() -> None:
    trial = sample.trial(policy=Policy("eager", "warm"))
    assert winner_lines(trial)[1] == "time      200.0 us (199.0-201.0), 344 TFLOP/s, eager warm"
    assert trial_data(trial)["policy"] == {"mode": "eager", "cache": "warm"}


def test_lines_about_what_was_not_measured_are_left_out() -> None:
    bare = sample.trial(default_timing=None, baseline="", baseline_timing=None, tflops=None)
    assert winner_lines(bare) == [
        f"winner    {sample.FAST}",
        "time      200.0 us (199.0-201.0)",
        f"verdict   {NO_DEFAULT}",
    ]


def test_statuses_come_most_frequent_first() -> None:
    assert status_text(Counter([Status.SLOW, Status.OK, Status.OK, Status.HANG])) == "2 ok, 1 hang, 1 slow"
    assert status_text({}) == "none"


def test_a_trial_as_data_is_json_with_every_number() -> None:
    trial = sample.trial(timing=Timing(200.0, 199.0, 201.0, 15))
    data = json.loads(json.dumps(trial_data(trial)))
    assert data["shape"] == trial.shape.as_dict()
    assert data["config"] == {name: value for name, value in trial.config.items() if value is not None}
    assert data["timing"] == {"median_us": 200.0, "low_us": 199.0, "high_us": 201.0, "samples": 15}
    assert data["default_timing"]["median_us"] == 240.0
    assert (data["baseline"], data["baseline_timing"]["median_us"]) == ("sdpa cudnn", 210.0)
    assert (data["tflops"], data["gbps"], data["error"], data["error_limit"]) == (344.0, 1342.0, 0.001, 0.004)
    assert data["resources"] == {"shared_bytes": 98304, "registers": 168, "spill_bytes": 0, "binary": None}
    assert (data["device"]["name"], data["device"]["power_cap_watts"]) == ("NVIDIA H200", 700)
    assert (data["toolchain"]["triton"], data["started_at"]) == ("3.6.0", "2026-11-21T06:00:00+00:00")
    assert (data["status"], data["executor"], data["is_default"]) == ("ok", "gpu", False)


def found(*ties: Trial, best: Trial | None) -> SearchResult:
    """The result of a search whose race the first of these won."""
    return SearchResult(
        operation=OPERATION,
        shape=sample.shape(),
        winner=ties[0],
        ties=ties,
        best_screened=best,
        statuses={Status.OK: 3},
        measured=3,
        resumed=0,
        seconds=1.5,
        ending=Ending.TRIALS,
    )


def test_a_winner_that_screening_did_not_put_first_says_who_chose_it() -> None:
    winner, other = sample.trial(), sample.trial(chosen=sample.config(num_warps=4))
    plain = winner_lines(winner)
    assert result_lines(found(winner, other, best=winner)) == plain
    assert result_lines(found(winner, best=None)) == plain
    first, chosen, *others = result_lines(found(winner, other, best=other))
    assert [first, *others] == plain
    assert chosen == (
        "chosen    in the race, among 2 that tied; the best of the screening was one of them: "
        "BLOCK_Q=128 BLOCK_K=128 num_warps=4 num_stages=2 loads=descriptor"
    )
    chosen = result_lines(found(winner, best=other))[1]
    assert chosen.startswith("chosen    in the race, alone at the front; the best of the screening was slower there: ")


def test_the_verdict_on_a_shape_that_was_not_asked_for_names_it() -> None:
    result = found(sample.trial(), best=None)
    prefix = f"of {sample.shape()}, not of the shape asked for: "
    assert result_lines(result, is_asked=False)[-1] == f"verdict   {prefix}{verdict(sample.trial())}"
    assert result_data(result, is_asked=False)["verdict"] == prefix + verdict(sample.trial())


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_result_as_data_is_json(interrupted: bool) -> None:
    winner = None if interrupted else sample.trial()
    result = SearchResult(
        operation=OPERATION,
        shape=sample.shape(),
        winner=winner,
        ties=() if winner is None else (winner,),
        best_screened=None,
        statuses={Status.OK: 3, Status.SLOW: 1},
        measured=4,
        resumed=2,
        seconds=1.5,
        ending=Ending.INTERRUPTED if interrupted else Ending.TRIALS,
        contended=2,
    )
    data = json.loads(json.dumps(result_data(result)))
    assert (data["operation"], data["shape"]["seq_q"]) == ("flash_attention", 1024)
    assert data["statuses"] == {"ok": 3, "slow": 1}
    assert (data["measured"], data["resumed"], data["seconds"], data["interrupted"]) == (4, 2, 1.5, interrupted)
    assert (data["ending"], data["contended"]) == (result.ending.value, 2)
    assert (data["winner"] is None) == (data["verdict"] is None) == (data["ties"] == []) == interrupted
