"""Winners as text and as plain data: times, gains and verdicts."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from autotune.registry import get_implementation, get_operation
from autotune.roofline import product_dtype, roof_of
from autotune.shape import Shape
from autotune.space import Config
from autotune.trial import Candidate, Policy, Status, Timing, Trial
from autotune.units import gbps_text, ratio_text, tflops_text, timing_text

WORTH: Final = 1.01  # a gain whose whole interval is above this is worth a table
SPACES_DEFAULT: Final = "space's default"  # of a winner's race, where no portfolio had another


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of two times: that of the medians, and the widest that both intervals allow."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{ratio_text(self.value)} ({self.low:.2f}-{self.high:.2f})"


def speed_up(other: Timing, ours: Timing) -> Ratio:
    """Return the ratio of another time to ours: above 1 where ours is faster.

    Example:
        >>> str(speed_up(Timing(200.0, 198.0, 202.0, 15), Timing(100.0, 99.0, 101.0, 15)))
        '2.00x (1.96-2.04)'
    """
    return Ratio(other.median_us / ours.median_us, other.low_us / ours.high_us, other.high_us / ours.low_us)


def gain(winner: Trial) -> Ratio | None:
    """Return the speed of a winner over that of the default, where both were measured in one race."""
    return speed_up(winner.default_timing, winner.timing) if winner.default_timing and winner.timing else None


def gain_by_hand(winner: Trial) -> Ratio | None:
    """Return the speed of a winner over that of the best config written by hand, where both were in one race."""
    return speed_up(winner.heuristic_timing, winner.timing) if winner.heuristic_timing and winner.timing else None


def default_name(winner: Trial) -> str:
    """Name what was the default of a winner's race: the portfolio's choice, or the default of the space."""
    chosen = winner.default_config
    space = get_implementation(winner.operation, winner.implementation).space
    is_space = chosen is None or chosen == space.default(winner.shape, winner.device)
    return SPACES_DEFAULT if is_space else "portfolio's default"


def lead(winner: Trial) -> Ratio | None:
    """Return the speed of a winner over that of the fastest baseline, where one was measured in its race."""
    return speed_up(winner.baseline_timing, winner.timing) if winner.baseline_timing and winner.timing else None


def gain_over_served(winner: Trial) -> Ratio | None:
    """Return the speed of a winner over that of what the tables had served; None where that was its own row."""
    if winner.is_served or not (winner.served_timing and winner.timing):
        return None
    return speed_up(winner.served_timing, winner.timing)


def candidate_text(candidate: Candidate, *, of_several: bool) -> str:
    """Return a config, after the name of its implementation where there are several to tell apart."""
    return str(candidate if of_several else candidate.config)


def winner_lines(winner: Trial, *, of_several: bool = False) -> list[str]:
    """Describe a winner, its gain over the default and over the fastest baseline, and give a verdict."""
    assert winner.timing is not None
    lines = [
        f"winner    {candidate_text(winner.candidate, of_several=of_several)}",
        f"time      {timing_text(winner.timing)}{_rate(winner)}{policy_text(winner.policy)}",
    ]
    if (ratio := gain(winner)) is not None:
        lines.append(f"default   {ratio} the speed of the {default_name(winner)}")
    if (ratio := gain_over_served(winner)) is not None:
        lines.append(f"before    {ratio} the speed of what the tables had served")
    if (ratio := gain_by_hand(winner)) is not None:
        lines.append(f"heuristic {ratio} the speed of the config that people write by hand")
    if (ratio := lead(winner)) is not None:
        lines.append(f"baseline  {ratio} the speed of {winner.baseline}, the fastest that was compared")
    return [*lines, f"verdict   {verdict(winner)}"]


def verdict(winner: Trial, *, among: str = "") -> str:
    """Judge whether a winner is worth using.

    ``among`` names the configs that were tried, such as "1 of 362 configs", where these were too few to conclude that
    tuning gains nothing.
    """
    gained, ahead, join, default = gain(winner), lead(winner), ", and", default_name(winner)
    before = gain_over_served(winner)
    if winner.is_default and before is not None and before.low > WORTH:
        text = f"worth using: {100 * (before.value - 1):.0f} % faster than what the tables had served"
    elif winner.is_default and among:
        text, join = f"nothing faster than the {default} among the {among} tried", f"; the {default} is"
    elif winner.is_default:
        text = f"tuning gains nothing at this shape: the {default} is among the fastest"
    elif gained is None:
        text = f"worth using: the {default} does not run here"
    elif gained.low > WORTH:
        text = f"worth using: {100 * (gained.value - 1):.0f} % faster than the {default}"
    else:
        text = f"as good as the {default}: the difference is within measurement"
    if ahead is None:
        return text
    if ahead.low > 1.0:
        return f"{text}{join} faster than {winner.baseline}"
    if ahead.high < 1.0:
        lag = 100 * (1 / ahead.value - 1)
        return f"{text}; {winner.baseline} is {lag:.0f} % faster here, where it offers all you need"
    return f"{text}{join} level with {winner.baseline}"


def is_limited_by_memory(tflops: float | None, gbps: float | None, device: str, operation: str, shape: Shape) -> bool:
    """Return True if memory, not arithmetic, limits a kernel by the device's data sheet; False without one."""
    roof = roof_of(device, product_dtype(get_operation(operation), shape))
    if roof is None or tflops is None or gbps is None:
        return False
    return 1000 * tflops < roof.ridge * gbps


def policy_text(policy: Policy) -> str:
    """Return a policy other than the usual one, as text to follow a time."""
    return "" if policy == Policy() else f", {policy.mode} {policy.cache}"


def status_text(statuses: Mapping[Status, int]) -> str:
    """Return trials by status, most frequent first."""
    ordered = sorted(statuses.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count} {status}" for status, count in ordered) or "none"


def trial_data(trial: Trial) -> dict[str, Any]:
    outcome = trial.outcome
    return {
        "operation": trial.operation,
        "shape": trial.shape.as_dict(),
        "device": asdict(trial.device),
        **candidate_data(trial.candidate),
        "status": trial.status,
        "message": outcome.message,
        "timing": timing_data(trial.timing),
        "default_timing": timing_data(trial.default_timing),
        "default_config": None if trial.default_config is None else config_data(trial.default_config),
        "heuristic_timing": timing_data(trial.heuristic_timing),
        "served_timing": timing_data(trial.served_timing),
        "served_rung": trial.served_rung,
        "is_served": trial.is_served,
        "expected_regret": trial.expected_regret,
        "evidence": trial.evidence,
        "baseline": trial.baseline,
        "baseline_timing": timing_data(trial.baseline_timing),
        "tflops": trial.tflops,
        "gbps": trial.gbps,
        "error": outcome.error,
        "error_limit": outcome.error_limit,
        "resources": asdict(outcome.resources),
        "is_default": trial.is_default,
        "executor": trial.executor,
        "policy": asdict(trial.policy),
        "toolchain": asdict(trial.toolchain),
        "started_at": trial.started_at.isoformat(),
    }


def timing_data(timing: Timing | None) -> dict[str, Any] | None:
    return None if timing is None else asdict(timing)


def candidate_data(candidate: Candidate) -> dict[str, Any]:
    return {"implementation": candidate.implementation, "config": config_data(candidate.config)}


def config_data(config: Config) -> dict[str, Any]:
    """Return a config as plain data, without the parameters that its device does not have."""
    return {name: value for name, value in config.items() if value is not None}


def _rate(trial: Trial) -> str:
    if is_limited_by_memory(trial.tflops, trial.gbps, trial.device.name, trial.operation, trial.shape):
        return "" if trial.gbps is None else f", {gbps_text(trial.gbps)}"
    return "" if trial.tflops is None else f", {tflops_text(trial.tflops)}"
