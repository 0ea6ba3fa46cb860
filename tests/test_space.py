"""Configs are values, and a space enumerates exactly the valid ones, in an order that never changes."""

import itertools
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from autotune.device import NVIDIA_H200, Device
from autotune.errors import InvalidConfigError, UnknownNameError
from autotune.shape import AttentionShape
from autotune.space import Config, Parameter, Space

SHAPE = AttentionShape(batch=1, heads=1, seq_q=64, head_dim=64)
AMD = replace(NVIDIA_H200, name="AMD", arch="gfx942")


def reject(config: Config, shape: AttentionShape, device: Device) -> str | None:
    return f"tile={config['tile']} exceeds {shape.seq_q}" if config.integer("tile") > shape.seq_q else None


def default(shape: AttentionShape, device: Device) -> Config:
    return Config(tile=16, loads="pointer", kpack=1 if device.has("wave_hints") else None)


SPACE = Space(
    (
        Parameter("tile", (16, 64, 128)),
        Parameter("loads", ("pointer", "descriptor")),
        Parameter("kpack", (1, 2), needs="wave_hints"),
    ),
    reject,
    default,
)


def test_a_config_is_a_value() -> None:
    config = Config(tile=16, loads="pointer", kpack=None)
    assert config == Config({"tile": 16, "loads": "pointer", "kpack": None})
    assert config == {"loads": "pointer", "tile": 16, "kpack": None}
    assert hash(config) == hash(Config(loads="pointer", kpack=None, tile=16))
    assert config != Config(tile=16, loads="pointer")
    assert dict(config) == {"tile": 16, "loads": "pointer", "kpack": None}
    assert len({config, Config(config), Config(config, tile=32)}) == 2


def test_a_config_cannot_be_changed() -> None:
    config = Config(tile=16)
    with pytest.raises(TypeError):
        config["tile"] = 32  # type: ignore[index]
    values = {"tile": 16}
    copy = Config(values)
    values["tile"] = 32
    assert copy["tile"] == 16


def test_a_config_is_shown_without_what_does_not_apply() -> None:
    config = Config(tile=16, loads="pointer", kpack=None)
    assert str(config) == "tile=16 loads=pointer"
    assert repr(config) == "Config(tile=16, loads='pointer', kpack=None)"


def test_integers_only() -> None:
    assert Config(tile=16).integer("tile") == 16
    with pytest.raises(InvalidConfigError, match="loads='pointer' is not an integer"):
        Config(loads="pointer").integer("loads")


def test_a_parameter_needs_a_capability_that_exists() -> None:
    with pytest.raises(UnknownNameError, match=r"capability='hip' is unknown; allowed: async_copies, .*wgmma"):
        Parameter("kpack", (1, 2), needs="hip")


def test_parameters_that_a_device_lacks_are_none() -> None:
    tile, loads, kpack = SPACE.parameters
    assert (kpack.exists_on(NVIDIA_H200), kpack.exists_on(AMD), tile.exists_on(NVIDIA_H200)) == (False, True, True)
    assert kpack.choices(NVIDIA_H200) == (None,)
    assert kpack.choices(AMD) == (1, 2)
    assert tile.choices(NVIDIA_H200) == tile.choices(AMD) == (16, 64, 128)
    assert (tile.is_ordered, loads.is_ordered, kpack.is_ordered) == (True, False, True)


def test_size_and_configs() -> None:
    assert (SPACE.size(NVIDIA_H200), SPACE.size(AMD)) == (6, 12)
    expected = [
        Config(tile=tile, loads=loads, kpack=kpack)
        for tile, loads, kpack in itertools.product((16, 64), ("pointer", "descriptor"), (1, 2))
    ]
    assert list(SPACE.configs(SHAPE, AMD)) == expected
    assert [config["kpack"] for config in SPACE.configs(SHAPE, NVIDIA_H200)] == [None] * 4


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (Config(tile=16, loads="pointer", kpack=None), None),
        (Config(tile=128, loads="pointer", kpack=None), "tile=128 exceeds 64"),
        (Config(tile=32, loads="pointer", kpack=None), "tile=32 is not one of (16, 64, 128)"),
        (Config(tile=16, loads="pointer", kpack=1), "kpack=1 is not one of (None,)"),
        (Config(tile=16), "parameters are ['tile'], expected ['tile', 'loads', 'kpack']"),
        (Config(loads="pointer", tile=16, kpack=None), "parameters are ['loads', 'tile', 'kpack'], expected"),
    ],
    ids=str,
)
def test_why_invalid(config: Config, reason: str | None) -> None:
    found = SPACE.why_invalid(config, SHAPE, NVIDIA_H200)
    assert found is None if reason is None else (found or "").startswith(reason)


def test_order_is_that_of_the_enumeration() -> None:
    for device in (NVIDIA_H200, AMD):
        configs = list(SPACE.configs(SHAPE, device))
        backwards = configs[::-1]
        assert sorted(backwards, key=SPACE.order) == configs
        assert len({SPACE.order(config) for config in configs}) == len(configs)
    assert SPACE.order(Config(tile=64, loads="descriptor", kpack=None)) == (1, 1, -1)


def test_a_config_is_found_again_in_another_interpreter() -> None:
    """Hashes of strings differ from process to process, so a pickled config must not carry its own."""
    code = (
        "import pickle, sys; sys.stdout.buffer.write(pickle.dumps(__import__('autotune.space').space.Config(tile=16)))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    data = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env=environment).stdout
    assert pickle.loads(data) in {Config(tile=16)}


CONDITIONAL: Space[AttentionShape] = Space(
    (
        Parameter("schedule", ("split", "flat")),
        Parameter("splits", (1, 2), only=("schedule", "split")),
        Parameter("warps", (4, 8)),
    ),
    lambda config, shape, device: None,
    lambda shape, device: Config(schedule="flat", splits=None, warps=4),
)


def test_a_conditional_parameter_is_none_where_it_does_not_exist() -> None:
    configs = list(CONDITIONAL.configs(SHAPE, NVIDIA_H200))
    amounts = [(config["schedule"], config["splits"]) for config in configs]
    assert amounts == [("split", 1)] * 2 + [("split", 2)] * 2 + [("flat", None)] * 2
    assert CONDITIONAL.size(NVIDIA_H200) == len(configs) == len(set(configs))
    wrong = Config(schedule="flat", splits=2, warps=4)
    assert CONDITIONAL.why_invalid(wrong, SHAPE, NVIDIA_H200) == "splits=2 is not one of (None,)"
    assert CONDITIONAL.why_invalid(configs[-1], SHAPE, NVIDIA_H200) is None


LETTERS: Space[Any] = Space((*(Parameter(name, (0, 1, 2)) for name in "abcd"), Parameter("e", (0, 1), only=("b", 1))))


@pytest.mark.parametrize(
    "is_bad",
    [
        lambda config: config["a"] == 1,
        lambda config: config["d"] == 1 and config["b"] == 2,
        lambda config: config.integer("c") > 1 or config.get("e") == 1,
        lambda config: sum(value or 0 for value in config.values()) % 2 == 0,
        lambda config: {**config}["d"] == 2,
        lambda config: config in {Config(a=0, b=0, c=0, d=0, e=None), Config(a=2, b=1, c=0, d=1, e=1)},
        lambda config: config == Config(a=1, b=2, c=0, d=0, e=None) or "f" in config,
        lambda config: str(config).endswith("c=2 d=0") or repr(config).endswith("e=1)"),
        lambda config: Config(config, a=0) == Config(a=0, b=1, c=1, d=1, e=0),
        lambda config: len(config) == 5 and "a" in config,
    ],
)
def test_whatever_a_rule_reads_all_valid_configs_are_listed(is_bad: Callable[[Config], bool]) -> None:
    space = replace(LETTERS, reject=lambda config, shape, device: "bad" if is_bad(config) else None)
    expected = [config for config in space.combinations(NVIDIA_H200) if not is_bad(config)]
    assert list(space.configs(SHAPE, NVIDIA_H200)) == expected


def test_a_rule_is_asked_once_for_configs_that_are_alike_in_what_it_reads() -> None:
    asked = []

    def reject(config: Config, shape: AttentionShape, device: Device) -> str | None:
        asked.append(config["b"])
        return "odd" if config["b"] == 1 else None

    configs = list(replace(LETTERS, reject=reject).configs(SHAPE, NVIDIA_H200))
    assert len(configs) == 54
    assert asked.count(1) == 3  # once for each a
