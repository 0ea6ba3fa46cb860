"""All that may be served for a shape, best first: stored rows, the portfolio's choice, and the space's default."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from autotune.device import Device
from autotune.dispatch.kernel import Alternative, DefaultName, Provenance
from autotune.dispatch.ladder import climb, why_default
from autotune.dispatch.portfolio import PortfolioChoice, choose
from autotune.errors import InvalidShapeError
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
        no_rows: says why no table is asked: nothing knows the device, or tables are switched off.
        hint: ends the reason of a space's default.
    """
    found = [
        each
        for each in climb(shape, device, rows, admitted, with_baselines=with_baselines, portfolio=portfolio)
        if can_serve(each)
    ]
    if no_rows or not found:
        reason = no_rows or why_default(admitted, shape, device, rows)
    else:
        reason = "all that was tuned for this shape or near it is refused"
    served = [(each, _spaces_default(each, shape, device, reason, hint, is_known=not no_rows)) for each in admitted]
    defaults = [(each, default) for each, default in served if default is not None]
    if defaults:
        found = _with_portfolio(found, portfolio, defaults, shape, device, reason)
        found += [default for _, default in defaults]
    if not found:
        text = "; ".join(_why_none(each, shape, device) for each in admitted)
        raise InvalidShapeError(f"no config is valid for {shape} on {device.name}: {text}")
    best: dict[Candidate, Alternative] = {}  # a candidate that was refused once is not tried again for another row
    for each in found:
        best.setdefault(each.candidate, each)
    return list(best.values())


def _spaces_default(
    implementation: Implementation[Any], shape: Shape, device: Device, reason: str, hint: str, *, is_known: bool
) -> Alternative | None:
    """Return the default of a space, and what chose it; of a device that nobody knows that would be a guess.

    Where the default is invalid, which breaks a space's contract, the first valid config stands for it; None without.
    """
    space = implementation.space
    config, basis = space.default(shape, device), space.default_basis(device) if is_known else ""
    served = f"the space's default{basis and f', {basis}'}"
    if (problem := space.why_invalid(config, shape, device)) is not None:
        valid = next(space.configs(shape, device), None)
        if valid is None:
            return None
        config, served = valid, f"the first valid config, as the space's default is invalid here: {problem}"
    provenance = Provenance("default", reason, default="space's default", served=served, hint=hint)
    return Alternative(Candidate(implementation.name, config), provenance)


def _why_none(implementation: Implementation[Any], shape: Shape, device: Device) -> str:
    space = implementation.space
    return f"of {implementation.name}'s default, {space.why_invalid(space.default(shape, device), shape, device)}"


def _with_portfolio(
    found: "Sequence[Alternative]",
    rows: "Sequence[Assignment]",
    defaults: Sequence[tuple[Implementation[Any], Alternative]],
    shape: Shape,
    device: Device,
    why: str,
) -> list[Alternative]:
    """Add what the architecture's portfolio has for the shape; ``why`` says why no row is served.

    The implementation of the least expected time comes first where all have met in races, else the first of them,
    with its space's default where the portfolio has nothing valid of it: nothing says that another one is faster.
    """
    choices = []
    for each, default in defaults:
        own = [row for row in rows if row.implementation == each.name]
        choices.append((each, choose(own, each, shape, device), default))
    times = [None if choice is None else choice.expected_time for _, choice, _ in choices]
    if None not in times:
        order = sorted(range(len(choices)), key=lambda place: times[place] or math.inf)
        choices = [choices[place] for place in order]
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
