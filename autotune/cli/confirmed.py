"""The checks of a replayed winner on a machine without a GPU, as text and as plain data."""

from typing import TYPE_CHECKING, Any

from autotune.console.winners import candidate_data, candidate_text
from autotune.device import Device
from autotune.implementation import Implementation
from autotune.trial import Outcome, Status

if TYPE_CHECKING:
    from autotune.search import Confirmation


def confirmation_lines(
    confirmation: "Confirmation | None",
    implementation: Implementation[Any],
    device: Device,
    *,
    of_several: bool = False,
) -> list[str]:
    """Return how each finalist compiled, and the verdict of the interpreter on the winner; or the reason of neither."""
    if confirmation is None:
        return [
            f"checked   nothing here: {why_uncompiled(implementation)}; its numbers were checked where it was timed"
        ]
    lines = [
        f"compiled  {candidate_text(outcome.candidate, of_several=of_several)}: {compiled_text(outcome, device)}"
        for outcome in confirmation.compiled
    ]
    return [*lines, f"checked   {confirmation.checked}"]


def why_uncompiled(implementation: Implementation[Any]) -> str:
    """Return the reason that nothing is compiled of an implementation that does not compile ahead."""
    library = implementation.library or "its kernel"
    return f"{library} compiles {implementation.title} only on the device that runs it"


def compiled_text(outcome: Outcome, device: Device) -> str:
    resources = outcome.resources
    if outcome.status is not Status.OK:
        return f"{outcome.status} for {device.arch}: {outcome.message}"
    return (
        f"ok for {device.arch} here: {resources.registers} registers, {resources.spill_bytes} bytes spilled, "
        f"{resources.shared_bytes} of {device.shared_memory_bytes} bytes of shared memory"
    )


def confirmation_data(confirmation: "Confirmation | None") -> dict[str, Any] | None:
    """Return a confirmation as plain data for ``--json``; ``holds`` is None where nothing was compiled or checked."""
    if confirmation is None:
        return None
    is_known = confirmation.compiled or confirmation.verdict
    return {
        "holds": confirmation.holds if is_known else None,
        "unchecked": confirmation.unchecked or None,
        "compiled": [
            {**candidate_data(each.candidate), "status": each.status, "message": each.message}
            for each in confirmation.compiled
        ],
        "interpreter_status": None if confirmation.verdict is None else confirmation.verdict.status,
        "interpreter_dtype": confirmation.dtype,
    }
