"""Which parameters matter: shares by two evaluators, of one problem or in the mean over several."""

from collections.abc import Mapping, Sequence

from autotune.errors import MissingDependencyError
from autotune.report.page.bars import Bar, bar_rows, legend
from autotune.report.page.markup import Html, count, element, percent
from autotune.report.page.problem import Problem
from autotune.search.importance import EVALUATORS, Evaluator, importance

Shares = Mapping[Evaluator, Mapping[str, float]]

KINDS = {"fANOVA": "bar-fanova", "PED-ANOVA": "bar-ped"}
WORDS = {"fANOVA": "of the variance of log time over all configs", "PED-ANOVA": "of what tells the fastest tenth apart"}


def shares_of(problem: Problem) -> tuple[Shares, str]:
    """The shares by each evaluator that works here, and why another does not."""
    found: dict[Evaluator, Mapping[str, float]] = {}
    missing = ""
    for evaluator in EVALUATORS:
        try:
            found[evaluator] = importance(
                problem.operation.space, problem.device, (trial.outcome for trial in problem.trials), evaluator
            )
        except MissingDependencyError as error:
            missing = str(error)
    return {evaluator: shares for evaluator, shares in found.items() if shares}, missing


def mean_shares(several: Sequence[Shares]) -> Shares:
    """The mean share of each parameter over problems, for each evaluator that had any."""
    means: dict[Evaluator, Mapping[str, float]] = {}
    for evaluator in EVALUATORS:
        known = [shares[evaluator] for shares in several if evaluator in shares]
        names = dict.fromkeys(name for shares in known for name in shares)
        if known:
            means[evaluator] = {name: sum(each.get(name, 0.0) for each in known) / len(known) for name in names}
    return means


def combined(shares: Shares) -> dict[str, float]:
    """One share a parameter, the mean of the evaluators, largest first."""
    names = dict.fromkeys(name for each in shares.values() for name in each)
    means = {name: sum(each.get(name, 0.0) for each in shares.values()) / len(shares) for name in names}
    return dict(sorted(means.items(), key=lambda item: (-item[1], item[0])))


def importance_figure(shares: Shares, missing: str, problems: int = 1) -> Html:
    """Bars of the shares, a parameter with all evaluators after the other, most important first."""
    if not shares:
        return Html("")
    bars = [
        Bar(
            name if index == 0 else element("span", name, class_="unseen"),
            [(KINDS[evaluator], shares[evaluator].get(name, 0.0))],
            f"{percent(shares[evaluator].get(name, 0.0))} {evaluator}",
        )
        for name in combined(shares)
        for index, evaluator in enumerate(shares)
    ]
    over = f", mean over {count(problems, 'problem')}" if problems > 1 else ""
    told = [(KINDS[evaluator], f"{evaluator}: share {WORDS[evaluator]}") for evaluator in shares]
    return element(
        "figure",
        element("figcaption", f"Which parameters matter{over}", element("small", missing) if missing else None),
        legend(told),
        bar_rows(bars),
        class_="importance",
    )
