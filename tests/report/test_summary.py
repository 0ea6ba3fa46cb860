"""Results in words say what the numbers say, no more."""

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from autotune.device import NVIDIA_H200
from autotune.report.summary import (
    Ratio,
    describe_rate,
    describe_time,
    ending_line,
    interruption_line,
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
from autotune.space import Config
from autotune.trial import Policy, Stage, Status, Timing, Trial
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


def test_rates_have_three_digits_and_no_exponent() -> None:
    assert [describe_rate(rate) for rate in (4077.8, 254.4, 24.68, 8.2, 0.03123, 0.00002)] == [
        *("4078", "254", "24.7", "8.2", "0.0312", "0.00002")
    ]


RATES: dict[str, tuple[dict[str, Any], str, str]] = {
    "16 bits above the ridge": ({"tflops": 344.0, "gbps": 1342.0}, "NVIDIA H200", "344 TFLOP/s"),
    "16 bits below the ridge": ({"tflops": 128.0, "gbps": 2000.0}, "NVIDIA H200", "2000 GB/s"),
    "float32": ({"problem": sample.shape(dtype="float32"), "tflops": 8.21, "gbps": 128}, "NVIDIA H200", "8.21 TFLOP/s"),
    "float32 below the ridge": (
        {"problem": sample.shape(dtype="float32"), "tflops": 4.0, "gbps": 1000},
        "NVIDIA H200",
        "1000 GB/s",
    ),
    "a device of which no data sheet is known": ({"tflops": 0.25, "gbps": 500}, "Some GPU", "0.25 TFLOP/s"),
}


@pytest.mark.parametrize(("changes", "name", "rate"), RATES.values(), ids=RATES)
def test_the_rate_that_limits_is_decided_by_device_and_dtype(changes: dict[str, Any], name: str, rate: str) -> None:
    """The ridge of an H200 is at 206 FLOPs a byte in 16 bits, at 14 in fp32."""
    won = sample.trial(**changes, device=replace(NVIDIA_H200, name=name))
    assert winner_lines(won)[1] == f"time      200.0 us (199.0-201.0), {rate}"


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


def found(*ties: Trial, best: Trial | None = None, **changes: Any) -> SearchResult:
    """The result of a search whose race the first of these won."""
    fields: dict[str, Any] = {
        "operation": OPERATION,
        "shape": sample.shape(),
        "winner": next(iter(ties), None),
        "ties": ties,
        "best_screened": best,
        "statuses": {Status.OK: 3},
        "valid": 362,
        "measured": 3,
        "resumed": 0,
        "seconds": 1.5,
        "ending": Ending.TRIALS,
        "recorded": (*ties, *([best] if best else [])),
    }
    return SearchResult(**{**fields, **changes})


def screened(chosen: Config = sample.FAST, **changes: Any) -> Trial:
    return sample.trial(chosen=chosen, stage=Stage.SCREEN, race_id="", baseline="", baseline_timing=None, **changes)


DEFAULT_WON = sample.trial(is_default=True, default_timing=sample.timing(200), baseline="", baseline_timing=None)
LIMITED = "nothing faster than the default among the"
CUT_SHORT: dict[str, tuple[dict[str, Any], str]] = {
    "trials": ({"measured": 1}, f"{LIMITED} 1 of 362 configs tried; raise --trials to try more"),
    "resumed": ({"resumed": 30}, f"{LIMITED} 33 of 362 configs tried; raise --trials to try more"),
    "seconds": ({"ending": Ending.SECONDS}, f"{LIMITED} 3 of 362 configs tried; raise --budget to try more"),
    "interrupted": ({"ending": Ending.INTERRUPTED}, f"{LIMITED} 3 of 362 configs tried; the same command tries more"),
    "converged": ({"ending": Ending.CONVERGED}, DEFAULT_WINS),
    "exhausted": ({"ending": Ending.EXHAUSTED}, DEFAULT_WINS),
    "as many trials as configs": ({"measured": 300, "resumed": 62}, DEFAULT_WINS),
}


@pytest.mark.parametrize(("changes", "text"), CUT_SHORT.values(), ids=CUT_SHORT)
def test_only_a_search_that_ran_its_course_says_that_tuning_gains_nothing(changes: dict[str, Any], text: str) -> None:
    result = found(DEFAULT_WON, **changes)
    assert result_lines(result)[-1] == f"verdict   {text}"
    assert result_data(result)["verdict"] == text


LIMITED_BASELINES = {
    "faster": (sample.timing(220), "tried; the default is faster than sdpa cudnn; raise --trials to try more"),
    "slower": (
        sample.timing(160),
        "tried; sdpa cudnn is 25 % faster here, where it offers all you need; raise --trials to try more",
    ),
    "level": (sample.timing(201), "tried; the default is level with sdpa cudnn; raise --trials to try more"),
}


@pytest.mark.parametrize(("timing", "text"), LIMITED_BASELINES.values(), ids=LIMITED_BASELINES)
def test_a_search_that_was_cut_short_compares_the_default_with_the_baseline(timing: Timing, text: str) -> None:
    result = found(sample.trial(is_default=True, baseline_timing=timing))
    assert result_data(result)["verdict"] == f"{LIMITED} 3 of 362 configs {text}"


def test_a_gain_is_worth_using_however_few_configs_were_tried() -> None:
    assert result_data(found(sample.trial()))["verdict"] == verdict(sample.trial())


@pytest.mark.parametrize(
    ("changes", "start"),
    [
        ({"measured": 1}, "1 config tried in 2 s, until the budget of trials was spent: 3 ok"),
        ({"measured": 0, "resumed": 1}, "0 configs tried and 1 known in 2 s, until "),
        (
            {"ending": Ending.SECONDS},
            "3 configs tried in 2 s, until only the race's part of the budget of time was left",
        ),
    ],
)
def test_how_a_search_ended(changes: dict[str, Any], start: str) -> None:
    assert ending_line(found(**changes)).startswith(start)


def test_what_an_interrupted_search_leaves() -> None:
    kept = "; everything is kept, run the same command to continue"
    assert interruption_line(found()) == f"interrupted: nothing was found yet{kept}"
    by_screening = f"interrupted: the best so far is {sample.FAST}, 200.0 us (199.0-201.0), by screening{kept}"
    assert interruption_line(found(best=screened())) == by_screening
    assert ", by screening" not in interruption_line(found(sample.trial(), best=screened()))


def test_the_best_by_screening_is_always_in_the_data() -> None:
    fastest = screened(timing=Timing(200.0, 199.0, 201.0, 15))
    best = result_data(found(best=fastest, ending=Ending.INTERRUPTED))["best"]
    assert best == {
        "config": {"BLOCK_Q": 128, "BLOCK_K": 128, "num_warps": 8, "num_stages": 2, "loads": "descriptor"},
        "timing": {"median_us": 200.0, "low_us": 199.0, "high_us": 201.0, "samples": 15},
        "stage": "screen",
    }
    assert result_data(found(sample.trial(), best=fastest))["best"] == best
    assert result_data(found())["best"] is None


def test_a_replay_whose_race_was_not_recorded_says_why_there_is_no_baseline() -> None:
    line = "baseline  not known: the recording raced other finalists, so the times here are those of its screening"
    won = sample.trial(executor="replay", baseline="", baseline_timing=None)
    lines = result_lines(found(won, best=screened()))
    assert lines[-2] == line
    raced = replace(won, outcome=replace(won.outcome, timing=sample.timing(201)))  # recorded: not the screening's time
    for other in (sample.trial(executor="replay"), replace(won, executor="gpu"), raced):
        assert line not in result_lines(found(other, best=screened()))


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
    chosen = result_lines(found(winner, best=screened(sample.config(num_warps=4))))[1]
    assert chosen.startswith("chosen    in the race, alone at the front; the best of the screening was not in it: ")


def test_the_verdict_on_a_shape_that_was_not_asked_for_names_it() -> None:
    result = found(sample.trial(), best=None)
    prefix = f"of {sample.shape()}, not of the shape asked for: "
    assert result_lines(result, is_asked=False)[-1] == f"verdict   {prefix}{verdict(sample.trial())}"
    assert result_data(result, is_asked=False)["verdict"] == prefix + verdict(sample.trial())


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_result_as_data_is_json(interrupted: bool) -> None:
    result = found(
        *([] if interrupted else [sample.trial()]),
        statuses={Status.OK: 3, Status.SLOW: 1},
        measured=4,
        resumed=2,
        ending=Ending.INTERRUPTED if interrupted else Ending.TRIALS,
        contended=2,
    )
    data = json.loads(json.dumps(result_data(result)))
    assert (data["operation"], data["shape"]["seq_q"]) == ("flash_attention", 1024)
    assert data["statuses"] == {"ok": 3, "slow": 1}
    assert (data["measured"], data["resumed"], data["seconds"], data["interrupted"]) == (4, 2, 1.5, interrupted)
    assert (data["ending"], data["contended"], data["valid"]) == (result.ending.value, 2, 362)
    assert (data["winner"] is None) == (data["verdict"] is None) == (data["ties"] == []) == interrupted
