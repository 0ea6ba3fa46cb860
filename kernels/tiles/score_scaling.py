"""The numbers that scores are multiplied and bounded by, in one argument of a kernel."""

from typing import Any, NamedTuple


class ScoreScaling(NamedTuple):
    """The factor of a product of a query and a key, and with softcap the bound of scores; both for base 2."""

    scale: Any
    softcap: Any
