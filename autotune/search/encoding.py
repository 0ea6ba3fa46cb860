"""Configs as Optuna sees them, and as numbers that a surrogate can compare."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from autotune.device import Device
from autotune.shape import Shape
from autotune.space import Config, Parameter, Space


class Encoding:
    """Configs as Optuna parameters and back; parameters without a choice on the device are left out.

    Parameters with ordered values are integers, the index of the value: a sampler sees neighbours as neighbours.
    """

    def __init__(self, space: Space[Any], device: Device) -> None:
        self._parameters = space.parameters
        self._free = {p.name: p for p in space.parameters if len(p.choices(device)) > 1}
        self._fixed = {p.name: p.choices(device)[0] for p in space.parameters if p.name not in self._free}
        self.distributions: dict[str, BaseDistribution] = {
            name: _distribution(parameter) for name, parameter in self._free.items()
        }

    def encode(self, config: Config) -> dict[str, Any]:
        """The parameters of a config."""
        return {
            name: parameter.values.index(value) if parameter.is_ordered else value
            for name, parameter in self._free.items()
            if (value := config[name]) is not None
        }

    def decode(self, params: Mapping[str, Any]) -> Config:
        """The config of such parameters."""
        values = {
            name: parameter.values[params[name]] if parameter.is_ordered else params[name]
            for name, parameter in self._free.items()
        }
        return Config({p.name: values.get(p.name, self._fixed.get(p.name)) for p in self._parameters})

    def features(self, config: Config) -> list[float]:
        """Where a config lies in the unit cube: ordered values by their index, others one axis a value."""
        found: list[float] = []
        for name, parameter in self._free.items():
            index = parameter.values.index(config[name])
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


def _distribution(parameter: Parameter) -> BaseDistribution:
    if parameter.is_ordered:
        return IntDistribution(0, len(parameter.values) - 1)
    return CategoricalDistribution(parameter.values)
