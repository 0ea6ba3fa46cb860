"""The order of an operation's implementations at a shape, the fastest first: by races nearby, then by estimates."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from autotune.device import Device
from autotune.dispatch.evidence import MIN_EVIDENCE
from autotune.dispatch.portfolio import PortfolioChoice
from autotune.implementation import Implementation
from autotune.shape import Shape

if TYPE_CHECKING:
    from autotune.table import Assignment


class ImplementationOrder(NamedTuple):
    """Names of implementations, and the one that races put first where an estimate put another before it."""

    names: list[str]
    overtaken: str = ""


def expected_order(
    admitted: Iterable[Implementation[Any]],
    choices: Mapping[str, PortfolioChoice | None],
    shape: Shape,
    device: Device,
    *,
    typical: Callable[[], Mapping[str, float]] = dict,
    with_estimates: bool = True,
) -> ImplementationOrder:
    """Order implementations by the times to expect of what the portfolio chooses of each.

    Of those that met others in races over shapes of the class, times are expected from these (``expected_times``), and
    the least estimate comes before all that estimate theirs. An estimate counts the rounds of tiles that a shape leaves
    to each multiprocessor, of which races at other shapes tell little. Both were measured on dense attention, each of
    363 recordings by several implementations left out (estimates were fitted to them, too): the first is 0.16 % behind
    the best in the mean and 15.6 % at worst, by races alone 0.57 and 32 % (NVIDIA H200 and H100, 2026-11-29; ``python
    -m benchmarks.portfolios --list``).

    Args:
        admitted: the implementations in their usual order, which those without times keep.
        choices: what the portfolio chooses of each, by name.
        typical: returns the times that count where those of the class are not known (``typical_times``).
        with_estimates: False where a race at this very shape says which is faster.
    """
    admitted = list(admitted)
    known = {name: choice for name, choice in choices.items() if choice is not None and choice.times}
    times = {name: choice.times.chosen for name, choice in known.items() if choice.times}
    order = fastest_first([each.name for each in admitted], times or typical())
    estimates: dict[str, float] = {}
    for each in admitted:
        if each.name in known and with_estimates:
            estimate = each.space.estimate(known[each.name].config, shape, device)
            if estimate is not None and math.isfinite(estimate):
                estimates[each.name] = estimate
    estimated = [name for name in order if name in estimates]
    least = min(estimated, key=estimates.__getitem__, default="")
    if not estimated or least == estimated[0]:
        return ImplementationOrder(order)
    order.remove(least)
    order.insert(order.index(estimated[0]), least)
    return ImplementationOrder(order, overtaken=estimated[0])


def fastest_first(names: Iterable[str], times: Mapping[str, float]) -> list[str]:
    """Order names by their times; those without keep their places.

    Example:
        >>> fastest_first(["a", "b", "c"], {"a": 3.0, "c": 1.0})
        ['c', 'b', 'a']
    """
    found = list(names)
    places = [place for place, name in enumerate(found) if name in times]
    in_order = sorted((found[place] for place in places), key=times.__getitem__)
    for place, name in zip(places, in_order, strict=True):
        found[place] = name
    return found


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
    shared = [times for times in behind.values() if met <= times.keys()]
    return (
        {name: sum(times[name] for times in shared) / len(shared) for name in met}
        if len(shared) >= MIN_EVIDENCE
        else {}
    )
