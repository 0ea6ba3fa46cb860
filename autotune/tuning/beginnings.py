"""Candidates that are known before a search: those that are served, good for shapes like it, or written by hand."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    """The arguments of a search beside its space: what the tables serve, and the rest by implementation."""

    served: PriorPick | None
    defaults: Mapping[str, Config]
    neighbours: Mapping[str, Sequence[Config]]
    heuristics: Mapping[str, Sequence[Config]]


def find_beginnings(answer: Answer, device: Device, served: PriorPick | None, *, measures: bool) -> Beginnings:
    """Return what is known before a search; a replay that began with the shipped winner would show nothing."""
    chosen, shape = answer.implementations, answer.shape
    return Beginnings(
        served,
        {each.name: default_config(each, shape, device) for each in chosen if measures},
        {each.name: find_neighbours(each, shape, device, measures=measures) for each in chosen},
        find_heuristics(chosen, shape, device) if measures else {},
    )


def first_candidates(answer: Answer, device: Device, beginnings: Beginnings) -> Iterator[Candidate]:
    """Yield what a search on a GPU asks for first, valid and once, about in its order: implementations take turns."""
    served, shape = beginnings.served, answer.shape
    turns = []
    for each in answer.implementations:
        own = [served.candidate.config] if served and served.candidate.implementation == each.name else []
        listed = [*own, beginnings.defaults[each.name], *beginnings.neighbours[each.name]]
        listed += [each.space.default(shape, device), *beginnings.heuristics[each.name]]
        valid = [config for config in dict.fromkeys(listed) if each.space.why_invalid(config, shape, device) is None]
        turns.append([Candidate(each.name, config) for config in valid])
    return filter(None, chain.from_iterable(zip_longest(*turns)))


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
