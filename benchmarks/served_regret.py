"""The regret of a user who has tuned nothing: ``python -m benchmarks.served_regret --recorded``, or ``--drawn 60``.

``--sweeps``: each recorded sweep is left out in turn, with the winners of its shape: the portfolios are computed anew
without it, and what would be served for the shape is looked up in the sweep, which timed every config; a default that
is fitted to recordings counts by what it was when it was fitted without the shape. No GPU. Beside
that stands what was to be expected without the sweep: the mean of what the other shapes of its class lost when each of
them was left out as well, and what ``get_kernel`` said, which wants more measurements of shapes that are more alike.
Wanted of the sweeps of each implementation of dense attention: at most 1.02 times the best in the geometric mean, and
1.05 at worst; exits with 1 beyond.

``--recorded``: each recorded shape is left out in turn, with all its rows, and what the rows and portfolios of others
would serve is looked up in what was recorded of it. No GPU. A default that is fitted to recordings counts by
what it chose when it was fitted without the shape (``benchmarks.fit_decode``); rules of other defaults were written
after these recordings, so that new shapes lose more. Wanted as of drawn ones.

``--drawn N``: N shapes, drawn by ``--seed`` (``autotune.tuning.draw_shapes``), are served by the shipped tables alone
and each raced with the finalists of a local search of ``--seconds``, on the GPU here (``benchmarks.drawn_regret``).
Wanted: a median regret of at most 2 % and a 95th percentile of at most 8 %; a median of at most 4 % with the tables of
other devices alone (``--only-other-device``). ``--store`` keeps what was measured: the same command continues, and
``--minutes`` ends a run; exits with 1 beyond the limits, or while shapes are left.

``--points N``: N points of ``benchmarks.expected_regret`` that an H100 can tune, instead of drawn shapes. Wanted: what
was expected of 90 % of those of which something was expected is within 3 points of what is measured.
"""

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from autotune.dispatch import Provenance, alternatives_for
from autotune.dispatch.evidence import EXACT_REGRET, mean_regret
from autotune.errors import UsageError
from autotune.implementation import Implementation
from autotune.likeness import likeness
from autotune.registry import get_operation, implementations_of, operation_names
from autotune.shape import Shape
from autotune.space import Config
from autotune.table import Served, Store, shipped_grid, shipped_sweeps, shipped_winners, winners
from benchmarks import drawn_regret
from benchmarks.console import end_with_reader, open_gpu, parse_count, parse_duration
from benchmarks.drawn_regret import Decided
from benchmarks.fitted_defaults import is_fitted, left_out_loss
from benchmarks.merge import RESULTS
from benchmarks.problem_parts import deal, parse_part
from benchmarks.recorded_regret import MIN_TIMED, leave_out_each
from benchmarks.recorded_shapes import RecordedShape, read_recordings
from benchmarks.set_cover import assign
from benchmarks.user_tables import tables_in

MEAN_LIMIT, WORST_LIMIT = 1.02, 1.05
OPERATION: Final = "flash_attention"


class LeftOut(NamedTuple):
    """A sweep that was left out: what is served for its shape then, and the time of that, of the space's default and of
    the faster of what people write by hand over that of the best; nan where it was not timed. ``expected`` is what
    the others of its class let expect of what is served; nan where none of them was left out."""

    shape: Shape
    config: Config
    provenance: Provenance
    served: float
    default: float
    heuristic: float
    expected: float


def leave_out(implementation: Implementation[Any], results: Path = RESULTS) -> list[LeftOut]:
    """Leave out each sweep of an implementation in turn; of one that did not time what is served, the ratio is nan."""
    operation, name = implementation.operation, implementation.name
    sweeps = [sweep.trials() for sweep in shipped_sweeps(operation, implementation=name, results=results)]
    rows = shipped_winners(operation, implementation=name, results=results)
    recordings = read_recordings(
        implementation, [*sweeps, rows, shipped_grid(operation, implementation=name, results=results)]
    )
    served = [Served(trial, "shipped") for trial in winners(rows)]
    swept = {(trials[0].shape, trials[0].device) for trials in sweeps}
    return [
        _without(implementation, each, recordings, served) for each in recordings if (each.shape, each.device) in swept
    ]


def _without(
    implementation: Implementation[Any],
    left_out: RecordedShape,
    recordings: Iterable[RecordedShape],
    rows: Iterable[Served],
) -> LeftOut:
    shape, device = left_out.shape, left_out.device
    kind = likeness(shape, device).kind
    others = [
        each
        for each in recordings
        if each.shape != shape and each.device.arch == device.arch and likeness(each.shape, each.device).kind == kind
    ]
    portfolio = assign(implementation, others)
    found = alternatives_for(
        shape,
        device,
        [row for row in rows if row.trial.shape != shape],
        [implementation],
        portfolio=portfolio,
    )[0]
    config = found.candidate.config
    by_hand = [left_out.ratios.get(each, math.inf) for each in implementation.space.heuristics(shape, device)]
    heuristic = min(by_hand, default=math.inf)
    lost = [row.left_out_regret for row in portfolio if row.left_out_regret is not None]
    return LeftOut(
        shape,
        config,
        found.provenance,
        served=_time_without(implementation, left_out, config),
        default=_time_without(implementation, left_out, left_out.default),
        heuristic=heuristic if heuristic < math.inf else math.nan,
        expected=1.0 + mean_regret(lost) if lost else math.nan,
    )


def _time_without(implementation: Implementation[Any], left_out: RecordedShape, config: Config) -> float:
    """Return the time of a config over that of the best; of a default that was fitted to the shape, of what it was when
    it was fitted without it; nan where it was not timed."""
    if config == left_out.default and is_fitted(implementation, left_out.shape):
        lost = left_out_loss(implementation, left_out.shape, left_out.device)
        return math.nan if lost is None else 1.0 + lost
    return left_out.ratios.get(config, math.nan)


def summary(ratios: Sequence[float]) -> tuple[float, float]:
    """Return the geometric mean and the worst of ratios."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios)), max(ratios)


def expectation(found: Iterable[LeftOut]) -> str:
    """Compare in a line what was expected of the sweeps that were left out with what was measured."""
    known = [row for row in found if not math.isnan(row.expected + row.served)]
    if not known:
        return "expected         of none: no other shape of the class was left out"
    mean, worst = summary([row.expected for row in known])
    more = sum(row.served > row.expected for row in known)
    over = max(row.served - row.expected for row in known)
    return (
        f"expected         {mean:.3f}x the best in the geometric mean, {worst:.3f}x at most (nothing below "
        f"{1 + EXACT_REGRET:.2f}x can be told); {more} of {len(known)} take more, by {max(0.0, over):.3f} at most"
    )


def run_sweeps(operation: str, results: Path) -> None:
    """Leave out each sweep of an operation, print what is served then, and exit beyond the limits."""
    every = {each.name: rows for each in implementations_of(operation) if (rows := leave_out(each, results))}
    if not every:
        sys.exit(f"benchmarks.served_regret: no sweep of {operation} is recorded in {results}")
    for name, found in every.items():
        print_left_out(name, found)
    summaries = [summary([row.served for row in found]) for found in every.values()]
    if operation == OPERATION and not all(mean <= MEAN_LIMIT and worst <= WORST_LIMIT for mean, worst in summaries):
        sys.exit(f"benchmarks.served_regret: wanted at most {MEAN_LIMIT}x in the mean and {WORST_LIMIT}x at worst")


def print_left_out(name: str, found: Sequence[LeftOut]) -> None:
    """Print the sweeps of an implementation that were left out, and their means."""
    columns = " ".join(f"{column:>8}" for column in ("served", "expected", "said", "default", "by hand"))
    print(f"{columns}  of the best, sweeps of {name} left out in turn: {len(found)}")
    for row in found:
        regret = row.provenance.expected_regret
        said = math.nan if regret is None else 1 + regret
        of_best = (row.served, row.expected, said, row.default, row.heuristic)
        ratios = " ".join("       -" if math.isnan(ratio) else f"{ratio:7.3f}x" for ratio in of_best)
        print(f"{ratios}  {row.shape}: {row.provenance.rung}, {row.config}")
    mean, worst = summary([row.served for row in found])
    others = {"space's default": [row.default for row in found], "by hand": [row.heuristic for row in found]}
    others = {of: known for of, ratios_of in others.items() if (known := [r for r in ratios_of if not math.isnan(r)])}
    print(f"served           {mean:.3f}x the best in the geometric mean, {worst:.3f}x at worst")
    print(expectation(found))
    for of, ratios_of in others.items():
        print("{:16} {:.3f}x the best in the geometric mean, {:.3f}x at worst".format(of, *summary(ratios_of)))


def run_drawn(given: argparse.Namespace) -> None:
    """Measure the regret of drawn shapes, print it, and exit beyond the limits or while shapes are left."""
    started = time.monotonic()
    operation = get_operation(given.operation)
    try:
        shapes = drawn_regret.draw(operation, given.drawn, given.points, given.seed)
    except UsageError as error:
        sys.exit(f"benchmarks.served_regret: {error}")
    shapes = deal(shapes, given.part)
    if given.list:
        print(*shapes, sep="\n")
        return
    with tempfile.TemporaryDirectory() as folder, open_gpu("served_regret") as executor, tables_in():
        picks = [
            drawn_regret.pick(operation, shape, executor.device, only_other_device=given.only_other_device)
            for shape in shapes
        ]
        print("  regret expected  of what is served untuned")
        found = drawn_regret.measure_all(
            operation,
            picks,
            executor,
            Store(given.store or Path(folder)),
            seconds=given.seconds,
            deadline=math.inf if given.minutes is None else started + 60 * given.minutes,
            say=lambda line: print(line, flush=True),
        )
    summarize = drawn_regret.summarize if given.points is None else drawn_regret.summarize_expected
    lines, is_met = summarize(found, len(picks), only_other_device=given.only_other_device)
    print(*lines, sep="\n")
    sys.exit(0 if is_met else 1)


def run_recorded(operation: str, results: Path) -> None:
    """Leave out each recorded shape of an operation, print what is served then, and exit beyond the limits."""
    devices: dict[str, list[Decided | None]] = {}
    for device, decided in leave_out_each(operation, results):
        devices.setdefault(device.name, []).append(decided)
    if not devices:
        sys.exit(f"benchmarks.served_regret: no shape of {operation} is recorded well enough in {results}")
    met = [print_recorded(name, every) for name, every in devices.items()]
    sys.exit(0 if all(met) else 1)


def print_recorded(device: str, every: Sequence[Decided | None]) -> bool:
    """Print what is served on a device where shapes are left out; return False beyond the limits."""
    found = sorted((each for each in every if each is not None), key=lambda each: -each.regret)
    print(f"  regret expected  of what is served on {device} where a shape is left out")
    for each in found:
        if each.regret > drawn_regret.MEDIAN_LIMIT:
            print(each)
    timed = f"timed    {len(found)} of {len(every)} shapes that have {MIN_TIMED} timed candidates or more"
    if not found:
        print(timed)
        return True
    lines, is_met = drawn_regret.summarize(found, len(found), only_other_device=False)
    print(timed, *lines[1:], sep="\n")
    return is_met


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.served_regret",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = parser.add_mutually_exclusive_group(required=True)
    kinds.add_argument("--sweeps", action="store_true", help="leave out each recorded sweep; no GPU")
    kinds.add_argument("--recorded", action="store_true", help="leave out each recorded shape; no GPU")
    kinds.add_argument("--drawn", type=parse_count, metavar="N", help="N drawn shapes, on the GPU here")
    kinds.add_argument("--points", type=parse_count, metavar="N", help="N points of the named models, on the GPU here")
    parser.add_argument("--operation", choices=operation_names(), default=OPERATION, help="[default: %(default)s]")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the tables, of what reads recordings")
    drawn = parser.add_argument_group("of drawn shapes")
    drawn.add_argument("--seed", type=int, default=0, help="of the drawing [default: 0]")
    drawn.add_argument("--seconds", type=parse_duration, default=30.0, help="the budget of each search [default: 30]")
    drawn.add_argument("--minutes", type=parse_duration, help="begin no search that would end later")
    drawn.add_argument("--store", type=Path, metavar="FOLDER", help="keep the trials here, and continue from them")
    drawn.add_argument("--part", type=parse_part, default=(1, 1), metavar="I/N", help="every N-th shape, from the I-th")
    drawn.add_argument("--only-other-device", action="store_true", help="serve by other devices' tables alone")
    drawn.add_argument("--list", action="store_true", help="only list the shapes; needs no GPU")
    given = parser.parse_args(arguments)
    if given.sweeps:
        run_sweeps(given.operation, given.results)
    elif given.recorded:
        run_recorded(given.operation, given.results)
    else:
        run_drawn(given)


if __name__ == "__main__":
    end_with_reader()
    main()
