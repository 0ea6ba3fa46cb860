"""All that may be served for a shape, best first: stored rows, the portfolio's choice, and the space's default."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autotune.device import Device
from autotune.dispatch.kernel import Alternative, DefaultName, Provenance
from autotune.dispatch.ladder import climb, why_default
from autotune.dispatch.portfolio import PortfolioChoice, choose
from autotune.implementation import Implementation
from autotune.shape import Shape
from autotune.trial import Candidate

if TYPE_CHECKING:
    from autotune.table import Assignment, Served


def alternatives_for(
    shape: Shape,
    device: Device,
    rows: "Sequence[Served]",
    admitted: Sequence[Implementation[Any]],
    *,
    portfolio: "Sequence[Assignment]",
    with_baselines: bool = False,
    can_serve: Callable[[Alternative], bool] = lambda each: True,
    why_unfit: Callable[[Alternative], str] = lambda each: "",
    no_rows: str = "",
    hint: str = "",
) -> list[Alternative]:
    """Return every candidate that may be served, each once, best first; the last is the default of a space.

    The portfolio's choice stands behind the stored rows; before them where the first is of another shape, both their
    expected regrets are known and the portfolio's is less.

    Args:
        rows: the stored winners of the operation (``autotune.table.stored_winners``).
        admitted: the implementations that may be served, in order.
        portfolio: the assignments on the device's architecture, of all admitted implementations.
        with_baselines: see ``climb``.
        can_serve: returns False for a stored row that cannot be served here.
        why_unfit: says why a stored row is not served with the Triton here (``drift.why_unfit``); all that is served
            instead names it in its provenance.
        no_rows: says why no table is asked: nothing knows the device, or tables are switched off.
        hint: ends the reason of a space's default.
    """
    stored = climb(shape, device, rows, admitted, with_baselines=with_baselines, portfolio=portfolio)
    judged = [(each, why_unfit(each)) for each in stored if can_serve(each)]
    found = [each for each, why in judged if not why]
    passed_over: dict[Candidate, str] = {}
    for each, why in judged:
        if why:
            passed_over.setdefault(each.candidate, why)
    portfolio = [row for row in portfolio if row.is_default or row.candidate not in passed_over]
    if passed_over and not found:
        reason = "all that was tuned for this shape or near it is unfit for the Triton here"
    elif no_rows or not found:
        reason = no_rows or why_default(admitted, shape, device, rows)
    else:
        reason = "all that was tuned for this shape or near it is refused"
    defaults = [_spaces_default(each, shape, device, reason, hint, is_known=not no_rows) for each in admitted]
    is_adrift = bool(passed_over)
    found = _with_portfolio(found, portfolio, admitted, defaults, shape, device, reason, is_adrift=is_adrift) + defaults
    best: dict[Candidate, Alternative] = {}  # a candidate that was refused once is not tried again for another row
    for each in found:
        best.setdefault(each.candidate, each)
    return _without(passed_over, list(best.values())) if passed_over else list(best.values())


def _without(passed_over: Mapping[Candidate, str], found: "Sequence[Alternative]") -> list[Alternative]:
    """Leave out the candidates that are not served here, but for the last resort, and say of the others why."""
    left = [each for each in found if each.candidate not in passed_over] or found[-1:]
    why = tuple(passed_over.values())
    return [replace(each, provenance=replace(each.provenance, passed_over=why)) for each in left]


def _spaces_default(
    implementation: Implementation[Any], shape: Shape, device: Device, reason: str, hint: str, *, is_known: bool
) -> Alternative:
    """Return the default of a space, and what chose it; of a device that nobody knows that would be a guess."""
    space = implementation.space
    basis = space.default_basis(device) if is_known else ""
    served = f"the space's default{basis and f', {basis}'}"
    provenance = Provenance("default", reason, default="space's default", served=served, hint=hint)
    return Alternative(Candidate(implementation.name, space.default(shape, device)), provenance)


def _with_portfolio(
    found: "Sequence[Alternative]",
    rows: "Sequence[Assignment]",
    admitted: Sequence[Implementation[Any]],
    defaults: "Sequence[Alternative]",
    shape: Shape,
    device: Device,
    why: str,
    *,
    is_adrift: bool,
) -> list[Alternative]:
    """Add what the architecture's portfolio has for the shape; ``why`` says why no row is served.

    The implementation of the least expected time comes first where all have met in races, else the first admitted one,
    with its space's default where the portfolio has nothing valid of it: nothing says that another one is faster. Where
    a stored candidate is unfit for the Triton here (``is_adrift``), what a portfolio has comes before the defaults that
    only stand in for it.
    """
    choices = []
    for each, default in zip(admitted, defaults, strict=True):
        own = [row for row in rows if row.implementation == each.name]
        choices.append((each, choose(own, each, shape, device), default))
    times = [None if choice is None else choice.expected_time for _, choice, _ in choices]
    if None not in times:
        order = sorted(range(len(choices)), key=lambda place: times[place] or math.inf)
        choices = [choices[place] for place in order]
    if is_adrift:
        choices.sort(key=lambda each: each[1] is None)
    first, choice, _ = choices[0]
    if found and choice is not None and _is_less(choice, found[0].provenance):
        why = f"expected nearer the best than what is {found[0].provenance.reason}"
        return [_served(first, choice, device, why), *found]
    return [
        *found,
        *(default if choice is None else _served(each, choice, device, why) for each, choice, default in choices),
    ]


def _is_less(choice: PortfolioChoice, other: Provenance) -> bool:
    """Return True if both regrets are known and the choice's is less; nothing comes before a row of the very shape."""
    if other.rung == "exact" or other.expectation.recorded[0] is None or (least := choice.expectation.regret) is None:
        return False
    return other.expected_regret is not None and least < other.expected_regret


def _served(implementation: Implementation[Any], choice: PortfolioChoice, device: Device, why: str) -> Alternative:
    near = choice.nearest
    has = f"the config that the portfolio of {device.arch} has for {near.shape} on {near.device.name}"
    elsewhere = "" if near.device.model == device.model else f", recorded on {near.device.name}"
    keeps = f"the space's default, which the portfolio of {device.arch} keeps{elsewhere}"
    served = keeps if choice.is_default else has
    name: DefaultName = "space's default" if choice.is_default else "portfolio's default"
    provenance = Provenance("default", why, expectation=choice.expectation, default=name, served=served)
    return Alternative(Candidate(implementation.name, choice.config), provenance)
