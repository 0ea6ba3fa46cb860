"""Candidates that are known before a search: those that are served, good for shapes like it, or written by hand."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

from autotune.device import Device
from autotune.dispatch import default_config, neighbour_configs, other_kinds_configs, pick_for_tuning, portfolio_configs
from autotune.implementation import Implementation
from autotune.shape import Shape
from autotune.space import Config
from autotune.trial import Candidate, PriorPick
from autotune.tuning.workloads import Answer


@dataclass(frozen=True, slots=True)
class Beginnings:
    """Configs that a search begins with, by implementation: the defaults that are served, and the rest by origin."""

    defaults: dict[str, Config]
    neighbours: dict[str, list[Config]]
    heuristics: dict[str, list[Config]]


def find_beginnings(answer: Answer, device: Device, *, measures: bool) -> Beginnings:
    """Find the configs that the search of an answer begins with; a replay has neighbours alone.

    One that began with the shipped winner, which is of the very sweep that it replays, would show nothing.
    """
    shape, chosen = answer.shape, answer.implementations
    return Beginnings(
        defaults={each.name: default_config(each, shape, device) for each in chosen if measures},
        neighbours={each.name: find_neighbours(each, shape, device, measures=measures) for each in chosen},
        heuristics=find_heuristics(chosen, shape, device) if measures else {},
    )


def first_candidates(answer: Answer, device: Device, served: PriorPick | None) -> list[Candidate]:
    """Return the valid candidates that a search on a GPU begins with, as far as they are known before it.

    Its implementations take turns, as its studies do.
    """
    found, shape = find_beginnings(answer, device, measures=True), answer.shape
    turns = [
        [
            Candidate(each.name, config)
            for config in (
                found.defaults[each.name],
                *found.neighbours[each.name],
                each.space.default(shape, device),
                *found.heuristics[each.name],
            )
            if each.space.why_invalid(config, shape, device) is None
        ]
        for each in answer.implementations
    ]
    in_turn = chain.from_iterable(zip_longest(*turns))
    return list(dict.fromkeys(filter(None, (served and served.candidate, *in_turn))))


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
