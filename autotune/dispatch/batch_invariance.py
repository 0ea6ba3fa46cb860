"""Batch-invariant picks: one config for all batches and lengths of a problem.

With it the results of a sequence are the same to the bit whatever else is in the batch, which a config that follows the
batch cannot promise: other tiles, and other shares of the keys, add up in another order.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from autotune.dispatch.kernel import Alternative, Provenance
from autotune.errors import InvalidConfigError, UsageError
from autotune.operation import Operation
from autotune.registry import get_implementation, loadable_operations
from autotune.shape import Shape

VARIABLE: Final = "AUTOTUNE_BATCH_INVARIANT"


def read_batch_invariant(environment: Mapping[str, str]) -> bool:
    """Read the variable; UsageError for a value that is not allowed."""
    flag = environment.get(VARIABLE, "")
    if flag not in ("", "0", "1"):
        raise UsageError(f"{VARIABLE}={flag!r} is not allowed; expected 1, for one config for all batches, or 0")
    return flag == "1"


def usual_batch(operation: Operation[Any], shape: Shape) -> Shape:
    """Return the problem whose config serves all batches of a shape; UsageError for an operation without such picks."""
    if operation.usual_batch is None:
        allowed = ", ".join(each.name for each in loadable_operations() if each.usual_batch is not None)
        raise UsageError(f"batch_invariant=True is not allowed for {operation.name}; expected one of {allowed}")
    usual: Shape = operation.usual_batch(shape)
    return usual


def batch_invariant(found: Sequence[Alternative], operation: str, usual: Shape) -> Alternative:
    """Return the first candidate that is batch-invariant as the only one that may be served: none gives way to another.

    Args:
        found: what would be served for the usual batch, the best first.

    Raises:
        InvalidConfigError: a pinned config that is not batch-invariant.
        UsageError: no candidate is.
    """
    for each in found:
        if _is_invariant(operation, each):
            cause = f"batch-invariant, as for {usual}: {each.provenance.reason}"
            return Alternative(each.candidate, Provenance("pinned", cause))
    first, asked = found[0], f"{VARIABLE}=1 or batch_invariant=True"
    if first.provenance.rung == "pinned":
        raise InvalidConfigError(
            f"{first.candidate}, {first.provenance.reason}, is not batch-invariant, beside {asked}"
        )
    names = ", ".join(dict.fromkeys(each.candidate.implementation for each in found))
    raise UsageError(f"{asked}: no config of {operation} by {names} that is known for {usual} is batch-invariant")


def _is_invariant(operation: str, alternative: Alternative) -> bool:
    if alternative.provenance.baseline:
        return False
    implementation = get_implementation(operation, alternative.candidate.implementation)
    return implementation.is_batch_invariant(alternative.candidate.config)
