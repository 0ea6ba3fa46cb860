"""Plans of searches: the configs that are pruned, left and known, and the time that the rest would take."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

from autotune.device import Device
from autotune.executor import Executor
from autotune.executor.select import ExecutorInfo
from autotune.implementation import Implementation
from autotune.operation import Operation, RelativeDefinition
from autotune.search.pace import Pace, find_pace
from autotune.search.proposals import most_in_flight
from autotune.search.recorder import Recorder
from autotune.search.result import Limits
from autotune.search.rotation import reached_device
from autotune.search.sampler import Sampler
from autotune.shape import Shape
from autotune.space import Config
from autotune.table import Store, shipped_sweeps


@dataclass(frozen=True, slots=True)
class Pruned:
    """Configs that one rule of a space refuses: how many, and the reason given for one of them."""

    rule: str
    count: int
    example: Config
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPlan:
    """The study of one implementation that a search of a shape would make.

    ``trials`` are new configs at most, of which those count that reach the device; ``seconds`` estimates how long so
    many and the race take, which ``budget`` may cut short. A search of several implementations shares both limits.
    ``note`` is what rows would say of a reference that proves only that configs agree.
    """

    operation: str
    implementation: str
    shape: Shape
    device: Device
    executor: str
    size: int
    pruned: tuple[Pruned, ...]
    valid: int
    default: Config
    known: int
    sampler: Sampler
    trials: int
    jobs: int
    pace: Pace
    seconds: float
    budget: float | None
    note: str = ""


def make_plan(
    operation: Operation[Any],
    implementation: Implementation[Any],
    shape: Shape,
    executor: Executor | ExecutorInfo,
    store: Store,
    *,
    limits: Limits,
    sampler: Sampler,
    jobs: int,
    default: Config | None = None,
) -> SearchPlan:
    """Plan a search with these limits; read tables, write and run nothing. UsageError for an unsupported shape.

    Compiling, ``jobs`` configs at once or as many as the sampler has in flight, and judging, one at a time, overlap:
    the slower of the two and the race make up the time. What does not compile ahead is compiled one config at a time.
    ``default`` is what is served as such; the space's if None.
    """
    space, device = implementation.space, executor.device
    judged = [(config, space.reject(config, shape, device)) for config in space.combinations(device)]
    refused = [(config, why) for config, why in judged if why is not None]
    valid = len(judged) - len(refused)
    recorder = Recorder(operation, implementation, shape, cast(Executor, executor), store, seed=0)  # it opens nothing
    recorder.resume(measured_fully=sampler == "exhaustive")
    known = len(recorder.screened)
    trials = valid - known
    if limits.trials is not None:
        reached = sum(reached_device(trial.outcome) for trial in recorder.screened.values())
        trials = max(0, min(trials, limits.trials - reached))
    sweeps = shipped_sweeps(operation.name, implementation=implementation.name)
    pace = find_pace(shape, device, [(sweep.name, sweep.trials()) for sweep in sweeps if sweep.device == device.slug])
    jobs = int(min(jobs, most_in_flight(sampler))) if implementation.compiles_ahead else 1
    seconds = max(trials * pace.compile_seconds / jobs, trials * pace.judge_seconds)
    return SearchPlan(
        operation=operation.name,
        implementation=implementation.name,
        shape=shape,
        device=device,
        executor=executor.name,
        size=len(judged),
        pruned=group_reasons(refused),
        valid=valid,
        default=default or space.default(shape, device),
        known=known,
        sampler=sampler,
        trials=trials,
        jobs=jobs,
        pace=pace,
        seconds=seconds + limits.race_seconds if trials else 0.0,
        budget=limits.seconds,
        note=_reference_note(operation),
    )


def _reference_note(operation: Operation[Any]) -> str:
    definition = operation.definition  # a reference is not loaded for it: that imports torch
    return definition.note if isinstance(definition, RelativeDefinition) else ""


def group_reasons(refused: Iterable[tuple[Config, str]]) -> tuple[Pruned, ...]:
    """Group refused configs by rule, the most frequent first; reasons that differ in numbers alone are of one rule.

    Example:
        >>> group_reasons([(Config(a=1), "a=1 is below 2"), (Config(a=0), "a=0 is below 2")])[0].rule
        'a=N is below N'
    """
    rules: dict[str, list[tuple[Config, str]]] = {}
    for config, reason in refused:
        rules.setdefault(re.sub(r"(?<!\w)\d+(?:\.\d+)?(?!\w)", "N", reason), []).append((config, reason))
    ordered = sorted(rules.items(), key=lambda item: (-len(item[1]), item[0]))
    return tuple(Pruned(rule, len(found), *found[0]) for rule, found in ordered)
