"""The importance of parameters: shares by two evaluators, of one screening or in the mean over several."""

from collections.abc import Mapping, Sequence
from typing import Final

from autotune.errors import MissingDependencyError
from autotune.lab.drawing.bars import Bar, bar_rows, legend
from autotune.lab.drawing.markup import Html, element, figure
from autotune.lab.report.screening import Screening
from autotune.search.importance import EVALUATORS, Evaluator, importance
from autotune.units import count_text, percent_text

Shares = Mapping[Evaluator, Mapping[str, float]]

KINDS: Final = {"fANOVA": "bar-fanova", "PED-ANOVA": "bar-ped"}
WORDS: Final = {
    "fANOVA": "of the variance of log time over all configs",
    "PED-ANOVA": "of what tells the fastest tenth apart",
}


def shares_of(screening: Screening) -> tuple[Shares, str]:
    """Return the shares by each evaluator that works here, and the reason why another does not."""
    outcomes = [trial.outcome for trial in screening.trials]
    found: dict[Evaluator, Mapping[str, float]] = {}
    missing = ""
    for evaluator in EVALUATORS:
        try:
            found[evaluator] = importance(screening.space, screening.first.device, outcomes, evaluator)
        except MissingDependencyError as error:
            missing = str(error)
    return {evaluator: shares for evaluator, shares in found.items() if shares}, missing


def mean_shares(several: Sequence[Shares]) -> Shares:
    """Return the mean share of each parameter over screenings, for each evaluator that had any."""
    known = {evaluator: [shares[evaluator] for shares in several if evaluator in shares] for evaluator in EVALUATORS}
    return {evaluator: _means(shares) for evaluator, shares in known.items() if shares}


def combined(shares: Shares) -> dict[str, float]:
    """Return one share a parameter, the mean of the evaluators, largest first."""
    return dict(sorted(_means(list(shares.values())).items(), key=lambda item: (-item[1], item[0])))


def _means(several: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for shares in several for name in shares)
    return {name: sum(shares.get(name, 0.0) for shares in several) / len(several) for name in names}


def importance_figure(shares: Shares, remark: str, screenings: int = 1) -> Html:
    """Draw the shares as bars, all evaluators of a parameter together, most important first."""
    if not shares:
        return Html("")
    bars = [
        Bar(
            name if index == 0 else element("span", name, class_="unseen"),
            [(KINDS[evaluator], shares[evaluator].get(name, 0.0))],
            f"{percent_text(shares[evaluator].get(name, 0.0))} {evaluator}",
        )
        for name in combined(shares)
        for index, evaluator in enumerate(shares)
    ]
    over = f", mean over {count_text(screenings, 'problem')}" if screenings > 1 else ""
    kinds = [(KINDS[evaluator], f"{evaluator}: share {WORDS[evaluator]}") for evaluator in shares]
    return figure(f"Which parameters matter{over}", remark, legend(kinds), bar_rows(bars))
