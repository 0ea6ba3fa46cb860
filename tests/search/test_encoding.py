"""Configs survive the way into Optuna's parameters and back, in both forms, on every device."""

import optuna
import pytest

from autotune.device import NVIDIA_H200, Device
from autotune.search.encoding import Encoding, PartialEncoding
from autotune.shape import AttentionShape
from autotune.space import Config, Parameter, Space, combinations

MI300X = Device(name="AMD Instinct MI300X", arch="gfx942", sm_count=304, memory_mib=196592)
PARAMETERS = (
    Parameter("schedule", ("split", "flat")),
    Parameter("splits", (1, 2, 4), only=("schedule", "split")),
    Parameter("warps", (4, 8)),
    Parameter("stages", (2,)),
)
SPACE: Space[AttentionShape] = Space(
    (*PARAMETERS, Parameter("kpack", (1, 2), needs="wave_hints")),
    lambda config, shape, device: None,
    lambda shape, device: Config(schedule="flat", splits=None, warps=4, stages=2, kpack=None),
)
FLAT = Config(schedule="flat", splits=None, warps=8, stages=2)


@pytest.mark.parametrize("device", [NVIDIA_H200, MI300X], ids=lambda device: device.arch)
def test_every_config_of_a_space_is_suggested_as_it_was_encoded(device: Device) -> None:
    encoding, configs = Encoding(SPACE, device), list(SPACE.combinations(device))
    assert len(configs) == (3 + 1) * 2 * (2 if device is MI300X else 1)
    assert [encoding.suggest(optuna.trial.FixedTrial(encoding.encode(config))) for config in configs] == configs
    free = {"schedule", "splits", "warps"} | ({"kpack"} if device is MI300X else set())
    assert (
        {frozenset(encoding.encode(config)) for config in configs}
        == {frozenset(free)}
        == {frozenset(encoding.distributions)}
    )


def test_every_point_is_suggested_as_it_was_encoded_with_what_applies_alone() -> None:
    encoding, points = PartialEncoding(PARAMETERS), list(combinations(PARAMETERS))
    assert [encoding.suggest(optuna.trial.FixedTrial(encoding.encode(point))) for point in points] == points
    for point in points:
        names = {"schedule", "warps"} | ({"splits"} if point["schedule"] == "split" else set())
        assert set(encoding.encode(point)) == names


def test_ordered_values_are_their_index() -> None:
    config = Config(schedule="split", splits=4, warps=8, stages=2, kpack=None)
    assert Encoding(SPACE, NVIDIA_H200).encode(config) == {"schedule": "split", "splits": 2, "warps": 1}
    assert PartialEncoding(PARAMETERS).encode(FLAT) == {"schedule": "flat", "warps": 1}


def test_what_is_suggested_where_nothing_applies_is_ignored() -> None:
    asked = optuna.trial.FixedTrial({"schedule": "flat", "splits": 2, "warps": 1})
    assert Encoding(SPACE, NVIDIA_H200).suggest(asked) == Config({**FLAT, "kpack": None})
    assert set(asked.params) == {"schedule", "splits", "warps"}  # a sampler is asked for all, whatever applies
    asked = optuna.trial.FixedTrial({"schedule": "flat", "splits": 2, "warps": 1})
    assert PartialEncoding(PARAMETERS).suggest(asked) == FLAT
    assert set(asked.params) == {"schedule", "warps"}
