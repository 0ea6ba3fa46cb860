"""``mode="first_call"``: a search at the first launch of a key that has no row."""

import threading
import warnings
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from autotune.dispatch import TunedKernel
from autotune.errors import AutotuneError
from autotune.operation import Operation
from autotune.shape import Shape


class _Searched(NamedTuple):
    """Identify a search by fields: a kernel that is defined again has a shape class of its own."""

    operation: str
    place: object
    fields: tuple[Any, ...]
    source: str


_searching: Final = threading.Lock()
_searched: Final[set[_Searched]] = set()


def search_once(
    operation: Operation[Any],
    shape: Shape,
    place: object,
    source: str,
    *,
    budget: float,
    pick: Callable[[], TunedKernel],
) -> TunedKernel:
    """Search a shape that has no row, and return what is picked then; where the search fails, say so and pick.

    One search runs at a time, and a launch that waited for it picks again first. What was searched once, with or
    without success, is not searched again by this process, unless the ``source`` changed.
    """
    key = _Searched(operation.name, place, tuple(shape.as_dict().items()), source)
    if key in _searched:
        return pick()
    with _searching:
        if key not in _searched and not has_row(pick()):
            _search(operation, shape, budget)
            _searched.add(key)
    return pick()


def has_row(tuned: TunedKernel) -> bool:
    """Return True if a pick is of a row of the very shape, or named by the environment."""
    return tuned.provenance.rung in ("exact", "pinned")


def _search(operation: Operation[Any], shape: Shape, budget: float) -> None:
    from autotune.tuning import tune  # loads Optuna, which nothing else here needs

    try:
        tune((shape,), operation=operation.name, budget=budget, must_measure=True)
    except AutotuneError as error:
        text = f"{operation.name}: mode='first_call' could not tune {shape}: {error}"
        warnings.warn(text, RuntimeWarning, stacklevel=7)
