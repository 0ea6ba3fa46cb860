"""Twins: candidates of one problem that launch the same binary in the same way; one of them is measured for all."""

from dataclasses import replace
from typing import Final

from autotune.executor.worker_keeper import LOST
from autotune.space import Config
from autotune.trial import Candidate, Outcome, Status

# Parameters that reach a launch through the binary alone. Any other may change the grid or what the host does.
COMPILE_OPTIONS: Final = frozenset(
    ("num_warps", "num_stages", "num_ctas", "maxnreg", "waves_per_eu", "matrix_instr_nonkdim", "kpack")
)
# The worker was lost, or the machine's memory ran out: what one candidate met, its twin need not meet.
NOT_SHARED: Final = (*LOST, Status.OUT_OF_MEMORY)


class Twins:
    """Verdicts of one problem by what was launched: the binaries, and the parameters that are not in them."""

    def __init__(self) -> None:
        self._verdicts: dict[tuple[str, Candidate], Outcome] = {}

    def keep(self, outcome: Outcome) -> None:
        if outcome.resources.binary is not None and outcome.status not in NOT_SHARED:
            self._verdicts.setdefault(_launched(outcome), outcome)

    def find(self, compiled: Outcome) -> Outcome | None:
        """Return the verdict of a twin as that of a compiled candidate; one that is asked again is measured again."""
        twin = None if compiled.resources.binary is None else self._verdicts.get(_launched(compiled))
        if twin is None or twin.candidate == compiled.candidate:
            return None
        return replace(
            twin,
            candidate=compiled.candidate,
            message=": ".join(filter(None, (f"same binary as {twin.config}", twin.message))),
            resources=compiled.resources,
            compile_seconds=compiled.compile_seconds,
            judge_seconds=0.0,
        )


def _launched(outcome: Outcome) -> tuple[str, Candidate]:
    assert outcome.resources.binary is not None
    rest = {name: value for name, value in outcome.config.items() if name not in COMPILE_OPTIONS}
    return outcome.resources.binary, Candidate(outcome.implementation, Config(rest))
