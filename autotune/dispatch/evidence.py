"""What recordings say of how near the best a pick is, and where they say nothing.

An expected regret is a mean of measurements that were made as the pick is used: on the same model of device, on shapes
of the same features, with this source and this Triton. It is never less than what a race can tell apart.
"""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from autotune.device import Device
from autotune.implementation import Implementation, installed_version
from autotune.likeness import likeness
from autotune.shape import Shape
from autotune.trial import Policy, Trial

if TYPE_CHECKING:
    from autotune.table import Assignment

# A winner is chosen among those within 1 % of the fastest of its race (``autotune.table.winners.TIE_RATIO``), so that
# no measurement tells a lesser regret from none. What a search did not try is not in it.
EXACT_REGRET: Final = 0.01
# With fewer measurements their mean says nothing, and the nearest of many say more than all.
MIN_EVIDENCE, MAX_EVIDENCE = 3, 8

# An expected regret, 0.02 for 2 %, and the number of measurements that it is the mean of; None and 0 where not known.
Expectation = tuple[float | None, int]
UNKNOWN: Final[Expectation] = (None, 0)


def changes_since(implementation: Implementation[Any], source_hash: str, triton: str) -> tuple[str, ...]:
    """Name what differs here from what was measured: the source, and the Triton that is installed."""
    notes = []
    if source_hash != implementation.source_hash:
        notes.append(f"{implementation.library or 'the kernel source'} has changed since it was tuned")
    here = installed_version("triton")
    if here and here != triton:
        notes.append(f"tuned with triton {triton}, here is {here}")
    return tuple(notes)


def is_as_served(trial: Trial, notes: Sequence[str]) -> bool:
    """True if a row was measured as it is served: on a GPU, by the usual policy, with this source and Triton."""
    return trial.executor == "gpu" and trial.policy == Policy() and not notes


def transfer_regret(
    rows: "Iterable[Assignment]",
    implementation: Implementation[Any],
    shape: Shape,
    device: Device,
    distance: float,
) -> Expectation:
    """Expect the regret of a row's config at a shape so far from its own, and count the pairs of shapes that say so.

    Of each recorded shape the winner of the nearest other one of its family was timed there. The regret of these pairs
    is taken to grow in proportion to ``Shape.distance``: their summed regret over their summed distance, times this
    one. Fewer than ``MIN_EVIDENCE`` pairs say nothing, nor does one that computed wrong results.
    """
    pairs = [
        (row.transfer_distance, row.transfer_regret)
        for row in _comparable(rows, implementation, shape, device)
        if row.transfer_distance is not None and row.transfer_regret is not None
    ]
    if len(pairs) < MIN_EVIDENCE:
        return UNKNOWN
    far, lost = (sum(values) for values in zip(*pairs, strict=True))
    return (max(EXACT_REGRET, distance * lost / far), len(pairs)) if lost < math.inf else UNKNOWN


def left_out_regret(
    rows: "Iterable[Assignment]", implementation: Implementation[Any], shape: Shape, device: Device
) -> Expectation:
    """Expect of a portfolio's choice what the nearest recorded shapes lost when they were left out, and count them.

    Fewer than ``MIN_EVIDENCE`` say nothing, nor do shapes from which this one differs in a feature, or by more than a
    factor of two from all of them in a size (``Likeness.is_among``).
    """
    here = likeness(shape, device)
    measured = [
        (likeness(row.shape, row.device), row.left_out_regret)
        for row in _comparable(rows, implementation, shape, device)
        if row.left_out_regret is not None
    ]
    if len(measured) < MIN_EVIDENCE or not here.is_among(there for there, _ in measured):
        return UNKNOWN
    measured.sort(key=lambda item: (here.distance(item[0]), item[1]))
    nearest = [regret for _, regret in measured[:MAX_EVIDENCE]]
    return mean_regret(nearest), len(nearest)


def mean_regret(regrets: Sequence[float]) -> float:
    """Return the mean of regrets, and at least what a race tells apart."""
    return max(EXACT_REGRET, sum(regrets) / len(regrets))


def _comparable(
    rows: "Iterable[Assignment]", implementation: Implementation[Any], shape: Shape, device: Device
) -> "list[Assignment]":
    """List the rows that speak for a shape: of its class and features, this model of device, source and Triton."""
    here = likeness(shape, device)
    found = []
    for row in rows:
        there = likeness(row.shape, row.device)
        is_alike = (there.kind, there.features) == (here.kind, here.features) and row.device.model == device.model
        if is_alike and not changes_since(implementation, row.source_hash, row.triton_version):
            found.append(row)
    return found
