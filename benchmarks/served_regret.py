"""The regret of a user who has tuned nothing: ``python -m benchmarks.served_regret --sweeps``.

Each recorded sweep is left out in turn, with the winners of its shape: the portfolios are computed anew without it, and
what would be served for the shape is looked up in the sweep, which timed every config. No GPU. Beside that stands what
was to be expected without the sweep: the mean of what the other shapes of its class lost when each of them was left out
as well, and what ``get_kernel`` said, which wants more measurements of shapes that are more alike. Wanted of dense
attention's sweeps: at most 1.02 times the best in the geometric mean, and 1.05 at worst; exits with 1 beyond.
"""

import argparse
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from autotune.dispatch import Provenance, alternatives_for
from autotune.dispatch.evidence import EXACT_REGRET, mean_regret
from autotune.implementation import Implementation
from autotune.likeness import likeness
from autotune.registry import implementations_of, operation_names
from autotune.shape import Shape
from autotune.space import Config
from autotune.table import Served, shipped_sweeps, shipped_winners, winners
from autotune.tuning.set_cover import RecordedShape, assign, read_recordings
from benchmarks.merge import RESULTS

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
    recordings = read_recordings(implementation, [*sweeps, rows])
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
        served=left_out.ratios.get(config, math.nan),
        default=left_out.ratios.get(left_out.default, math.nan),
        heuristic=heuristic if heuristic < math.inf else math.nan,
        expected=1.0 + mean_regret(lost) if lost else math.nan,
    )


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


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.served_regret",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--sweeps", action="store_true", required=True, help="leave out each recorded sweep; no GPU")
    parser.add_argument("--operation", choices=operation_names(), default=OPERATION)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    found = [row for each in implementations_of(given.operation) for row in leave_out(each, given.results)]
    if not found:
        sys.exit(f"benchmarks.served_regret: no sweep of {given.operation} is recorded in {given.results}")
    columns = " ".join(f"{name:>8}" for name in ("served", "expected", "said", "default", "by hand"))
    print(f"{columns}  of the best, {len(found)} sweeps left out in turn")
    for row in found:
        said = row.provenance.expected_regret
        text = "-" if said is None else f"{1 + said:.3f}x"
        of_best = [f"{ratio:7.3f}x" for ratio in (row.served, row.expected, row.default, row.heuristic)]
        ratios = " ".join((*of_best[:2], f"{text:>8}", *of_best[2:]))
        print(f"{ratios}  {row.shape}: {row.provenance.rung}, {row.config}")
    mean, worst = summary([row.served for row in found])
    others = {"space's default": [row.default for row in found], "by hand": [row.heuristic for row in found]}
    print(f"served           {mean:.3f}x the best in the geometric mean, {worst:.3f}x at worst")
    print(expectation(found))
    for name, ratios_of in others.items():
        print("{:16} {:.3f}x the best in the geometric mean, {:.3f}x at worst".format(name, *summary(ratios_of)))
    if given.operation == OPERATION and not (mean <= MEAN_LIMIT and worst <= WORST_LIMIT):
        sys.exit(f"benchmarks.served_regret: wanted at most {MEAN_LIMIT}x in the mean and {WORST_LIMIT}x at worst")


if __name__ == "__main__":
    main()
