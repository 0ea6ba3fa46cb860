"""The tables' answers for a shape on a device, among the implementations that may be served."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from autotune.device import Device
from autotune.dispatch.alternatives import alternatives_for
from autotune.dispatch.among import Among, admitted, named
from autotune.dispatch.drift import fit_assignments, why_unfit
from autotune.dispatch.provenance import Alternative
from autotune.dispatch.served_baselines import why_unserved
from autotune.dispatch.table_reading import portfolios_of, rows_of
from autotune.errors import MissingDependencyError
from autotune.implementation import Implementation
from autotune.operation import Operation
from autotune.shape import Shape

if TYPE_CHECKING:
    from autotune.table import Assignment


def stored_alternatives(
    operation: Operation[Any],
    shape: Shape,
    device: Device,
    among: Among,
    generation: int,
    *,
    here: bool,
    no_rows: str = "",
    hint: str = "",
) -> list[Alternative]:
    """List the candidates that the tables have for a shape, best first; ``no_rows`` says why none is read."""
    implementations = admitted(operation, shape, device, among)
    rows = () if no_rows else rows_of(operation.name, names_of(named(operation, among)), device.slug, generation)
    return alternatives_for(
        shape,
        device,
        rows,
        implementations,
        portfolio=[]
        if no_rows
        else [row for each in implementations for row in portfolio_of(each, device, generation)],
        with_baselines=among == "fastest",
        why_unfit=lambda each: why_unfit(each, operation.name, generation),
        can_serve=lambda each: _can_serve(each, operation.name, shape, here=here),
        no_rows=no_rows,
        hint=hint,
    )


def portfolio_of(implementation: Implementation[Any], device: Device, generation: int) -> "list[Assignment]":
    """List the assignments of an implementation on a device's architecture, without those unfit for the Triton here."""
    rows = portfolios_of(implementation.operation, implementation.name, generation)
    return fit_assignments([row for row in rows if row.device.arch == device.arch], implementation, generation)


def _can_serve(alternative: Alternative, operation: str, shape: Shape, *, here: bool) -> bool:
    """Return False for a baseline that cannot be served: here, or, of a named device, where its library is."""
    name = alternative.provenance.baseline
    try:
        return not name or why_unserved(operation, shape, name, here=here) is None
    except MissingDependencyError:  # torch, which is not needed to ask about a named device
        return not here


def names_of(implementations: Iterable[Implementation[Any]]) -> tuple[str, ...]:
    return tuple(each.name for each in implementations)
