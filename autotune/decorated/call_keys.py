"""Keys of launches: the values of the key, and the dtypes of all else that may have one."""

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from autotune import platforms


def make_reader(
    places: Sequence[int], tensors: Sequence[int], names: Sequence[str]
) -> Callable[[tuple[Any, ...], Mapping[str, Any]], Any]:
    """Return what reads values and dtypes, of arguments by position if all are, in the least time."""
    current_index = platforms.current_index
    if not names and places:
        values = itemgetter(*places)
        if len(tensors) > 1:
            take = itemgetter(*tensors)
            return lambda args, kwargs: (
                values(args),
                current_index(),
                *[getattr(each, "dtype", None) for each in take(args)],
            )
        return lambda args, kwargs: (
            values(args),
            current_index(),
            *[getattr(args[each], "dtype", None) for each in tensors],
        )

    def read(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        given = [*args, *kwargs.values()]
        return (
            current_index(),
            *[given[place] for place in places],
            *[getattr(given[place], "dtype", None) for place in tensors],
        )

    return read
