"""Shares of parameters in what makes configs differ, by two evaluators of Optuna."""

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, get_args

import optuna

from autotune.device import Device
from autotune.errors import MissingDependencyError, UnknownNameError
from autotune.search.encoding import Encoding, PartialEncoding, parameters_on
from autotune.search.study import create_study, finished_trial
from autotune.space import Config, Space
from autotune.trial import Outcome, Status

Evaluator = Literal["fANOVA", "PED-ANOVA"]
EVALUATORS: Final[tuple[Evaluator, ...]] = get_args(Evaluator)

MIN_CONFIGS: Final = 10  # timed ones; below, a share says more of the sample than of the kernel
TOP: Final = 0.1  # of the configs: which parameters does it take to be among these? (the default of PED-ANOVA)
MIN_TOP: Final = 5  # configs that PED-ANOVA's documentation asks for among the top
SEED: Final = 0  # of fANOVA's forest


def importance(
    space: Space[Any], device: Device, outcomes: Iterable[Outcome], evaluator: Evaluator
) -> dict[str, float]:
    """Return the share of each parameter in what makes configs fast or slow, largest first.

    ``fANOVA`` (Hutter et al., ICML 2014): the share in the variance of the logarithm of the time over all configs, by a
    random forest; a parameter that another one leaves without a choice counts as its first value. ``PED-ANOVA``
    (Watanabe et al., IJCAI 2023): the share in what tells the fastest tenth from the rest; a parameter counts where it
    applies. Shares sum to 1; parameters without a choice on the device are left out. Configs that failed have no time
    and do not count. Fewer than 10 timed configs, or ones that all take equally long, have no shares.

    Example:
        >>> shares = importance(OPERATION.space, NVIDIA_H200, [trial.outcome for trial in sweep], "PED-ANOVA")
        >>> next(iter(shares))
        'BLOCK_Q'

    Raises:
        UnknownNameError: no such evaluator.
        MissingDependencyError: fANOVA without scikit-learn, which grows its forest.
    """
    times = {
        outcome.config: math.log(outcome.timing.median_us)
        for outcome in outcomes
        if outcome.timing is not None and outcome.status in (Status.OK, Status.SLOW)
    }
    applies = PartialEncoding(parameters_on(space, device))
    encoding = applies if evaluator == "PED-ANOVA" else Encoding(space, device)
    return find_shares(encoding, {config: (time,) for config, time in times.items()}, evaluator)


def find_shares(
    encoding: PartialEncoding, results: Mapping[Config, Sequence[float]], evaluator: Evaluator
) -> dict[str, float]:
    """Return the share of each parameter in what tells configs apart by one or more objectives, largest first.

    Fewer than 10 configs, or ones that are all alike, have no shares. Errors are those of ``importance``.
    """
    if evaluator not in EVALUATORS:
        raise UnknownNameError(f"evaluator={evaluator!r} is unknown; allowed: {', '.join(EVALUATORS)}")
    if len(results) < MIN_CONFIGS or len(set(map(tuple, results.values()))) == 1 or not encoding.distributions:
        return {}
    study = create_study(optuna.samplers.RandomSampler(seed=SEED), objectives=len(next(iter(results.values()))))
    study.add_trials([finished_trial(encoding, config, values) for config, values in results.items()])
    method: optuna.importance.BaseImportanceEvaluator
    try:
        if evaluator == "PED-ANOVA":
            top = min(0.5, max(TOP, MIN_TOP / len(results)))
            method = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=top)
        else:
            method = optuna.importance.FanovaImportanceEvaluator(seed=SEED)
    except ImportError:
        raise MissingDependencyError("fANOVA needs scikit-learn; `pip install scikit-learn`") from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that a parameter seldom applies
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # of normalize
        found = optuna.importance.get_param_importances(study, evaluator=method, normalize=False)
    total = sum(found.values())
    ordered = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    return {name: float(part / total) for name, part in ordered} if total > 0.0 else {}
