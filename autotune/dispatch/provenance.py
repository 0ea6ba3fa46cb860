"""Candidates that may be served, and where each comes from."""

from dataclasses import dataclass
from typing import Literal

from autotune.dispatch.evidence import NOTHING_RECORDED, Expectation
from autotune.registry import get_implementation
from autotune.trial import Candidate, Trial

Rung = Literal["exact", "nearest", "same model", "default", "pinned"]
DefaultName = Literal["portfolio's default", "space's default"]


@dataclass(frozen=True, slots=True)
class Provenance:
    """The reason why a candidate is served: the rung of the ladder, the row it came from, and what differs from here.

    ``reason`` says it in a line: its ``cause``, what is ``served`` on the rung ``default``, and a ``hint`` to a name
    that was perhaps meant. ``row`` and ``distance`` are None on the rungs ``default`` and ``pinned``. ``origin`` says
    whose table has the row.
    ``distance`` is the shapes' (``Shape.distance``): 1 for a factor of two in one size, 0 for the very shape.
    ``baseline`` names the baseline that won the row's race and is served in place of its candidate
    (``among="fastest"``). ``default`` says whose choice is served on the rung ``default``: the portfolio's, or the
    space's, also where a portfolio keeps that. ``expected_regret`` is how much longer this is expected to take than
    the best, 0.02 for 2 %, by ``evidence``, a number of measurements: None and 0 where nothing recorded tells.
    ``notes`` are the accepted differences in source and toolchain between what was measured, a row or a portfolio, and
    this process. ``passed_over`` are the stored candidates that the Triton here is recorded to refuse, or to spill in a
    steady loop, unlike the one that timed them (``autotune.dispatch.drift``), and that are not served; each with the
    reason. ``declined`` are the calls so far that the next candidate was served instead, each with the reason.
    ``is_unrecorded`` is True where no row of what may be served is stored for the device, and no portfolio ships for
    its architecture.
    """

    rung: Rung
    cause: str
    row: Trial | None = None
    origin: Literal["user", "site", "package", "shipped", ""] = ""
    distance: float | None = None
    baseline: str = ""
    expectation: Expectation = NOTHING_RECORDED
    default: DefaultName | None = None
    served: str = ""
    hint: str = ""
    passed_over: tuple[str, ...] = ()
    declined: tuple[str, ...] = ()
    is_unrecorded: bool = False

    @property
    def reason(self) -> str:
        return f"{self.cause}: {self.served}{self.hint}" if self.served else f"{self.cause}{self.hint}"

    @property
    def expected_regret(self) -> float | None:
        return self.expectation.regret

    @property
    def evidence(self) -> int:
        return self.expectation.evidence

    @property
    def notes(self) -> tuple[str, ...]:
        return () if self.baseline else self.expectation.notes

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True, slots=True)
class Alternative:
    """A candidate that may be served, and why. Of a baseline the implementation is its name and the config is empty."""

    candidate: Candidate
    provenance: Provenance

    def is_deterministic(self, operation: str) -> bool:
        """Return if two runs give the same bits; a baseline is taken to."""
        if self.provenance.baseline:
            return True
        return get_implementation(operation, self.candidate.implementation).is_deterministic(self.candidate.config)
