"""The importance of parameters: shares by two evaluators, of one screening or in the mean over several."""

from collections.abc import Mapping, Sequence

from autotune.errors import MissingDependencyError
from autotune.lab.drawing.bars import Bar, bar_rows, legend
from autotune.lab.drawing.markup import Html, element
from autotune.lab.report.screening import Screening
from autotune.search.importance import EVALUATORS, Evaluator, importance
from autotune.units import count_text, percent_text

Shares = Mapping[Evaluator, Mapping[str, float]]

KINDS = {"fANOVA": "bar-fanova", "PED-ANOVA": "bar-ped"}
WORDS = {"fANOVA": "of the variance of log time over all configs", "PED-ANOVA": "of what tells the fastest tenth apart"}


def shares_of(screening: Screening) -> tuple[Shares, str]:
    """Return the shares by each evaluator that works here, and the reason why another does not."""
    found: dict[Evaluator, Mapping[str, float]] = {}
    missing = ""
    for evaluator in EVALUATORS:
        try:
            found[evaluator] = importance(
                screening.space, screening.device, (trial.outcome for trial in screening.trials), evaluator
            )
        except MissingDependencyError as error:
            missing = str(error)
    return {evaluator: shares for evaluator, shares in found.items() if shares}, missing


def mean_shares(several: Sequence[Shares]) -> Shares:
    """Return the mean share of each parameter over screenings, for each evaluator that had any."""
    means: dict[Evaluator, Mapping[str, float]] = {}
    for evaluator in EVALUATORS:
        known = [shares[evaluator] for shares in several if evaluator in shares]
        names = dict.fromkeys(name for shares in known for name in shares)
        if known:
            means[evaluator] = {name: sum(each.get(name, 0.0) for each in known) / len(known) for name in names}
    return means


def combined(shares: Shares) -> dict[str, float]:
    """Return one share a parameter, the mean of the evaluators, largest first."""
    names = dict.fromkeys(name for each in shares.values() for name in each)
    means = {name: sum(each.get(name, 0.0) for each in shares.values()) / len(shares) for name in names}
    return dict(sorted(means.items(), key=lambda item: (-item[1], item[0])))


def importance_figure(shares: Shares, missing: str, screenings: int = 1) -> Html:
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
    told = [(KINDS[evaluator], f"{evaluator}: share {WORDS[evaluator]}") for evaluator in shares]
    return element(
        "figure",
        element("figcaption", f"Which parameters matter{over}", element("small", missing) if missing else None),
        legend(told),
        bar_rows(bars),
        class_="importance",
    )
