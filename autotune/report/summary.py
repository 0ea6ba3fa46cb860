"""A search's result in words and as plain data."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from autotune.analysis.clock import unit_of
from autotune.roofline import product_dtype, roof_of
from autotune.shape import Shape
from autotune.trial import Policy, Stage, Status, Timing, Trial

if TYPE_CHECKING:
    from autotune.search import SearchResult

WORTH: Final = 1.01  # a gain whose whole interval is above this is worth a table


@dataclass(frozen=True, slots=True)
class Ratio:
    """How much longer one thing takes than another: medians' ratio, and the widest that both intervals allow."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f}x ({self.low:.2f}-{self.high:.2f})"


def speed_up(other: Timing, ours: Timing) -> Ratio:
    """How many times faster ``ours`` is than ``other``.

    Example:
        >>> str(speed_up(Timing(200.0, 198.0, 202.0, 15), Timing(100.0, 99.0, 101.0, 15)))
        '2.00x (1.96-2.04)'
    """
    return Ratio(
        other.median_us / ours.median_us,
        other.low_us / ours.high_us,
        other.high_us / ours.low_us,
    )


def describe_time(timing: Timing) -> str:
    """A median with its interval, in the unit that reads best."""
    unit, scale, digits = unit_of(timing.median_us)
    median, low, high = (value / scale for value in (timing.median_us, timing.low_us, timing.high_us))
    return f"{median:.{digits}f} {unit} ({low:.{digits}f}-{high:.{digits}f})"


def describe_rate(rate: float) -> str:
    """At least three digits and no exponent: 4078, 254, 24.7."""
    return f"{rate:.0f}" if rate >= 100.0 else f"{Decimal(f'{rate:.3g}'):f}"


def ending_line(result: "SearchResult") -> str:
    """How many configs a search tried, in which time, why it ended, and what became of them."""
    known = f" and {result.resumed} known" if result.resumed else ""
    return (
        f"{_configs(result.measured)} tried{known} in {result.seconds:.0f} s, until {result.ending}: "
        f"{status_text(result.statuses)}"
    )


def interruption_line(result: "SearchResult") -> str:
    """The best that an interrupted search leaves: its winner, or the best of the screening where nothing was raced."""
    best = result.winner or result.best_screened
    text = "nothing was found yet"
    if best is not None and best.timing is not None:
        stage = ", by screening" if best.stage is Stage.SCREEN else ""
        text = f"the best so far is {best.config}, {describe_time(best.timing)}{stage}"
    return f"interrupted: {text}; everything is kept, run the same command to continue"


def result_lines(result: "SearchResult", *, is_asked: bool = True) -> list[str]:
    """The winner of a search as ``winner_lines`` tells it, and why it is not the best of the screening where it is not.

    A search that was cut short does not say that tuning gains nothing; a replayed race that was not recorded is said to
    have no baseline. Where another shape was searched than the one asked for, ``is_asked`` is False and the verdict
    names it.
    """
    assert result.winner is not None
    first, *others, _ = winner_lines(result.winner)
    return [
        first,
        *_chosen_in_race(result),
        *others,
        *_answered_by_screening(result),
        f"verdict   {_verdict_of(result, is_asked=is_asked)}",
    ]


def _verdict_of(result: "SearchResult", *, is_asked: bool) -> str:
    assert result.winner is not None
    text = verdict(result.winner)
    if result.winner.is_default and (more := _how_to_try_more(result)):
        tried = result.measured + result.resumed
        text = f"{verdict(result.winner, among=f'{tried} of {_configs(result.valid)}')}; {more}"
    return text if is_asked else f"of {result.shape}, not of the shape asked for: {text}"


def _how_to_try_more(result: "SearchResult") -> str:
    """What continues a search that was cut short, in the command line's words; nothing if it ran its course."""
    from autotune.search import Ending  # loads Optuna, which only a command that has searched has loaded already

    if result.measured + result.resumed >= result.valid:
        return ""
    continued = {
        Ending.TRIALS: "raise --trials to try more",
        Ending.SECONDS: "raise --budget to try more",
        Ending.INTERRUPTED: "the same command tries more",
    }
    return continued.get(result.ending, "")


def _chosen_in_race(result: "SearchResult") -> list[str]:
    """A line where the race, and not the screening, decided: how many tied, and what came of the best there."""
    winner, best, tied = result.winner, result.best_screened, [trial.config for trial in result.ties]
    if winner is None or best is None or winner.config == best.config or winner.config not in tied:
        return []
    among = f"among {len(tied)} that tied" if len(tied) > 1 else "alone at the front"
    came = "one of them" if best.config in tied else "slower there"
    if best.config not in [trial.config for trial in result.recorded if trial.stage is Stage.RACE]:
        came = "not in it"  # the search was interrupted before that, or an earlier race refuted it
    return [f"chosen    in the race, {among}; the best of the screening was {came}: {best.config}"]


def _answered_by_screening(result: "SearchResult") -> list[str]:
    """A line where a replay had not recorded the race, and answered it with the times of the screening."""
    winner = result.winner
    if winner is None or winner.executor != "replay" or winner.baseline:
        return []
    screened = [t.timing for t in result.recorded if t.stage is Stage.SCREEN and t.config == winner.config]
    if winner.timing not in screened:
        return []
    return ["baseline  not known: the recording raced other finalists, so the times here are those of its screening"]


def winner_lines(winner: Trial) -> list[str]:
    """The winner, its gain over the default and over the fastest baseline, and whether it is worth using."""
    assert winner.timing is not None
    lines = [
        f"winner    {winner.config}",
        f"time      {describe_time(winner.timing)}{_rate(winner)}{policy_text(winner.policy)}",
    ]
    if winner.default_timing is not None:
        lines.append(f"default   {speed_up(winner.default_timing, winner.timing)} the speed of the default config")
    if winner.baseline_timing is not None:
        ratio = speed_up(winner.baseline_timing, winner.timing)
        lines.append(f"baseline  {ratio} the speed of {winner.baseline}, the fastest that was compared")
    lines.append(f"verdict   {verdict(winner)}")
    return lines


def verdict(winner: Trial, *, among: str = "") -> str:
    """In words: whether the winner is worth using.

    ``among`` says which configs were tried, such as "1 of 362 configs", where they were too few to say that tuning
    gains nothing.
    """
    assert winner.timing is not None
    join = ", and"
    if winner.is_default and among:
        text = f"nothing faster than the default among the {among} tried"
        join = "; the default is"
    elif winner.is_default:
        text = "tuning gains nothing at this shape: the default is among the fastest"
    elif winner.default_timing is None:
        text = "worth using: the default does not run here"
    elif speed_up(winner.default_timing, winner.timing).low > WORTH:
        gain = speed_up(winner.default_timing, winner.timing).value
        text = f"worth using: {100 * (gain - 1):.0f} % faster than the untuned default"
    else:
        text = "as good as the default: the difference is within measurement"
    if winner.baseline_timing is None:
        return text
    ratio = speed_up(winner.baseline_timing, winner.timing)
    if ratio.low > 1.0:
        return f"{text}{join} faster than {winner.baseline}"
    if ratio.high < 1.0:
        lag = 100 * (1 / ratio.value - 1)
        return f"{text}; {winner.baseline} is {lag:.0f} % faster here, where it offers all you need"
    return f"{text}{join} level with {winner.baseline}"


def is_limited_by_memory(tflops: float | None, gbps: float | None, device: str, shape: Shape) -> bool:
    """Whether GB/s is the rate to tell: by the data sheet of the named device, memory limits and not arithmetic.

    False where no data sheet is known.
    """
    roof = roof_of(device, product_dtype(shape))
    if roof is None or tflops is None or gbps is None:
        return False
    return 1000 * tflops < roof.ridge * gbps


def policy_text(policy: Policy) -> str:
    """How a time was taken where it was not the usual way, to follow the time."""
    return "" if policy == Policy() else f", {policy.mode} {policy.cache}"


def status_text(statuses: Mapping[Status, int]) -> str:
    """Trials by status, most frequent first."""
    ordered = sorted(statuses.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count} {status}" for status, count in ordered) or "none"


def trial_data(trial: Trial) -> dict[str, Any]:
    """A trial as plain data for ``--json``."""
    outcome = trial.outcome
    return {
        "operation": trial.operation,
        "shape": trial.shape.as_dict(),
        "device": asdict(trial.device),
        "config": {name: value for name, value in trial.config.items() if value is not None},
        "status": trial.status,
        "message": outcome.message,
        "timing": _plain(trial.timing),
        "default_timing": _plain(trial.default_timing),
        "baseline": trial.baseline,
        "baseline_timing": _plain(trial.baseline_timing),
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


def result_data(result: "SearchResult", *, is_asked: bool = True) -> dict[str, Any]:
    """A search's result as plain data for ``--json``; ``is_asked`` as in ``result_lines``."""
    return {
        "operation": result.operation.name,
        "shape": result.shape.as_dict(),
        "winner": None if result.winner is None else trial_data(result.winner),
        "verdict": None if result.winner is None else _verdict_of(result, is_asked=is_asked),
        "best": None if result.best_screened is None else _best_data(result.best_screened),
        "ties": [dict(trial.config) for trial in result.ties],
        "statuses": dict(result.statuses),
        "valid": result.valid,
        "measured": result.measured,
        "resumed": result.resumed,
        "seconds": result.seconds,
        "interrupted": result.interrupted,
        "ending": result.ending,
        "contended": result.contended,
    }


def _best_data(trial: Trial) -> dict[str, Any]:
    config = {name: value for name, value in trial.config.items() if value is not None}
    return {"config": config, "timing": _plain(trial.timing), "stage": trial.stage}


def _configs(count: int) -> str:
    return "1 config" if count == 1 else f"{count} configs"


def _plain(timing: Timing | None) -> dict[str, Any] | None:
    return None if timing is None else asdict(timing)


def _rate(trial: Trial) -> str:
    in_bytes = is_limited_by_memory(trial.tflops, trial.gbps, trial.device.name, trial.shape)
    rate, unit = (trial.gbps, "GB/s") if in_bytes else (trial.tflops, "TFLOP/s")
    return "" if rate is None else f", {describe_rate(rate)} {unit}"
