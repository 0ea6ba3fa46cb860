"""Evidence of how near the best a pick is, by recordings, and where there is none.

An expected regret is a mean of measurements that were made as the pick is used: on the same model of device, on shapes
of the same features, with this source and this Triton. Where a space's default was not timed at a recorded shape on
this model, but on another one of the architecture, what it lost there stands for it, and what models differ by in
addition (``autotune.table.Assignment.left_out_regret``). It is never less than what a race can tell apart.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from autotune.device import Device
from autotune.implementation import Implementation, installed_version
from autotune.likeness import likeness
from autotune.registry import get_implementation
from autotune.shape import Shape
from autotune.trial import Policy, Trial

if TYPE_CHECKING:
    from autotune.table import Assignment

# A winner is chosen among those within 1 % of the fastest of its race (``autotune.table.winners.TIE_RATIO``), so that
# no measurement tells a lesser regret from none. What a search did not try is not in it.
EXACT_REGRET: Final = 0.01
# With fewer measurements their mean says nothing, and the nearest of many say more than all.
MIN_EVIDENCE, MAX_EVIDENCE = 3, 8

# A recorded regret, 0.02 for 2 %, and the number of measurements that it is the mean of; None and 0 where not known.
Recorded = tuple[float | None, int]
UNKNOWN: Final[Recorded] = (None, 0)


@dataclass(frozen=True, slots=True)
class Expectation:
    """The expected regret of a pick: what was recorded of it, and with which source and Triton.

    ``library_version`` is of the library that brings a foreign kernel, where the recording has it. ``others`` are the
    operation, the name and the source of each other implementation that was measured for it, too. Hashing today's
    source takes milliseconds, so that both are compared when they are asked for and not at a pick.
    """

    recorded: Recorded = UNKNOWN
    implementation: Implementation[Any] | None = None
    source_hash: str = ""
    triton: str = ""
    others: frozenset[tuple[str, str, str]] = frozenset()
    library_version: str = ""

    @property
    def notes(self) -> tuple[str, ...]:
        """The differences between what was measured and what is here: the source, and the Triton that is installed.

        A library or a Triton that is not installed differs in nothing.
        """
        if self.implementation is None:
            return ()
        notes = [_source_note(self.implementation, self.source_hash, self.library_version)]
        for operation, name, source_hash in sorted(self.others):
            if note := _source_note(get_implementation(operation, name), source_hash):
                notes.append(f"of {name}, which shapes near by are served: {note}")
        here = triton_here()
        if here and here != self.triton:
            notes.append(f"measured with triton {self.triton}, here is {here}")
        return tuple(filter(None, notes))

    @property
    def regret(self) -> float | None:
        """The expected regret; None where nothing recorded tells, or something has changed since."""
        return None if self.recorded[0] is None or self.notes else self.recorded[0]

    @property
    def evidence(self) -> int:
        """The number of measurements behind the regret."""
        return 0 if self.regret is None else self.recorded[1]

    def __str__(self) -> str:
        if (regret := self.regret) is None:
            return "nothing recorded says how near the best"
        count = f"{self.recorded[1]} measurement{'s' if self.recorded[1] != 1 else ''}"
        return f"expected about {100 * regret:.2g} % behind the best, {count}"


NOTHING_RECORDED: Final = Expectation()


def _source_note(implementation: Implementation[Any], source_hash: str, version: str = "") -> str:
    """Return how the source that was measured differs from what is here; empty where it does not."""
    if source_hash == implementation.source_hash:
        return ""
    if (library := implementation.library) is None:
        return "the kernel source has changed since it was measured"
    if not (here := implementation.library_version):
        return ""
    measured = f"{library} {version}" if version else f"another {library}"
    return f"measured with {measured}, here is {here}"


def triton_here() -> str:
    """Return the version of Triton that is installed; empty without one."""
    return installed_version("triton")


def is_as_served(trial: Trial) -> bool:
    """Return True if a row was measured as it is served: on a GPU, by the usual policy."""
    return trial.executor == "gpu" and trial.policy == Policy()


def transfer_regret(
    rows: "Iterable[Assignment]",
    trial: Trial,
    shape: Shape,
    device: Device,
    distance: float,
) -> Recorded:
    """Expect the regret of a row at a shape so far from its own, and count the pairs of shapes that say so.

    Of each recorded shape the winner of the nearest other one of its family was timed there. The regret of these pairs
    is taken to grow in proportion to ``Shape.distance``: their summed regret over their summed distance, times this
    one. Fewer than ``MIN_EVIDENCE`` pairs say nothing, nor does one that computed wrong results.
    """
    pairs = [
        (row.transfer_distance, row.transfer_regret)
        for row in _comparable(rows, (trial.source_hash, trial.toolchain.triton), shape, device)
        if row.transfer_distance is not None and row.transfer_regret is not None
    ]
    if len(pairs) < MIN_EVIDENCE:
        return UNKNOWN
    far, lost = (sum(values) for values in zip(*pairs, strict=True))
    return (max(EXACT_REGRET, distance * lost / far), len(pairs)) if lost < math.inf else UNKNOWN


def left_out_regret(
    rows: "Iterable[Assignment]",
    nearest: "Assignment",
    shape: Shape,
    device: Device,
    *,
    rivals: "Sequence[Assignment] | None" = None,
    is_first: bool = True,
) -> Recorded:
    """Expect of a portfolio's choice what the nearest recorded shapes lost when they were left out, and count them.

    Where other implementations may be served too, what this one was behind the best of a race is lost as well, and a
    shape at which no other one met it says nothing. Of what is served first each shape tells of the implementation that
    would be served there.

    Fewer than ``MIN_EVIDENCE`` say nothing, nor do shapes from which this one differs in a feature, or by more than a
    factor of two from all of them in a size (``Likeness.is_among``).

    Args:
        rivals: the rows of ``served_rivals``; None where no other implementation may be served.
        is_first: the choice is served before those of all others.
    """
    here = likeness(shape, device)
    own = _comparable(rows, (nearest.source_hash, nearest.triton_version), shape, device)
    if rivals is None:
        times = [(row.likeness, row.own_left_out_time) for row in own]
    else:
        served = [*(row for row in own if row.is_chosen is not False), *rivals] if is_first else own
        times = [(row.likeness, row.left_out_time) for row in served]
    measured = [(there, time - 1.0) for there, time in times if time is not None]
    if len(measured) < MIN_EVIDENCE or not here.is_among(there for there, _ in measured):
        return UNKNOWN
    measured.sort(key=lambda item: (here.distance(item[0]), item[1]))
    regrets = [regret for _, regret in measured[:MAX_EVIDENCE]]
    return mean_regret(regrets), len(regrets)


def served_rivals(
    rivals: "Iterable[Assignment]", nearest: "Assignment", shape: Shape, device: Device
) -> "list[Assignment]":
    """List the rows of other implementations that speak for a shape: of those served where they are, by one Triton."""
    served = (row for row in rivals if row.is_chosen and row.triton_version == nearest.triton_version)
    return _alike(served, shape, device)


def mean_regret(regrets: Sequence[float]) -> float:
    """Return the mean of regrets, and at least what a race tells apart."""
    return max(EXACT_REGRET, sum(regrets) / len(regrets))


def _comparable(
    rows: "Iterable[Assignment]", measured: tuple[str, str], shape: Shape, device: Device
) -> "list[Assignment]":
    """List the rows that speak for a shape: of its class and features, this model of device, one source and Triton."""
    return _alike((row for row in rows if (row.source_hash, row.triton_version) == measured), shape, device)


def _alike(rows: "Iterable[Assignment]", shape: Shape, device: Device) -> "list[Assignment]":
    here, model = likeness(shape, device), device.model
    return [row for row in rows if here.is_like(row.likeness) and (row.device is device or row.device.model == model)]
