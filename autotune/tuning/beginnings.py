"""Candidates that are known before a search: those that are served, good for shapes like it, or written by hand."""

from collections.abc import Iterable
from typing import Any

from autotune.device import Device
from autotune.dispatch import neighbour_configs, other_kinds_configs, pick_for_tuning, portfolio_configs
from autotune.implementation import Implementation
from autotune.shape import Shape
from autotune.space import Config
from autotune.trial import PriorPick
from autotune.tuning.workloads import Answer


def find_served(answer: Answer, device: Device) -> PriorPick:
    """Return what the tables serve for a shape today, of the implementations that are tuned."""
    among = tuple(each.name for each in answer.implementations)
    kernel = pick_for_tuning(answer.shape, device, answer.operation.name, among)
    why = kernel.provenance
    return PriorPick(kernel.candidate, why.rung, why.expected_regret, why.evidence)


def find_neighbours(
    implementation: Implementation[Any], shape: Shape, device: Device, *, measures: bool
) -> list[Config]:
    """Return configs that are good for shapes like this one, the likeliest first: the portfolio's, and winners'.

    Winners of other kinds of devices come last; but on a device that has no winner near, where they are all that was
    measured fully, they come first.
    """
    members = portfolio_configs(implementation, shape, device) if measures else []
    own = neighbour_configs(implementation, shape, device, shipped=measures)
    others = other_kinds_configs(implementation, shape, device, shipped=measures)
    return list(dict.fromkeys([*members, *own, *others] if own else [*others, *members]))


def find_heuristics(
    implementations: Iterable[Implementation[Any]], shape: Shape, device: Device
) -> dict[str, list[Config]]:
    """Return what people write by hand for a shape, by implementation, as far as it is valid here."""
    return {
        each.name: [
            config
            for config in each.space.heuristics(shape, device)
            if each.space.why_invalid(config, shape, device) is None
        ]
        for each in implementations
    }
