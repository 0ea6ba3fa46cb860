"""The order of an operation's implementations at a shape, the fastest first: by races nearby, then by estimates."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from autotune.device import Device
from autotune.dispatch.evidence import MIN_EVIDENCE
from autotune.implementation import Implementation
from autotune.shape import Shape
from autotune.space import Config

if TYPE_CHECKING:
    from autotune.table import Assignment


def fastest_first(names: Iterable[str], *known: Mapping[str, float]) -> list[str]:
    """Order names by their times, by each mapping in turn; those that one lacks keep their places.

    Example:
        >>> fastest_first(["a", "b", "c"], {"a": 3.0, "c": 1.0})
        ['c', 'b', 'a']
    """
    found = list(names)
    for times in known:
        places = [place for place, name in enumerate(found) if name in times]
        in_order = sorted((found[place] for place in places), key=times.__getitem__)
        for place, name in zip(places, in_order, strict=True):
            found[place] = name
    return found


def estimated_times(
    candidates: Iterable[tuple[Implementation[Any], Config]], shape: Shape, device: Device
) -> dict[str, float]:
    """Return the microseconds that implementations estimate of their configs, by name, of those that do.

    An estimate counts the rounds of tiles that a shape leaves to each multiprocessor, of which races at other shapes
    tell little: of 307 recordings of dense attention by two implementations and more, each left out, the one so chosen
    is 0.13 % behind the best in the mean and 18 % at worst, and 0.48 and 32 % by races alone (NVIDIA H200 and H100,
    2026-11-28; ``python -m benchmarks.portfolios --list``, with estimates and without).
    """
    times = ((each.name, each.space.estimate(config, shape, device)) for each, config in candidates)
    return {name: time for name, time in times if time is not None}


def typical_times(portfolio: "Iterable[Assignment]", names: Iterable[str]) -> dict[str, float]:
    """Return the mean logarithms of implementations' times over the best, at all shapes at which all of them met.

    They stand for those of a class of which nothing is recorded. Of 16 classes of dense attention, packed sequences and
    paged prefill, each left out, the implementation so chosen is faster in the mean than the first admitted one at 15,
    by 1.03 to 2.8 times, and takes 1.02 times as long at one (NVIDIA H200 and H100, 2026-11-28).
    """
    behind: dict[tuple[Shape, Device], dict[str, float]] = {}
    for row in portfolio:
        if row.behind is not None:
            behind.setdefault((row.shape, row.device), {})[row.implementation] = math.log1p(row.behind)
    met = {name for times in behind.values() for name in times}.intersection(names)
    shared: Sequence[dict[str, float]] = [times for times in behind.values() if met <= times.keys()]
    return (
        {name: sum(times[name] for times in shared) / len(shared) for name in met}
        if len(shared) >= MIN_EVIDENCE
        else {}
    )
