"""The answers of tables alone, for a search to begin with: no switch counts, nothing is noted, and no seal holds."""

from typing import Any

from autotune.device import Device
from autotune.dispatch.among import Among
from autotune.dispatch.answers import portfolio_of, stored_alternatives
from autotune.dispatch.generation import current_generation
from autotune.dispatch.kernel import TunedKernel
from autotune.dispatch.nearest import nearest_configs
from autotune.dispatch.outlook import Outlook
from autotune.dispatch.portfolio import choose, choose_all
from autotune.dispatch.table_reading import rows_of
from autotune.implementation import Implementation
from autotune.registry import get_operation
from autotune.shape import Shape
from autotune.space import Config


def pick_for_tuning(shape: Shape, device: Device, operation: str, among: tuple[str, ...]) -> TunedKernel:
    """Return what tables alone would serve for a shape, for a search to begin with.

    Neither ``AUTOTUNE_CONFIG`` nor ``AUTOTUNE_DISABLE`` counts, nothing is noted, and the seal does not hold.
    """
    found = stored_alternatives(get_operation(operation), shape, device, among, current_generation(), here=True)
    return TunedKernel(operation, shape, found)


def outlook_on(operation: str, device: Device, among: Among = "ours") -> Outlook:
    """Return what answers as ``pick_for_tuning`` does for many shapes; it keeps the tables as they are now."""
    return Outlook(operation, device, among, current_generation())


def default_config(implementation: Implementation[Any], shape: Shape, device: Device) -> Config:
    """Return what tables alone serve for a shape that no row is for or near: the portfolio's choice, or the space's
    default. As with ``pick_for_tuning`` no switch counts."""
    choice = choose(portfolio_of(implementation, device, current_generation()), implementation, shape, device)
    return implementation.space.default(shape, device) if choice is None else choice.config


def portfolio_configs(implementation: Implementation[Any], shape: Shape, device: Device) -> list[Config]:
    """List the members of the portfolio that are for shapes like this one, the likeliest first: ``default_config`` is
    the first of them."""
    choices = choose_all(portfolio_of(implementation, device, current_generation()), implementation, shape, device)
    return [choice.config for choice in choices]


def neighbour_configs(
    implementation: Implementation[Any], shape: Shape, device: Device, *, count: int = 3, shipped: bool = True
) -> list[Config]:
    """List the configs of the nearest tuned shapes of a model of device, nearest first, for a search to begin with.

    ``shipped=False`` leaves out the rows that ship.
    """
    rows = rows_of(implementation.operation, (implementation.name,), device.slug, current_generation())
    return nearest_configs(rows, implementation, shape, device, of_model=True, shipped=shipped)[:count]


def other_kinds_configs(
    implementation: Implementation[Any], shape: Shape, device: Device, *, count: int = 3, shipped: bool = True
) -> list[Config]:
    """List the configs of the nearest tuned shapes of other models of device that are valid on this one, nearest first.

    For a search to begin with: nothing else serves them on this device. ``shipped`` as in ``neighbour_configs``.
    """
    rows = rows_of(implementation.operation, (implementation.name,), "", current_generation())
    found = nearest_configs(rows, implementation, shape, device, of_model=False, shipped=shipped)
    return [config for config in found if implementation.space.why_invalid(config, shape, device) is None][:count]
