"""One pick: by the pin, the switches and the tables, for one shape on one device."""

import warnings
from dataclasses import replace
from typing import Any

from autotune.device import Device
from autotune.dispatch.among import Among
from autotune.dispatch.answers import stored_alternatives
from autotune.dispatch.batch_invariance import first_invariant, in_usual_batch, require_invariant
from autotune.dispatch.devices import stranger
from autotune.dispatch.events import Pick, note_pick
from autotune.dispatch.generation import current_generation, switches_of
from autotune.dispatch.kernel import TunedKernel
from autotune.dispatch.pins import DISABLE, Pin, Switches, pinned_implementation, serve_pin
from autotune.dispatch.places import did_you_mean, find_device
from autotune.dispatch.table_reading import can_read_tables
from autotune.operation import Operation
from autotune.shape import Shape


def make_pick(
    operation: Operation[Any],
    shape: Shape,
    place: int | str | Device,
    among: Among,
    pin: Pin | None,
    batch_invariant: bool | None,
) -> TunedKernel:
    """Pick by the tables and the switches, and note the pick."""
    generation = current_generation()
    switches = switches_of(generation)
    is_readable = switches.is_disabled or can_read_tables()
    known = find_device(place, operation, among, switches, generation)
    device = known or stranger(str(place))
    no_rows, hint = _why_no_rows(place, known, switches, generation)
    if not is_readable:
        no_rows = no_rows or "no table can be read"
    if batch_invariant is None:
        batch_invariant = switches.is_batch_invariant and operation.usual_batch is not None
    picked_for = in_usual_batch(operation, shape) if batch_invariant else shape
    pin = pin or switches.pin(operation.name, among)
    if pin is not None and batch_invariant:
        pin = replace(pin, origin=f"{pin.origin} for the usual batch of batch-invariant picks")
    pinned = None if pin is None else pinned_implementation(pin, operation.name, picked_for, device)
    if pinned is not None:
        among = (pinned.name,)
    is_named = isinstance(place, str)
    found = stored_alternatives(
        operation, picked_for, device, among, generation, here=not is_named, no_rows=no_rows, hint=hint
    )
    if known is None:
        warnings.warn(f"device={place!r}: {found[0].provenance.reason}", RuntimeWarning, stacklevel=5)
    has_row = batch_invariant and any(each.provenance.rung != "default" for each in found)
    if batch_invariant:
        found = [first_invariant(found, operation.name, picked_for)]
    if pin is not None and pinned is not None:
        found = [serve_pin(pin, pinned, picked_for, device, found[0])]
        if batch_invariant:
            require_invariant(found[0], operation.name, picked_for, pin.origin)
    kernel = TunedKernel(operation.name, shape, found, picked_for, has_row=has_row)
    is_miss = kernel.is_untuned and isinstance(place, int) and not switches.is_disabled
    _note(kernel, device, is_miss)
    return kernel


def _why_no_rows(
    place: int | str | Device, known: Device | None, switches: Switches, generation: int
) -> tuple[str, str]:
    """Return the reason why no table is asked, or else "", and a hint to a name that was perhaps meant."""
    reason = f"{DISABLE}=1 switches the tables off" if switches.is_disabled else ""
    if known is not None:
        return reason, ""
    reason = f"{reason}, and no list" if reason else "no table"
    reason += f" knows the device {place}, taken for an {stranger(str(place)).arch}"
    return reason, did_you_mean(str(place), switches, generation)


def _note(kernel: TunedKernel, device: Device, is_miss: bool) -> None:
    why = kernel.provenance
    pick = Pick(kernel.operation, kernel.picked_for, device, kernel.candidate, why.rung, is_miss)
    note_pick(pick, why.reason, why.expectation)
