"""Lists of cases that hold every pair of feature values that can meet, without triton or torch."""

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Row = dict[str, Any]
Factors = Mapping[str, tuple[Any, ...]]
Pair = tuple[tuple[str, Any], tuple[str, Any]]

CANDIDATES: Final = 40  # rows that compete for each place in a list


def pairs_of(row: Row) -> list[Pair]:
    """Return the pairs of values that a row holds."""
    return list(itertools.combinations(row.items(), 2))


def all_pairs(factors: Factors) -> list[Pair]:
    """Return every pair of values of two factors."""
    return [
        ((one, a), (two, b))
        for one, two in itertools.combinations(factors, 2)
        for a, b in itertools.product(factors[one], factors[two])
    ]


def _accept_all(row: Row, goal: Row) -> bool:
    return True


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Rules by which rows are drawn and chosen.

    Attributes:
        score: the worth of a row, of the missing pairs that it holds and the row.
        accepts: false for a row that cannot be, or costs too much for anything but its goal, the pair it is drawn for.
        tested: the pairs of values that a row tests, all that it holds by default.
        drawn: the values that are drawn at random, where those are not all.
        seed: of the generator, so that a list is the same everywhere.
    """

    score: Callable[[int, Row], float]
    accepts: Callable[[Row, Row], bool] = _accept_all
    tested: Callable[[Row], Iterable[Pair]] = pairs_of
    drawn: Factors | None = None
    seed: int = 1
    candidates: int = CANDIDATES


def cover(
    factors: Factors, rules: Rules, *, pairs: Iterable[Pair] | None = None, begin: Sequence[Row] = (), at_least: int = 0
) -> list[Row]:
    """Return rows that together hold every pair, each the best of a few random ones; some extend those of ``begin``.

    Deterministic: the generator has a fixed seed, and nothing iterates over a set.
    """
    rng = random.Random(rules.seed)
    missing = dict.fromkeys(all_pairs(factors) if pairs is None else pairs)
    rows: list[Row] = []
    while missing or len(rows) < at_least:
        goal = dict(next(iter(missing), ()))
        drawing = _draw(rng, rules.drawn or factors, begin, goal)
        fitting = (row for row in drawing if rules.accepts(row, goal) and row not in rows)
        drawn = list(itertools.islice(fitting, rules.candidates))
        best = max(drawn, key=lambda row: rules.score(len(missing.keys() & rules.tested(row)) if missing else 0, row))
        rows.append({name: best[name] for name in factors})
        for pair in rules.tested(rows[-1]):
            missing.pop(pair, None)
    return rows


def _draw(rng: random.Random, factors: Factors, begin: Sequence[Row], goal: Row) -> Iterator[Row]:
    fitting = [row for row in begin if all(row.get(name, value) == value for name, value in goal.items())]
    while True:
        row = {name: rng.choice(values) for name, values in factors.items()}
        yield {**row, **(rng.choice(fitting or [{}]) if begin else {}), **goal}
