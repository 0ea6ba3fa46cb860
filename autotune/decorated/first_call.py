"""``mode="first_call"``: a search at the first launch of a key that has no row."""

import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from autotune.decorated.call_arguments import Maker
from autotune.decorated.key_shapes import KernelShape
from autotune.decorated.recorded_call import Grid, hold, record
from autotune.dispatch import TunedKernel
from autotune.errors import AutotuneError
from autotune.operation import Operation
from autotune.process_lock import ProcessLock
from autotune.shape import Shape


class _Searched(NamedTuple):
    """Identify a search by fields: a kernel that is defined again has a shape class of its own."""

    operation: str
    place: object
    fields: tuple[Any, ...]
    source: str


_searching: Final = ProcessLock()
_searched: Final[set[_Searched]] = set()


def search_once(
    operation: Operation[Any],
    shape: Shape,
    place: object,
    source: str,
    *,
    budget: float,
    pick: Callable[[], TunedKernel],
    holding: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> TunedKernel:
    """Search a shape that has no row, and return what is picked then; where the search fails, say so and pick.

    ``holding`` keeps, as long as the search takes, what its processes need to know of the launch.

    One search runs at a time, and a launch that waited for it picks again first. What was searched once, with or
    without success, is not searched again by this process, unless the ``source`` changed.
    """
    key = _Searched(operation.name, place, tuple(shape.as_dict().items()), source)
    if key in _searched:
        return pick()
    with _searching:
        if key not in _searched and not has_row(pick()):
            _search(operation, shape, budget, holding)
            _searched.add(key)
    return pick()


def has_row(tuned: TunedKernel) -> bool:
    """Return True if a pick is of a row of the very shape, or named by the environment."""
    return tuned.provenance.rung in ("exact", "pinned")


@contextmanager
def hold_call(
    maker: Maker, shape: KernelShape, named: Mapping[str, Any], grids: Callable[[], tuple[Grid | None, ...]]
) -> Iterator[None]:
    """Let searches of a shape make arguments like those of a launch, where ``inputs=`` does not say which, and take its
    grids, until the block ends."""
    before = maker.calls.get(shape)
    call = record({}) if before is None else before
    with tempfile.TemporaryDirectory(prefix="autotune-call-") as folder:
        maker.calls[shape] = replace(hold(call, named, Path(folder) / "whole_numbers.npz"), grids=grids())
        try:
            yield
        finally:
            if before is None:
                del maker.calls[shape]
            else:
                maker.calls[shape] = before


def _search(
    operation: Operation[Any], shape: Shape, budget: float, holding: Callable[[], AbstractContextManager[None]]
) -> None:
    from autotune.tuning import tune  # loads Optuna, which nothing else here needs

    try:
        with holding():
            tune((shape,), operation=operation.name, budget=budget, must_measure=True)
    except AutotuneError as error:
        text = f"{operation.name}: mode='first_call' could not tune {shape}: {error}"
        warnings.warn(text, RuntimeWarning, stacklevel=7)
