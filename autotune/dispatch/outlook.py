"""The outlook: what is served for many shapes on one device, and how near the best that is expected to be."""

from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from autotune.device import Device
from autotune.dispatch.alternatives import alternatives_for
from autotune.dispatch.among import Among, admitted, named
from autotune.dispatch.answers import names_of, portfolio_of
from autotune.dispatch.drift import why_unfit
from autotune.dispatch.portfolio import Polls
from autotune.dispatch.provenance import Rung
from autotune.dispatch.table_reading import rows_of
from autotune.likeness import likeness
from autotune.registry import get_operation
from autotune.shape import Shape
from autotune.trial import Candidate

if TYPE_CHECKING:
    from autotune.table import Assignment, Served


class Prospect(NamedTuple):
    """The candidate served for a shape, its rung, and its expected regret by so many measurements."""

    candidate: Candidate
    rung: Rung
    expected_regret: float | None
    evidence: int


NO_REASON: Final = "no reason was looked for"


class Outlook:
    """Answers for shape after shape as ``pick_for_tuning`` does, in less than half of the time.

    Of the tables only what bears on a shape is looked at, rows of its family and recordings of its kind; votes of
    recordings are counted once for all shapes of one likeness. The reason of a default, which names what is nearest
    among all others, is left out.

    Args:
        among: the implementations that may be served.
        generation: of the tables that are read; ``autotune.dispatch.outlook_on`` knows it.
    """

    def __init__(self, operation: str, device: Device, among: Among, generation: int) -> None:
        self._operation, self._device, self._among = get_operation(operation), device, among
        self._generation = generation
        implementations = named(self._operation, among)
        self._rows: dict[tuple[object, ...], list[Served]] = defaultdict(list)
        for row in rows_of(operation, names_of(implementations), device.slug, generation):
            self._rows[row.trial.shape.family()].append(row)
        self._portfolio: dict[tuple[object, ...], list[Assignment]] = defaultdict(list)
        for implementation in implementations:
            for each in portfolio_of(implementation, device, generation):
                self._portfolio[each.likeness.kind].append(each)
        self._polls: Polls = {}

    def look(self, shape: Shape) -> Prospect:
        """Return what is served for a shape.

        Raises:
            InvalidShapeError: no admitted implementation supports it.
        """
        implementations = admitted(self._operation, shape, self._device, self._among)
        names = set(names_of(implementations))
        first, *_ = alternatives_for(
            shape,
            self._device,
            self._rows.get(shape.family(), ()),
            implementations,
            portfolio=[
                each
                for each in self._portfolio.get(likeness(shape, self._device).kind, ())
                if each.implementation in names
            ],
            why_unfit=lambda each: why_unfit(each, self._operation.name, self._generation),
            no_rows=NO_REASON,
            polls=self._polls,
        )
        why = first.provenance
        return Prospect(first.candidate, why.rung, why.expected_regret, why.evidence)
