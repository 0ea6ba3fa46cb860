"""Cases of an implementation: its operation's problems, pair by pair, under configs of its own space."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from autotune.device import NVIDIA_H200
from autotune.implementation import Implementation
from autotune.registry import get_implementation
from autotune.shape import Shape
from autotune.space import Config, Value
from tests.contract.covering import Pair, Row, Rules, cover
from tests.contract.suite import data_of

DRAWN: Final = 300  # configs for each problem, of which the valid ones compete
ROUNDS: Final = 4  # over all problems, while a round finds pairs of parameters' values that no case has


@dataclass(frozen=True, slots=True)
class Case:
    """A small problem, and a config that is valid for problems of its family."""

    operation: str
    implementation: str
    shape: Shape
    config: Config

    def __str__(self) -> str:
        values = "-".join(str(value) for value in self.config.values() if value is not None)
        return f"{self.shape}-{values}".replace(" ", "_")


@cache
def cases_of(operation: str, name: str) -> tuple[Case, ...]:
    """Return cases that hold every pair of values of the operation's fields, and pairs of its parameters' values.

    Configs are those for large shapes on an H200, and run on small ones; an implementation that compiles for exact
    sizes, which it says by check shapes of its own, has those for the small ones. Every value that a valid config has
    is in one of them, and of the pairs those that are valid together and were drawn.
    """
    implementation, data = get_implementation(operation, name), data_of(operation)
    tuned = data.large if implementation.check_shapes is None else data.small
    rows = cover(data.fields_of(name), Rules(score=lambda found, row: found))
    rng = random.Random(1)
    held: set[Pair] = set()
    found: list[Case] = []
    for number, row in enumerate(rows * ROUNDS):
        if implementation.supports(tuned(row), NVIDIA_H200) is not None:
            continue
        valid = list(_valid_configs(implementation, tuned(row), rng))
        news = [set(_pairs(config)) - held for config in valid]
        best = max(range(len(valid)), key=lambda index: len(news[index]))
        if number < len(rows) or news[best]:
            found.append(Case(operation, name, data.small(row), valid[best]))
            held |= news[best]
    for goal, row in itertools.product(_missing(implementation, found), rows):
        if all(case.config[parameter] != value for parameter, value in goal.items() for case in found):
            config = next(_valid_configs(implementation, tuned(row), rng, goal), None)
            found += [] if config is None else [Case(operation, name, data.small(row), config)]
    return tuple(found)


def _missing(implementation: Implementation[Any], cases: list[Case]) -> list[Row]:
    """Return parameters' values that no case has."""
    return [
        {parameter.name: value}
        for parameter in implementation.space.parameters
        if parameter.exists_on(NVIDIA_H200)
        for value in parameter.values
        if all(case.config[parameter.name] != value for case in cases)
    ]


def _valid_configs(
    implementation: Implementation[Any], shape: Shape, rng: random.Random, goal: Row | None = None
) -> Iterator[Config]:
    """Draw valid configs, the default first; with a goal those alone that have its values."""
    space = implementation.space
    if not goal:
        yield space.default(shape, NVIDIA_H200)
    for _ in range(DRAWN):
        chosen: dict[str, Value] = {}
        for parameter in space.parameters:
            choices = parameter.choices(NVIDIA_H200, chosen)
            wanted = goal.get(parameter.name) if goal else None
            chosen[parameter.name] = wanted if wanted in choices and wanted is not None else rng.choice(choices)
        is_wanted = all(chosen[name] == value for name, value in (goal or {}).items())
        if is_wanted and space.reject(Config(chosen), shape, NVIDIA_H200) is None:
            yield Config(chosen)


def _pairs(config: Config) -> Iterator[Pair]:
    row: Row = {name: value for name, value in config.items() if value is not None}
    return itertools.combinations(row.items(), 2)
