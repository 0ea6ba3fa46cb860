"""Which parameters a kernel's time depends on, by two evaluators of Optuna."""

import math
import warnings
from collections.abc import Iterable
from typing import Any, Final, Literal, get_args

import optuna

from autotune.device import Device
from autotune.errors import MissingDependencyError, UnknownNameError
from autotune.search.encoding import Encoding
from autotune.search.study import create_study
from autotune.space import Space
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
    """The share of each parameter in what makes configs fast or slow, largest first.

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
    if evaluator not in EVALUATORS:
        raise UnknownNameError(f"evaluator={evaluator!r} is unknown; allowed: {', '.join(EVALUATORS)}")
    encoding, study = Encoding(space, device), create_study(optuna.samplers.RandomSampler(seed=SEED))
    times = {
        outcome.config: math.log(outcome.timing.median_us)
        for outcome in outcomes
        if outcome.timing is not None and outcome.status in (Status.OK, Status.SLOW)
    }
    if len(times) < MIN_CONFIGS or max(times.values()) == min(times.values()) or not encoding.distributions:
        return {}
    for config, value in times.items():
        params = encoding.encode(config)
        if evaluator == "PED-ANOVA":
            params = {name: each for name, each in params.items() if config[name] is not None}
        distributions = {name: encoding.distributions[name] for name in params}
        study.add_trial(optuna.trial.create_trial(value=value, params=params, distributions=distributions))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that a parameter seldom applies
        shares = optuna.importance.get_param_importances(study, evaluator=make_evaluator(evaluator, len(times)))
    return {name: float(share) for name, share in sorted(shares.items(), key=lambda item: (-item[1], item[0]))}


def make_evaluator(evaluator: Evaluator, configs: int) -> optuna.importance.BaseImportanceEvaluator:
    """Optuna's evaluator over so many configs.

    Raises:
        MissingDependencyError: fANOVA without scikit-learn, which grows its forest.
    """
    if evaluator == "PED-ANOVA":
        top = min(0.5, max(TOP, MIN_TOP / configs))
        return optuna.importance.PedAnovaImportanceEvaluator(target_quantile=top)
    try:
        return optuna.importance.FanovaImportanceEvaluator(seed=SEED)
    except ImportError:
        raise MissingDependencyError("fANOVA needs scikit-learn; `pip install scikit-learn`") from None
