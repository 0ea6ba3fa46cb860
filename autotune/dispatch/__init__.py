"""Dispatch: ``get_kernel(shape)`` reads the tables once and answers in microseconds."""

from autotune.dispatch.alternatives import alternatives_for
from autotune.dispatch.among import Among
from autotune.dispatch.devices import find_named
from autotune.dispatch.events import Stats, seal, stats, unseal
from autotune.dispatch.for_tuning import (
    default_config,
    neighbour_configs,
    other_kinds_configs,
    outlook_on,
    pick_for_tuning,
    portfolio_configs,
)
from autotune.dispatch.kernel import TunedKernel
from autotune.dispatch.ladder import MAX_DISTANCE
from autotune.dispatch.outlook import Outlook, Prospect
from autotune.dispatch.picks import CACHED_PICKS, get_kernel, pick_for_device, reload
from autotune.dispatch.places import device_by_name
from autotune.dispatch.portfolio import PortfolioChoice, choose
from autotune.dispatch.provenance import Provenance, Rung

__all__ = [
    "CACHED_PICKS",
    "MAX_DISTANCE",
    "Among",
    "Outlook",
    "PortfolioChoice",
    "Prospect",
    "Provenance",
    "Rung",
    "Stats",
    "TunedKernel",
    "alternatives_for",
    "choose",
    "default_config",
    "device_by_name",
    "find_named",
    "get_kernel",
    "neighbour_configs",
    "other_kinds_configs",
    "outlook_on",
    "pick_for_device",
    "pick_for_tuning",
    "portfolio_configs",
    "reload",
    "seal",
    "stats",
    "unseal",
]
