"""Configs as Optuna sees them, and as numbers that a surrogate can compare."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from autotune.device import Device
from autotune.shape import Shape
from autotune.space import Config, Parameter, Space, Value


class Encoding:
    """Configs as Optuna parameters and back; parameters without a choice on the device are left out.

    Parameters with ordered values are integers, the index of the value: a sampler sees neighbours as neighbours. One
    that another's value leaves without a choice is told as its first value, and what is proposed for it is ignored.
    """

    def __init__(self, space: Space[Any], device: Device) -> None:
        self._parameters = space.parameters
        self._device = device
        self._free = {p.name: p for p in space.parameters if len(p.choices(device)) > 1}
        self.distributions: dict[str, BaseDistribution] = {
            name: _distribution(parameter) for name, parameter in self._free.items()
        }

    def encode(self, config: Config) -> dict[str, Any]:
        """The parameters of a config."""
        return {
            name: index if parameter.is_ordered else parameter.values[index]
            for name, parameter in self._free.items()
            if (index := _index(parameter, config)) is not None
        }

    def decode(self, params: Mapping[str, Any]) -> Config:
        """The config of such parameters."""
        chosen: dict[str, Value] = {}
        for parameter in self._parameters:
            choices = parameter.choices(self._device, chosen)
            value = params.get(parameter.name) if len(choices) > 1 else choices[0]
            is_index = len(choices) > 1 and parameter.is_ordered
            chosen[parameter.name] = parameter.values[value] if is_index else value  # type: ignore[index]
        return Config(chosen)

    def features(self, config: Config) -> list[float]:
        """Where a config lies in the unit cube: ordered values by their index, others one axis a value."""
        found: list[float] = []
        for parameter in self._free.values():
            index = _index(parameter, config) or 0
            if parameter.is_ordered:
                found.append(index / (len(parameter.values) - 1))
            else:
                found += [
                    float(index == other)
                    for other in range(1 if len(parameter.values) == 2 else 0, len(parameter.values))
                ]
        return found


def feature_matrix(
    encoding: Encoding, space: Space[Any], shape: Shape, device: Device, configs: Sequence[Config]
) -> NDArray[np.float64]:
    """Features of configs ``[configs, features]`` within [0, 1]: their parameters, and what the space hints at."""
    rows = [[*encoding.features(config), *space.hints(config, shape, device)] for config in configs]
    matrix = np.array(rows, dtype=np.float64)
    low, high = matrix.min(axis=0), matrix.max(axis=0)
    scaled: NDArray[np.float64] = (matrix - low) / np.where(high > low, high - low, 1.0)
    return scaled


def _index(parameter: Parameter, config: Config) -> int | None:
    """The place of a config's value in its parameter; 0 where another parameter leaves it none, None if unknown."""
    value = config[parameter.name]
    if value is None:
        return None if parameter.only is None else 0
    return parameter.values.index(value)


def _distribution(parameter: Parameter) -> BaseDistribution:
    if parameter.is_ordered:
        return IntDistribution(0, len(parameter.values) - 1)
    return CategoricalDistribution(parameter.values)
