"""What a machine without a GPU confirmed of a replayed winner, in words and as plain data."""

from typing import TYPE_CHECKING, Any

from autotune.device import Device
from autotune.operation import Operation
from autotune.trial import Outcome, Status

if TYPE_CHECKING:
    from autotune.search import Confirmation


def confirmation_lines(confirmation: "Confirmation | None", operation: Operation[Any], device: Device) -> list[str]:
    """How each finalist compiled, and what the interpreter found of the winner's numbers; or that neither was asked."""
    if confirmation is None:
        return [f"checked   nothing here: {why_uncompiled(operation)}; its numbers were checked where it was timed"]
    lines = [f"compiled  {outcome.config}: {compiled_text(outcome, device)}" for outcome in confirmation.compiled]
    verdict = confirmation.verdict
    text = f"numbers {verdict.status} in Triton's interpreter, {confirmation.dtype}, on reduced lengths"
    if verdict.status is Status.OK and verdict.error is not None and verdict.error_limit is not None:
        text += f" (largest error {verdict.error:.2g}, allowed {verdict.error_limit:.2g})"
    return [*lines, f"checked   {text}{f': {verdict.message}' if verdict.message else ''}"]


def why_uncompiled(operation: Operation[Any]) -> str:
    """Why nothing of an operation that does not compile ahead can be compiled for a device that is not here."""
    return f"{operation.library or 'its kernel'} compiles {operation.name} only on the device that runs it"


def compiled_text(outcome: Outcome, device: Device) -> str:
    """What the compiler for a device made of a config."""
    resources = outcome.resources
    if outcome.status is not Status.OK:
        return f"{outcome.status} for {device.arch}: {outcome.message}"
    return (
        f"ok for {device.arch} here: {resources.registers} registers, {resources.spill_bytes} bytes spilled, "
        f"{resources.shared_bytes} of {device.shared_memory_bytes} bytes of shared memory"
    )


def confirmation_data(confirmation: "Confirmation | None") -> dict[str, Any] | None:
    """A confirmation as plain data for ``--json``; None where nothing was to be, or could be, confirmed."""
    if confirmation is None:
        return None
    return {
        "holds": confirmation.holds,
        "compiled": [
            {"config": dict(o.config), "status": o.status, "message": o.message} for o in confirmation.compiled
        ],
        "interpreter_status": confirmation.verdict.status,
        "interpreter_dtype": confirmation.dtype,
    }
