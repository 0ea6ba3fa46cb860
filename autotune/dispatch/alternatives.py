"""All that may be served for a shape, best first: stored rows, the portfolio's choice, and the space's default."""

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from autotune.device import Device
from autotune.dispatch.evidence import EXACT_REGRET
from autotune.dispatch.implementation_order import expected_order, typical_times
from autotune.dispatch.ladder import climb, why_default
from autotune.dispatch.portfolio import Polls, PortfolioChoice, choose
from autotune.dispatch.provenance import Alternative, DefaultName, Provenance
from autotune.errors import InvalidShapeError
from autotune.implementation import Implementation
from autotune.likeness import likeness
from autotune.shape import Shape
from autotune.trial import Candidate, Trial

if TYPE_CHECKING:
    from autotune.table import Assignment, Served

# How far the shape of a row that ships may be for it to come before the portfolio's choice, in which it had its vote.
# Where a recorded shape was left out and the nearest was 0.37 to 0.84 away, the choice lost less at 8 of 10 at which it
# is another candidate, by up to 29 %, and more at 2, by 0.3 and 5 % (dense attention and paged decode, NVIDIA H200,
# 2026-11-28; ``python -m benchmarks.served_regret --recorded`` with and without).
NEAR: Final = 0.25


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
    polls: "Polls | None" = None,
) -> list[Alternative]:
    """Return every candidate that may be served, each once, best first; the last is the default of a space.

    The portfolio's choice stands behind the stored rows. It stands before them where the first is of another shape, and
    ships and is more than ``NEAR`` away, or lost its race to what is not served here, or both expected regrets are
    known and the portfolio's is less; and where its implementation was not in the race of the first, and was faster
    than the row's at shapes of the same features at which both were raced.

    Of several implementations the one that is expected to be the fastest comes first (``expected_order``); where
    nothing is known of any, the first admitted one, with its space's default where the portfolio has nothing valid.

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
        polls: keeps what the portfolio says of a likeness, for many shapes on one device.
    """
    stored = climb(shape, device, rows, admitted, with_baselines=with_baselines, portfolio=portfolio)
    judged = [(each, why_unfit(each)) for each in stored if can_serve(each)]
    found = [each for each, why in judged if not why]
    passed_over: dict[Candidate, str] = {}
    for each, why in judged:
        if why:
            passed_over.setdefault(each.candidate, why)
    if passed_over:
        portfolio, polls = [row for row in portfolio if row.is_default or row.candidate not in passed_over], None
    if passed_over and not found:
        reason = "all that was tuned for this shape or near it is unfit for the Triton here"
    elif no_rows or not found:
        reason = no_rows or why_default(admitted, shape, device, rows)
    else:
        reason = "all that was tuned for this shape or near it is refused"
    is_unrecorded = not (no_rows or rows or portfolio)
    untuned = Provenance("default", reason, default="space's default", hint=hint, is_unrecorded=is_unrecorded)
    served = [(each, _spaces_default(each, shape, device, untuned, is_known=not no_rows)) for each in admitted]
    defaults = [(each, default) for each, default in served if default is not None]
    if defaults:
        choices = _choices(portfolio, defaults, shape, device, polls, is_adrift=bool(passed_over))
        found = _with_portfolio(found, rows, choices, device, reason)
        found += [default for _, default in defaults]
    if not found:
        text = "; ".join(_why_none(each, shape, device) for each in admitted)
        raise InvalidShapeError(f"no config is valid for {shape} on {device.name}: {text}")
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
    implementation: Implementation[Any], shape: Shape, device: Device, why: Provenance, *, is_known: bool
) -> Alternative | None:
    """Return the default of a space, and what chose it; of a device that nobody knows that would be a guess.

    Where the default is invalid, which breaks a space's contract, the first valid config stands for it; None without.
    """
    space = implementation.space
    config, basis = space.default(shape, device), space.default_basis(device) if is_known else ""
    if why.is_unrecorded and not basis:
        basis = f"as no recording of {implementation.name} on {device.arch} ships"
    served = f"the space's default{basis and f', {basis}'}"
    if (problem := space.why_invalid(config, shape, device)) is not None:
        valid = next(space.configs(shape, device), None)
        if valid is None:
            return None
        config, served = valid, f"the first valid config, as the space's default is invalid here: {problem}"
    return Alternative(Candidate(implementation.name, config), replace(why, served=served))


def _why_none(implementation: Implementation[Any], shape: Shape, device: Device) -> str:
    space = implementation.space
    return f"of {implementation.name}'s default, {space.why_invalid(space.default(shape, device), shape, device)}"


class _Choice(NamedTuple):
    """An admitted implementation, its portfolio's choice where it has one that is valid, and its space's default."""

    implementation: Implementation[Any]
    portfolio: PortfolioChoice | None
    default: Alternative
    overtaken: str = ""  # the implementation that an estimate put it before
    is_learned: bool = False  # its space's default
    is_preferred: bool = False

    def serve(self, device: Device, why: str) -> Alternative:
        return self.default if self.portfolio is None else _served(self, self.portfolio, device, why)


def _choices(
    portfolio: "Sequence[Assignment]",
    defaults: Sequence[tuple[Implementation[Any], Alternative]],
    shape: Shape,
    device: Device,
    polls: "Polls | None",
    *,
    is_adrift: bool,
) -> list[_Choice]:
    """Return the architecture's portfolio's choice of each implementation, the fastest first where that is known.

    One that is preferred there and that no recording compares with others comes before these (``Space.is_preferred``).
    Where a stored candidate is unfit for the Triton here (``is_adrift``), what a portfolio has comes before the
    defaults that only stand in for it.
    """
    kind = likeness(shape, device).kind
    kin = [row for row in portfolio if row.likeness.kind == kind]
    polls = {} if polls is None else polls

    def chosen(each: Implementation[Any], *, is_first: bool) -> PortfolioChoice | None:
        own = [row for row in kin if row.implementation == each.name]
        rivals = [row for row in kin if row.implementation != each.name] or None
        return choose(own, each, shape, device, rivals=rivals, is_first=is_first, polls=polls)

    choices = [
        _Choice(
            *(each, chosen(each, is_first=False), default),
            is_learned=each.space.is_learned(shape, device),
            is_preferred=each.space.is_preferred(shape, device),
        )
        for each, default in defaults
    ]
    admitted = [each for each, _ in defaults]
    names, overtaken = expected_order(
        admitted,
        {each.implementation.name: each.portfolio for each in choices},
        shape,
        device,
        typical=lambda: typical_times(portfolio, [each.name for each in admitted]),
        with_estimates=not any(row.shape == shape and row.behind is not None for row in kin),
    )
    choices.sort(key=lambda each: names.index(each.implementation.name))
    if overtaken:
        place = names.index(overtaken) - 1
        choices[place] = choices[place]._replace(overtaken=overtaken)
    choices.sort(key=lambda each: not (each.is_preferred and each.portfolio is None))
    if is_adrift:
        choices.sort(key=lambda each: each.portfolio is None)
    first = choices[0]
    return [first._replace(portfolio=chosen(first.implementation, is_first=True)), *choices[1:]]


def _with_portfolio(
    found: "Sequence[Alternative]",
    rows: "Sequence[Served]",
    choices: Sequence[_Choice],
    device: Device,
    why: str,
) -> list[Alternative]:
    """Add what the architecture's portfolio has for the shape; ``why`` says why no row is served."""
    if found and (reason := _why_before(choices, found[0].provenance, rows)):
        first, *others = choices
        if _is_far(found[0].provenance):  # where the first declines a call, the others' choices are as much nearer
            before = [first, *(choice for choice in others if choice.portfolio is not None)]
            return [*(choice.serve(device, reason) for choice in before), *found]
        return [_own_row(first.implementation, found) or first.serve(device, reason), *found]
    return [*found, *(choice.serve(device, why) for choice in choices)]


def _own_row(implementation: Implementation[Any], found: "Iterable[Alternative]") -> Alternative | None:
    """Return what is stored of an implementation for this very shape, which is nearer than any portfolio's choice."""
    own = (each for each in found if each.candidate.implementation == implementation.name)
    return next((each for each in own if each.provenance.rung == "exact"), None)


def _why_before(choices: "Sequence[_Choice]", row: Provenance, rows: "Iterable[Served]") -> str:
    """Return the reason why the portfolio's first choice comes before the first stored row, or else "".

    The row is of another shape, and ships and is not near, or is expected farther from the best, or lost its race to
    what is not valid here; or the implementation of the choice was not in the race of the row, and took less time than
    the row's where both were raced over shapes of the same features.
    """
    first = choices[0]
    if first.portfolio is None or row.row is None or row.baseline:
        return ""
    if _is_far(row):
        return f"the portfolio, which weighs more shapes, comes before what is {row.reason}"
    if _is_less(first.portfolio, row):
        return f"expected nearer the best than what is {row.reason}"
    rivals = {each.implementation.name for each in choices} - {row.row.implementation}
    is_other = row.rung != "exact" and first.implementation.name in rivals
    if is_other and (winner := _beaten_by(row.row, rivals, rows)):
        return f"{winner}, whose config is not served here, was faster in the race of what is {row.reason}"
    of_row = next((each.portfolio for each in choices if each.implementation.name == row.row.implementation), None)
    ours, theirs = first.portfolio.times, None if of_row is None else of_row.times
    if ours is None or theirs is None or ours.alike is None or theirs.alike is None:
        return ""
    (chosen, _), (_, best) = ours.alike, theirs.alike
    if _has_met(row.row, first.implementation.name, rows) or chosen * (1.0 + EXACT_REGRET) >= best:
        return ""
    return f"{first.implementation.name} is expected faster than what {row.row.implementation} has {row.reason}"


def _has_met(row: Trial, implementation: str, rows: "Iterable[Served]") -> bool:
    """Return True if an implementation was in the race of a row, which was then decided between the two."""
    return any(each.implementation == implementation for each in _raced_with(row, rows))


def _beaten_by(row: Trial, rivals: Container[str], rows: "Iterable[Served]") -> str:
    """Return the name of a rival that was clearly faster in the race of a row, or else ""."""
    least = math.inf if row.timing is None else row.timing.median_us / (1.0 + EXACT_REGRET)
    met = (each for each in _raced_with(row, rows) if each.implementation in rivals)
    return next((each.implementation for each in met if each.timing and each.timing.median_us < least), "")


def _raced_with(row: Trial, rows: "Iterable[Served]") -> Iterator[Trial]:
    """Yield the stored trials of the race of a row, its own among them."""
    race = (row.race_id, row.shape, row.device)
    return (each.trial for each in rows if (each.trial.race_id, each.trial.shape, each.trial.device) == race)


def _is_far(row: Provenance) -> bool:
    """Return True if a row ships and is of a shape that is not near, under any power cap."""
    return row.origin == "shipped" and row.distance is not None and row.distance > NEAR


def _is_less(choice: PortfolioChoice, other: Provenance) -> bool:
    """Return True if the choice is expected nearer the best than a row; nothing is nearer than a row of the shape."""
    if other.rung == "exact" or other.expectation.recorded[0] is None:  # sources are hashed where both may be known
        return False
    least = choice.expectation.regret
    return least is not None and other.expected_regret is not None and least < other.expected_regret


def _served(of: _Choice, choice: PortfolioChoice, device: Device, why: str) -> Alternative:
    near = choice.nearest
    has = f"the config that the portfolio of {device.arch} has for {near.shape} on {near.device.name}"
    elsewhere = "" if near.device.model == device.model else f", recorded on {near.device.name}"
    learned = ", learned from recordings" if of.is_learned else ""
    keeps = f"the space's default{learned}, which the portfolio of {device.arch} keeps{elsewhere}"
    served = keeps if choice.is_default else has
    served += f", estimated faster than {of.overtaken}" if of.overtaken else ""
    name: DefaultName = "space's default" if choice.is_default else "portfolio's default"
    provenance = Provenance("default", why, expectation=choice.expectation, default=name, served=served)
    return Alternative(Candidate(of.implementation.name, choice.config), provenance)
