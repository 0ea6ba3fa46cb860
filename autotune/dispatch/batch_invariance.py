"""Batch-invariant picks: one config for all batches and lengths of a problem.

With it the results of a sequence are the same to the bit whatever else is in the batch, which a config that follows the
batch cannot promise: other tiles, and other shares of the keys, add up in another order.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from autotune.dispatch.evidence import NOTHING_RECORDED
from autotune.dispatch.provenance import Alternative, Provenance
from autotune.errors import InvalidConfigError, UsageError
from autotune.operation import Operation
from autotune.registry import get_implementation, loadable_operations
from autotune.shape import Shape
from autotune.space import Config
from autotune.trial import Candidate

VARIABLE: Final = "AUTOTUNE_BATCH_INVARIANT"
SWITCH: Final = f"{VARIABLE}=1 or batch_invariant=True"


def in_usual_batch(operation: Operation[Any], shape: Shape) -> Shape:
    """Return the problem whose config serves all batches of a shape; UsageError for an operation without such picks."""
    if operation.usual_batch is None:
        allowed = ", ".join(each.name for each in loadable_operations() if each.usual_batch is not None)
        raise UsageError(f"batch_invariant=True is not allowed for {operation.name}; expected one of {allowed}")
    usual: Shape = operation.usual_batch(shape)
    return usual


def first_invariant(found: Sequence[Alternative], operation: str, usual: Shape) -> Alternative:
    """Return the first candidate that is batch-invariant; without one, the config that is and is like the first.

    Nothing gives way to it, and no expected regret is known of it: it is for other batches, too.

    Args:
        found: what would be served for the usual batch, the best first.

    Raises:
        UsageError: no implementation that may be served has such a config.
    """
    varies = f"with {found[0].candidate} results of a sequence depend on the batch"
    invariant = [(each, config) for each in found if (config := _invariant_config(each, operation, usual)) is not None]
    for each, config in invariant:
        if config == each.candidate.config:
            is_passed_over = each is not found[0] and each.provenance.rung == "default"
            return _as_for(usual, each.candidate, each.provenance, varies if is_passed_over else each.provenance.cause)
    if invariant:
        each, config = invariant[0]
        why = replace(found[-1].provenance, served="the batch-invariant config that is like it")
        return _as_for(usual, replace(each.candidate, config=config), why, varies)
    names = ", ".join(dict.fromkeys(each.candidate.implementation for each in found))
    raise UsageError(f"{SWITCH}: {operation} by {names} has no batch-invariant config for {usual}")


def _as_for(usual: Shape, candidate: Candidate, why: Provenance, cause: str) -> Alternative:
    cause = f"batch-invariant, as for {usual}: {cause}"
    return Alternative(candidate, replace(why, cause=cause, expectation=NOTHING_RECORDED))


def require_invariant(pinned: Alternative, operation: str, usual: Shape, origin: str) -> None:
    """Raise InvalidConfigError for a pin, of that origin, with which results of a sequence depend on the batch."""
    if _invariant_config(pinned, operation, usual) != pinned.candidate.config:
        raise InvalidConfigError(f"{origin}: {pinned.candidate} is not batch-invariant, as {SWITCH} asks")


def _invariant_config(alternative: Alternative, operation: str, usual: Shape) -> Config | None:
    """Return a candidate's own config, where it is batch-invariant, or one like it; None where there is none."""
    if alternative.provenance.baseline:
        return None
    implementation = get_implementation(operation, alternative.candidate.implementation)
    return implementation.batch_invariant(alternative.candidate.config, usual)
