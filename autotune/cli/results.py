"""A search's result as text and as plain data."""

from typing import TYPE_CHECKING, Any

from autotune.console import winners
from autotune.console.winners import candidate_data, candidate_text, trial_data, verdict
from autotune.dispatch import pick_for_device
from autotune.trial import Stage, Trial
from autotune.units import count_text, time_text, timing_text

if TYPE_CHECKING:
    from autotune.search import ImplementationResult, SearchResult


def is_of_several(result: "SearchResult") -> bool:
    return sum(not part.skipped for part in result.implementations) > 1


def ending_line(result: "SearchResult") -> str:
    """Return the numbers of configs that a search tried, its time, its ending, and the statuses."""
    from autotune.search import Ending  # loads Optuna, which only a command that has searched has loaded already

    known = f" and {result.resumed} known" if result.resumed else ""
    is_over = (
        result.resumed and not result.measured and result.ending in (Ending.TRIALS, Ending.CONVERGED, Ending.EXHAUSTED)
    )
    ending = f"as {result.ending} before" if is_over else f"until {result.ending}"
    return (
        f"{count_text(result.measured, 'config')} tried{known} in {result.seconds:.0f} s, {ending}: "
        f"{winners.status_text(result.statuses)}"
    )


def interruption_line(result: "SearchResult") -> str:
    """Return the best of an interrupted search: its winner, or the best of the screening where nothing was raced."""
    best = result.winner or result.best_screened
    text = "nothing was found yet"
    if best is not None and best.timing is not None:
        stage = ", by screening" if best.stage is Stage.SCREEN else ""
        text = f"the best so far is {_named(best, result)}, {timing_text(best.timing)}{stage}"
    return f"interrupted: {text}; everything is kept, run the same command to continue"


def result_lines(result: "SearchResult", *, is_asked: bool = True) -> list[str]:
    """Describe the winner of a search as ``winner_lines`` does, and why it is not the best of the screening.

    After a search that was cut short the verdict does not conclude that tuning gains nothing; a replayed race that was
    not recorded has no baseline. ``is_asked`` is False where another shape was searched than the one asked for; the
    verdict names it.
    """
    assert result.winner is not None
    first, *others, _ = winners.winner_lines(result.winner, of_several=is_of_several(result))
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
        among = f"{result.measured + result.resumed} of {count_text(result.valid, 'config')}"
        text = f"{verdict(result.winner, among=among)}; {more}"
    return text if is_asked else f"of {result.shape}, not of the shape asked for: {text}"


def _how_to_try_more(result: "SearchResult") -> str:
    """Return how to continue a search that was cut short; empty if it ran its course."""
    from autotune.search import Ending

    if result.measured + result.resumed >= result.valid:
        return ""
    continued = {
        Ending.TRIALS: "raise --trials to try more",
        Ending.SECONDS: "raise --budget to try more",
        Ending.INTERRUPTED: "the same command tries more",
    }
    return continued.get(result.ending, "")


def _chosen_in_race(result: "SearchResult") -> list[str]:
    """Return the line on a winner that is not the best of the screening: the ties, and the fate of that best."""
    winner, best, tied = result.winner, result.best_screened, [trial.candidate for trial in result.ties]
    if winner is None or best is None or winner.candidate == best.candidate or winner.candidate not in tied:
        return []
    among = f"among {len(tied)} that tied" if len(tied) > 1 else "alone at the front"
    came = "one of them" if best.candidate in tied else "slower there"
    if best.candidate not in [trial.candidate for trial in result.recorded if trial.stage is Stage.RACE]:
        came = "not in it"  # the search was interrupted before that, or an earlier race refuted it
    return [f"chosen    in the race, {among}; the best of the screening was {came}: {_named(best, result)}"]


def _answered_by_screening(result: "SearchResult") -> list[str]:
    """Return the line on a replay without a recorded race, which the times of the screening answer."""
    winner = result.winner
    if winner is None or winner.executor != "replay" or winner.baseline:
        return []
    screened = [t.timing for t in result.recorded if t.stage is Stage.SCREEN and t.candidate == winner.candidate]
    if winner.timing not in screened:
        return []
    return ["baseline  not known: the recording raced other finalists, so the times here are those of its screening"]


def served_lines(result: "SearchResult") -> list[str]:
    """Return the line on the measured row that is served in place of a replay's winner, with the time that it has."""
    assert result.winner is not None
    served = pick_for_device(result.shape, result.winner.device, result.operation.name).provenance
    row = served.row
    if row is None or row.timing is None or (row.shape, row.executor) != (result.shape, "gpu"):
        return []
    config = "the same config" if row.candidate == result.winner.candidate else str(row.candidate)
    when = f"measured {row.started_at:%Y-%m-%d} ({served.origin} table)"
    return [f"served    {time_text(row.timing.median_us)}, {when}, in place of this replay: {config}"]


def result_data(result: "SearchResult", *, is_asked: bool = True) -> dict[str, Any]:
    """Return a search's result as plain data for ``--json``; ``is_asked`` as in ``result_lines``."""
    best = None
    if (row := result.best_screened) is not None:
        best = {**candidate_data(row.candidate), "timing": winners.timing_data(row.timing), "stage": row.stage}
    return {
        "operation": result.operation.name,
        "shape": result.shape.as_dict(),
        "winner": None if result.winner is None else trial_data(result.winner),
        "verdict": None if result.winner is None else _verdict_of(result, is_asked=is_asked),
        "best": best,
        "ties": [candidate_data(trial.candidate) for trial in result.ties],
        "statuses": dict(result.statuses),
        "implementations": [
            {"implementation": part.implementation, "skipped": part.skipped, **_counts(part)}
            for part in result.implementations
        ],
        **_counts(result),
        "seconds": result.seconds,
        "stages": dict(result.stages),
        "interrupted": result.interrupted,
        "ending": result.ending,
        "contended": result.contended,
    }


def _named(trial: Trial, result: "SearchResult") -> str:
    return candidate_text(trial.candidate, of_several=is_of_several(result))


def _counts(part: "SearchResult | ImplementationResult") -> dict[str, int]:
    return {"valid": part.valid, "measured": part.measured, "resumed": part.resumed}
