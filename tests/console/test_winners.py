"""Winners as text and as plain data."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from autotune.console.winners import Ratio, gain_over_served, speed_up, status_text, trial_data, verdict, winner_lines
from autotune.device import NVIDIA_H200
from autotune.registry import get_implementation
from autotune.trial import Policy, Status, Timing
from tests import sample
from tests.golden import assert_golden


def test_speed_up_is_the_ratio_of_medians_and_the_widest_that_the_intervals_allow() -> None:
    ratio = speed_up(Timing(200.0, 190.0, 220.0, 15), Timing(100.0, 95.0, 110.0, 15))
    assert ratio == Ratio(2.0, 190 / 110, 220 / 95)
    assert str(ratio) == "2.00x (1.73-2.32)"


RATES: dict[str, tuple[dict[str, Any], str, str]] = {
    "16 bits above the ridge": ({"tflops": 344.0, "gbps": 1342.0}, "NVIDIA H200", "344 TFLOP/s"),
    "16 bits below the ridge": ({"tflops": 128.0, "gbps": 2000.0}, "NVIDIA H200", "2000 GB/s"),
    "float32": ({"problem": sample.shape(dtype="float32"), "tflops": 8.21, "gbps": 128}, "NVIDIA H200", "8.21 TFLOP/s"),
    "float32 below the ridge": (
        {"problem": sample.shape(dtype="float32"), "tflops": 4.0, "gbps": 1000},
        "NVIDIA H200",
        "1000 GB/s",
    ),
    "a device of which no data sheet is known": ({"tflops": 0.25, "gbps": 500}, "Some GPU", "250 GFLOP/s"),
}


@pytest.mark.parametrize(("changes", "name", "rate"), RATES.values(), ids=RATES)
def test_the_rate_that_limits_is_decided_by_device_and_dtype(changes: dict[str, Any], name: str, rate: str) -> None:
    """The ridge of an H200 is at 206 FLOPs a byte in 16 bits, at 14 in fp32."""
    won = sample.trial(**changes, device=replace(NVIDIA_H200, name=name))
    assert winner_lines(won)[1] == f"time      200.0 us (199.0-201.0), {rate}"


def test_which_default_it_was_and_what_people_write_by_hand_are_said() -> None:
    plain = sample.trial()
    space = replace(plain, default_config=get_implementation("flash_attention", "triton").space.default(*PROBLEM))
    assert winner_lines(space) == winner_lines(plain)
    chosen = replace(plain, default_config=sample.config(num_stages=3), heuristic_timing=sample.timing(300.0))
    lines = winner_lines(chosen)
    assert "default   1.20x (1.19-1.21) the speed of the portfolio's default" in lines
    assert "heuristic 1.50x (1.49-1.52) the speed of the config that people write by hand" in lines
    assert "20 % faster than the portfolio's default" in verdict(chosen)
    assert "20 % faster than the space's default" in verdict(plain)
    data = trial_data(chosen)
    assert data["default_config"]["num_stages"] == 3
    assert data["heuristic_timing"]["median_us"] == 300.0
    assert trial_data(plain)["default_config"] is None


PROBLEM: Final = (sample.shape(), NVIDIA_H200)
VERDICTS: Final[dict[str, dict[str, Any]]] = {
    "the default wins": {"is_default": True, "default_timing": sample.timing(200)},
    "a clear gain": {"default_timing": sample.timing(240)},
    "a gain whose interval reaches 1 %": {"default_timing": sample.timing(204)},
    "a gain within noise": {"default_timing": sample.timing(240, spread=0.2)},
    "no default": {"default_timing": None},
}
BASELINES: Final[dict[str, dict[str, Any]]] = {
    "no baseline": {"baseline": "", "baseline_timing": None},
    "a slower baseline": {"baseline_timing": sample.timing(220)},
    "a faster baseline": {"baseline_timing": sample.timing(160)},
    "a level baseline": {"baseline_timing": sample.timing(201)},
}


def test_golden() -> None:
    parts = [
        "\n".join([f"# {default}, {baseline}", *winner_lines(sample.trial(**gain, **other))])
        for default, gain in VERDICTS.items()
        for baseline, other in BASELINES.items()
    ]
    limited = sample.trial(is_default=True, default_timing=sample.timing(200))
    parts.append(f"# few tried\n{verdict(limited, among='1 of 362 configs')}")
    assert_golden(Path(__file__).parent / "golden" / "winners.txt", "\n\n".join(parts))


@pytest.mark.parametrize(
    ("default", "judged"), list(zip(VERDICTS, ("gains nothing", "worth", "as good", "as good", "worth"), strict=True))
)
def test_a_gain_is_worth_using_beyond_one_percent_and_noise(default: str, judged: str) -> None:
    assert judged in verdict(sample.trial(**VERDICTS[default]))


def test_an_unusual_policy_follows_the_time() -> None:
    trial = sample.trial(policy=Policy("eager", "warm"))
    assert winner_lines(trial)[1] == "time      200.0 us (199.0-201.0), 344 TFLOP/s, eager warm"
    assert trial_data(trial)["policy"] == {"mode": "eager", "cache": "warm"}


def test_what_was_not_measured_has_no_line() -> None:
    bare = sample.trial(default_timing=None, baseline="", baseline_timing=None, tflops=None)
    assert [line.split()[0] for line in winner_lines(bare)] == ["winner", "time", "verdict"]


@pytest.mark.parametrize(
    ("served", "is_served", "judged"),
    [
        (268.0, False, "worth using: 34 % faster than what the tables had served"),
        (201.0, False, "gains nothing"),  # within the noise
        (268.0, True, "gains nothing"),  # it was its own row
        (None, False, "gains nothing"),  # it failed
    ],
)
def test_a_default_that_was_not_served_gained_what_it_takes_less(
    served: float | None, is_served: bool, judged: str
) -> None:
    timing = None if served is None else sample.timing(served)
    winner = sample.trial(**VERDICTS["the default wins"], served_timing=timing, is_served=is_served)
    assert judged in verdict(winner)
    before = [line for line in winner_lines(winner) if line.startswith("before ")]
    expected = [] if is_served or served is None else [f"before    {gain_over_served(winner)} the speed of what"]
    assert [line.removesuffix(" the tables had served") for line in before] == expected


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
