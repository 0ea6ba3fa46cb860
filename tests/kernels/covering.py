"""Lists of cases that hold every pair of feature values, without triton or torch."""

import itertools
import random
from collections.abc import Callable, Mapping
from typing import Any, Final

Row = dict[str, Any]
Pair = tuple[tuple[str, Any], tuple[str, Any]]

CANDIDATES: Final = 40  # rows that compete for each place in a list


def cover(factors: Mapping[str, tuple[Any, ...]], work: Callable[[Row], float], *, at_least: int) -> list[Row]:
    """Rows that together hold every pair of values: each is the best of a few random ones, by pairs for their work.

    Deterministic: the generator has a fixed seed, and nothing iterates over a set.
    """
    rng = random.Random(1)
    missing = dict.fromkeys(all_pairs(factors))
    rows: list[Row] = []
    while missing or len(rows) < at_least:
        goal = dict(next(iter(missing), ()))
        drawn = [{name: rng.choice(values) for name, values in factors.items()} | goal for _ in range(CANDIDATES)]
        best = max(drawn, key=lambda row: (1 + sum(pair in missing for pair in pairs(row))) / (40 + work(row)))
        rows.append(best)
        for pair in pairs(best):
            missing.pop(pair, None)
    return rows


def all_pairs(factors: Mapping[str, tuple[Any, ...]]) -> list[Pair]:
    """Every pair of values of two factors."""
    return [
        ((one, a), (two, b))
        for one, two in itertools.combinations(factors, 2)
        for a, b in itertools.product(factors[one], factors[two])
    ]


def pairs(row: Row) -> list[Pair]:
    """The pairs of values that a row holds."""
    return list(itertools.combinations(row.items(), 2))
