"""Configs as Optuna's parameters, and as numbers that a surrogate can compare."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import BaseTrial

from autotune.device import Device
from autotune.shape import Shape
from autotune.space import Config, Parameter, Space, Value


class PartialEncoding:
    """Configs as Optuna parameters: those that apply to a config and have a choice; the others are left out.

    Parameters with ordered values are integers, the index of the value: a sampler sees neighbours as neighbours.
    """

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self._parameters = tuple(parameters)
        self._free = {p.name: p for p in parameters if len(p.values) > 1}
        self.distributions: dict[str, BaseDistribution] = {
            name: IntDistribution(0, len(p.values) - 1) if p.is_ordered else CategoricalDistribution(p.values)
            for name, p in self._free.items()
        }

    def encode(self, config: Mapping[str, Value]) -> dict[str, Any]:
        return {
            name: parameter.values.index(value) if parameter.is_ordered else value
            for name, parameter in self._free.items()
            if (value := config[name]) is not None
        }

    def suggest(self, trial: BaseTrial) -> Config:
        chosen: dict[str, Value] = {}
        for parameter in self._parameters:
            choices = parameter.choices(None, chosen)
            chosen[parameter.name] = _suggest(trial, parameter) if len(choices) > 1 else choices[0]
        return Config(chosen)


class Encoding(PartialEncoding):
    """Configs of a space on a device, each with every parameter that has a choice there: samplers see one fixed space.

    A parameter that another's value leaves without a choice is recorded as its first value, and what is proposed for it
    is ignored.
    """

    def __init__(self, space: Space[Any], device: Device) -> None:
        super().__init__(parameters_on(space, device))

    def encode(self, config: Mapping[str, Value]) -> dict[str, Any]:
        absent = {name: p.values[0] for name, p in self._free.items() if p.only is not None and config[name] is None}
        return super().encode({**config, **absent})

    def suggest(self, trial: BaseTrial) -> Config:
        for parameter in self._free.values():
            _suggest(trial, parameter)
        return super().suggest(trial)

    def features(self, config: Config) -> list[float]:
        """Return the place of a config in the unit cube: ordered values by their index, others one axis a value."""
        found: list[float] = []
        for parameter in self._free.values():
            value = config[parameter.name]
            index = 0 if value is None else parameter.values.index(value)
            count = len(parameter.values)
            if parameter.is_ordered:
                found.append(index / (count - 1))
            else:
                found += [float(index == other) for other in range(1 if count == 2 else 0, count)]
        return found


def parameters_on(space: Space[Any], device: Device) -> list[Parameter]:
    """Return the parameters of a space, without values where a device does not have them."""
    return [each if each.exists_on(device) else replace(each, values=()) for each in space.parameters]


def feature_matrix(
    encoding: Encoding, space: Space[Any], shape: Shape, device: Device, configs: Sequence[Config]
) -> NDArray[np.float64]:
    """Return features of configs ``[configs, features]`` within [0, 1]: their parameters, and the space's hints."""
    rows = [[*encoding.features(config), *space.hints(config, shape, device)] for config in configs]
    matrix = np.array(rows, dtype=np.float64)
    low, high = matrix.min(axis=0), matrix.max(axis=0)
    scaled: NDArray[np.float64] = (matrix - low) / np.where(high > low, high - low, 1.0)
    return scaled


def _suggest(trial: BaseTrial, parameter: Parameter) -> Value:
    """Return what a sampler proposes; asked again of the same trial, the same."""
    if parameter.is_ordered:
        return parameter.values[trial.suggest_int(parameter.name, 0, len(parameter.values) - 1)]
    return parameter.values[parameter.values.index(trial.suggest_categorical(parameter.name, parameter.values))]
