"""Several objectives at once: an Optuna study over joint axes, the hypervolume it reached, and what it depends on."""

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import optuna

from autotune.search.encoding import PartialEncoding
from autotune.search.importance import MIN_CONFIGS, Evaluator, find_shares
from autotune.search.study import DistinctStudy
from autotune.space import Config, Parameter, combinations

MIN_POINTS: Final = MIN_CONFIGS


class ParetoStudy(DistinctStudy):
    """Proposals of points, each given out once, that make a Pareto front; all objectives are minimised.

    A point is a ``Config`` over ``parameters``; one with ``only=(name, value)`` applies only where that parameter,
    declared before it, has that value, and is None elsewhere. The sampler is the multi-objective TPE (Ozaki et al.,
    JAIR 2022), which sees ordered values by their index and a parameter only where it applies; a point that failed is
    told as infeasible. Where everything fits ``budget`` it is enumerated.

    Args:
        reject: returns the reason why a point is not valid, or None.
        first: points to begin with, in order.
        budget: the number of points that may be asked for.

    Example:
        >>> study = ParetoStudy(parameters, reject=lambda point: None, objectives=2, budget=30)
        >>> study.tell(point := study.ask(), (0.3, 12.0))
        >>> study.front()
        [Config(...)]
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        reject: Callable[[Config], str | None],
        *,
        objectives: int,
        budget: int,
        first: Iterable[Config] = (),
        seed: int = 0,
    ) -> None:
        valid = [point for point in combinations(parameters) if reject(point) is None]
        self.size = len(valid)
        self.is_enumerated = self.size <= budget
        super().__init__(
            PartialEncoding(parameters),
            valid,
            optuna.samplers.TPESampler(seed=seed),
            random.Random(seed).choice,
            objectives=objectives,
            first=[*first, *valid] if self.is_enumerated else first,
        )


def hypervolume(points: Iterable[Sequence[float]], reference: Sequence[float]) -> float:
    """Return the volume that points dominate below a reference point, all objectives being minimised.

    By slicing objectives (While et al., IEEE Transactions on Evolutionary Computation 10, 2006): exact, for fronts of
    tens of points. A point that is not below the reference in every objective adds nothing.

    Example:
        >>> hypervolume([(1.0, 2.0), (2.0, 1.0)], (3.0, 3.0))
        3.0
    """
    inside = {tuple(point) for point in points if all(a < b for a, b in zip(point, reference, strict=True))}
    if not inside:
        return 0.0
    if len(reference) == 1:
        return float(reference[0] - min(point[0] for point in inside))
    ordered = sorted(inside, key=lambda point: point[-1])
    ends = [*(point[-1] for point in ordered[1:]), reference[-1]]
    volume = 0.0
    for count, (point, end) in enumerate(zip(ordered, ends, strict=True), start=1):
        if end > point[-1]:
            volume += (end - point[-1]) * hypervolume([other[:-1] for other in ordered[:count]], reference[:-1])
    return volume


def sensitivity(
    parameters: Sequence[Parameter],
    results: Mapping[Config, Sequence[float]],
    evaluator: Evaluator,
    objective: int | None,
) -> dict[str, float]:
    """Return the share of each parameter in what tells points apart, largest first; shares sum to 1.

    ``fANOVA`` (Hutter et al., ICML 2014): the share in the variance of one objective, by a random forest, of the
    parameters that apply to every point. ``PED-ANOVA`` (Watanabe et al., IJCAI 2023, with conditional parameters as in
    arXiv 2601.20800): the share in what tells the best tenth of the points (five at least) from the rest, by one
    objective, or with None by how near they are to the Pareto front. Parameters of which all points have one value are
    left out; fewer than 10 points, or ones that are all alike, have no shares. Errors are those of ``importance``.
    """
    told = {
        point: tuple(values) if objective is None else (values[objective],)
        for point, values in results.items()
        if all(math.isfinite(value) for value in values)
    }
    varied = [p for p in parameters if len({point[p.name] for point in told} - {None}) > 1]
    return find_shares(PartialEncoding(varied), told, evaluator)
