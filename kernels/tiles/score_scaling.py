"""The numbers that scores are multiplied and bounded by, in one argument of a kernel."""

from typing import Any, NamedTuple


class ScoreScaling(NamedTuple):
    """What a product of a query and a key is multiplied by, and with softcap the bound of scores; both for base 2."""

    scale: Any
    softcap: Any
