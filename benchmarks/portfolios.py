"""Compute the portfolios below ``results/`` from all that is recorded: ``python -m benchmarks.portfolios``; no GPU.

Of each implementation and architecture: the fewest configs that come within 2 % of the best on every recorded shape,
which of them each shape is assigned, what it loses there, and what it would lose if the portfolio did not know the
shape. Of an operation: how far the implementation that would then be served is behind the best of all. Shipped sweeps,
winners and grids count, and the trials of every ``--store``, which know far more than the winners that came of them:
name the stores that ``benchmarks.record winners`` kept. Equal recordings give equal files.
"""

import argparse
import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.dispatch.implementation_order import expected_order
from autotune.dispatch.portfolio import choose
from autotune.errors import TableError
from autotune.implementation import Implementation
from autotune.registry import implementations_of, operation_names
from autotune.table import Assignment, Store, shipped_grid, shipped_sweeps, shipped_winners, write_portfolio
from autotune.trial import Trial
from benchmarks.console import end_with_reader
from benchmarks.merge import RESULTS
from benchmarks.recorded_shapes import TOLERANCE, find_behind, read_recordings
from benchmarks.set_cover import assign


def tables_of(implementation: Implementation[Any], results: Path, stores: Iterable[Path] = ()) -> list[list[Trial]]:
    """Return all that is recorded of an implementation: sweeps, winners, grids, and the trials of stores."""
    operation, name = implementation.operation, implementation.name
    sweeps = [sweep.trials() for sweep in shipped_sweeps(operation, implementation=name, results=results)]
    winners = shipped_winners(operation, implementation=name, results=results)
    grid = shipped_grid(operation, implementation=name, results=results)
    return [*sweeps, winners, grid, *(Store(store).trials(operation, implementation=name) for store in stores)]


def portfolios_of(
    implementations: Sequence[Implementation[Any]], tables: Sequence[Iterable[Sequence[Trial]]]
) -> dict[tuple[str, str], list[Assignment]]:
    """Return the portfolio of each of an operation's implementations, by its title, on each architecture that
    something is recorded on; ``tables`` are those of each implementation."""
    found = {}
    recordings = [read_recordings(each, rows) for each, rows in zip(implementations, tables, strict=True)]
    for place, implementation in enumerate(implementations):
        own, of_ours = recordings[place], [r for r, i in zip(recordings, implementations, strict=True) if i.is_ours]
        rivals = [each for others in of_ours if others is not own for each in others]
        behind = find_behind(own, rivals)
        for arch in sorted({each.device.arch for each in own}):
            here = [each for each in own if each.device.arch == arch]
            found[implementation.title, arch] = assign(implementation, here, behind)
    return {place: mark_chosen(rows, place, found, implementations) for place, rows in found.items()}


def mark_chosen(
    rows: Sequence[Assignment],
    place: tuple[str, str],
    portfolios: Mapping[tuple[str, str], Sequence[Assignment]],
    implementations: Sequence[Implementation[Any]],
    *,
    by_races_alone: bool = False,
) -> list[Assignment]:
    """Note at which shapes each row's implementation would be served, if the portfolios did not know the shape."""
    arch, of_ours = place[1], {each.name: each for each in implementations if each.is_ours}
    known = {name: portfolios.get((each.title, arch), ()) for name, each in of_ours.items()}

    def is_chosen(row: Assignment) -> bool | None:
        if row.behind is None:
            return None
        shape, device = row.shape, row.device
        able = [each for each in of_ours.values() if each.supports(shape, device) is None]
        others = {each.name: [other for other in known[each.name] if other.shape != shape] for each in able}
        choices = {each.name: choose(others[each.name], each, shape, device) for each in able}
        order = expected_order(able, choices, shape, device, with_estimates=not by_races_alone)
        is_known = any(each is not None and each.times for each in choices.values())
        return order.names[0] == row.implementation if is_known else None

    return [replace(row, is_chosen=is_chosen(row)) for row in rows]


def describe(rows: Sequence[Assignment]) -> list[str]:
    """Return the lines of a portfolio: what the default loses, then of each class its members and the evidence."""
    classes: dict[tuple[object, ...], list[Assignment]] = {}
    for row in rows:
        classes.setdefault(row.likeness.kind, []).append(row)
    lines = list(_default_losses(rows))
    for kin in classes.values():
        members: dict[str, list[Assignment]] = {}
        for row in kin:
            members.setdefault("the space's default" if row.is_default else str(row.config), []).append(row)
        left_out = [row.left_out_regret for row in kin if row.left_out_regret is not None]
        lines.append(f"  {_class_text(kin[0])}: {len(kin)} shapes, {_regrets_text(left_out)}")
        for member, shapes in sorted(members.items(), key=lambda item: -len(item[1])):
            lines.append(f"    {member}")
            lines += [f"      {_evidence_text(row)}" for row in shapes]
    return lines


def choice_losses(portfolios: Iterable[Sequence[Assignment]]) -> str | None:
    """Say how far the implementations that would be served are behind the best of all; None where none met others."""
    rows = [row for found in portfolios for row in found if row.behind is not None]
    shapes = Counter((row.shape, row.device) for row in rows)
    losses = [row.behind or 0.0 for row in rows if row.is_chosen and shapes[row.shape, row.device] > 1]
    if not losses:
        return None
    wrong = f"{sum(loss > TOLERANCE for loss in losses)} beyond 2 %, of {len(losses)}"
    return f"{_mean(losses):.2%} behind the best in the geometric mean, {max(losses):.1%} at worst, {wrong}"


def print_choices(
    operation: str,
    portfolios: Mapping[tuple[str, str], Sequence[Assignment]],
    implementations: Sequence[Implementation[Any]],
) -> None:
    """Print what is lost by the implementations that would be served, where each shape is left out, and by races alone.

    Estimates were fitted to these very recordings.
    """
    if (losses := choice_losses(portfolios.values())) is None:
        return
    by_races = {
        place: mark_chosen(rows, place, portfolios, implementations, by_races_alone=True)
        for place, rows in portfolios.items()
    }
    print(f"{operation}: implementations chosen where a shape is left out: {losses}")
    print(f"{operation}: by races alone: {choice_losses(by_races.values())}")


def _default_losses(rows: Sequence[Assignment]) -> Iterator[str]:
    """Yield what the space's default loses on each device, of the recorded shapes at which it was timed.

    Its rules were written after these recordings: of shapes that it does not know ``benchmarks.served_regret`` tells.
    """
    for device in sorted({row.device.name for row in rows}):
        here = [row for row in rows if row.device.name == device]
        losses = sorted(row.default_regret for row in here if row.default_regret is not None)
        where = f"of {len(losses)} of {len(here)} shapes on {device}"
        if losses:
            mean, high = _mean(losses), losses[math.ceil(0.95 * len(losses)) - 1]
            known = f"{mean:.1%} in the geometric mean, {high:.1%} at the 95th percentile, {losses[-1]:.1%} at worst"
            yield f"  the space's default loses {known}, {where}"
        else:
            yield f"  the space's default was not timed beside others: {where}"


def _mean(regrets: Sequence[float]) -> float:
    """Return the regret whose time over the best is the geometric mean of theirs."""
    return math.exp(sum(map(math.log1p, regrets)) / len(regrets)) - 1.0


def _class_text(row: Assignment) -> str:
    fields = row.shape.as_dict()
    types = " over ".join(dict.fromkeys(str(fields[name]) for name in ("dtype", "kv_dtype") if name in fields))
    return f"{types}, heads of {fields['head_dim']}"


def _regrets_text(regrets: Sequence[float]) -> str:
    if not regrets:
        return "not known what a shape loses that was left out"
    mean, worst = 1 + _mean(regrets), 1 + max(regrets)
    return f"left out {mean:.3f}x the best in the geometric mean of {len(regrets)}, {worst:.3f}x at worst"


def _evidence_text(row: Assignment) -> str:
    known = {
        "": row.regret,
        "default ": row.default_regret,
        "left out ": row.left_out_regret,
        "own best ": row.behind,
    }
    texts = [f"{name}{1 + regret:.3f}x" for name, regret in known.items() if regret is not None]
    return f"{', '.join(texts) or 'one config timed'}, of {row.timed} timed: {row.shape} on {row.device.name}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.portfolios",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="where recordings are and portfolios go")
    parser.add_argument("--store", type=Path, action="append", default=[], help="trials that count too")
    parser.add_argument("--list", action="store_true", help="only say what would be written")
    given = parser.parse_args(arguments)
    try:
        for operation in operation_names():
            implementations = implementations_of(operation)
            tables = [tables_of(each, given.results, given.store) for each in implementations]
            found = portfolios_of(implementations, tables)
            for (title, arch), rows in found.items():
                print(f"{title} on {arch}", *describe(rows), sep="\n")
                if not given.list:
                    print(f"  written to {write_portfolio(rows, results=given.results)}")
            print_choices(operation, found, implementations)
    except TableError as error:
        sys.exit(f"benchmarks.portfolios: {error}")


if __name__ == "__main__":
    end_with_reader()
    main()
