"""Configs as text: words, or a JSON object."""

import json
import re
from typing import Any

from autotune.device import Device
from autotune.errors import InvalidConfigError
from autotune.space import Config, Space, Value


def parse_config(text: str, space: Space[Any], device: Device) -> Config:
    """Parse a config from ``BLOCK_Q=128 num_warps=8`` or a JSON object, in the order of its space.

    Parameters that the device does not have may be left out. What the space does not know is kept.

    Example:
        >>> config = parse_config("BLOCK_Q=64 BLOCK_K=32 num_warps=4 num_stages=3 loads=pointer", space, NVIDIA_H200)
        >>> config["num_stages"], config["kpack"]
        (3, None)

    Raises:
        InvalidConfigError: the text has another form, or lacks a parameter.
    """
    given = _from_json(text) if text.lstrip().startswith("{") else _from_words(text)
    names = [parameter.name for parameter in space.parameters]
    unknown = ", ".join(name for name in given if name not in names)
    values: dict[str, Value] = {}
    for parameter in space.parameters:
        choices = parameter.choices(device, values)
        if parameter.name not in given and choices != (None,):
            if unknown:  # explains more than a missing parameter
                expected = ", ".join(names)
                raise InvalidConfigError(f"config={text!r} has {unknown}, which is no parameter; expected {expected}")
            allowed = ", ".join(map(str, choices))
            raise InvalidConfigError(f"config={text!r} has no {parameter.name}; allowed: {allowed}")
        values[parameter.name] = given.get(parameter.name)
    return Config({**values, **given})


def _from_words(text: str) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for word in text.replace(",", " ").split():
        name, sign, value = word.partition("=")
        if not (name and sign and value):
            raise InvalidConfigError(f"config={text!r} has {word!r}; expected NAME=VALUE ... or a JSON object")
        if name in values:
            raise InvalidConfigError(f"config={text!r} names {name} twice; expected each parameter once")
        values[name] = int(value) if re.fullmatch(r"-?\d{1,12}", value) else (None if value == "None" else value)
    return values


def _from_json(text: str) -> dict[str, Value]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidConfigError(f"config={text!r} is no JSON object: {error}") from None
    for name, value in found.items():
        if type(value) not in (int, str, type(None)):
            raise InvalidConfigError(f"config={text!r} has {name}={value!r}; expected an integer, a string or null")
    return dict(found)
