"""The space of a decorated kernel: its list, whatever the product of its values would be."""

from typing import Any

import triton

from autotune.decorated.configs import make_configs, make_space
from autotune.device import NVIDIA_H200
from autotune.space import Config
from tests import sample

ORDER = ((8, 512), (4, 128), (4, 64), (2, 512))


def test_configs_come_in_the_order_of_the_list_and_each_is_asked_for_once() -> None:
    configs = make_configs([triton.Config({"BLOCK": block}, num_warps=warps) for warps, block in ORDER], None)
    asked: list[Config] = []

    def prune(shape: Any) -> tuple[Config, ...]:
        asked.append(shape)
        return tuple(config for config in configs.listed if config["BLOCK"] != 128)

    found = list(make_space(configs, prune).configs(sample.shape(), NVIDIA_H200))
    assert [(config["num_warps"], config["BLOCK"]) for config in found] == [(8, 512), (4, 64), (2, 512)]
    assert len(asked) == len(ORDER)


def test_a_short_list_of_many_parameters_takes_no_time() -> None:
    names = [f"P{number}" for number in range(20)]
    given = [triton.Config({name: (index + place) % 8 for place, name in enumerate(names)}) for index in range(8)]
    space = make_space(configs := make_configs(given, None), lambda shape: configs.listed)
    assert tuple(space.configs(sample.shape(), NVIDIA_H200)) == configs.listed  # of 8 ** 20 combinations
