"""Configs are read as they are typed, in words and as JSON; what is no config is refused by what is wrong with it."""

import doctest
import json
from dataclasses import replace

import pytest

from autotune.console import options
from autotune.console.options import parse_config
from autotune.device import NVIDIA_H200, Device
from autotune.errors import InvalidConfigError
from autotune.search_spaces.flash_attention.triton import IMPLEMENTATION
from tests import sample

TEXT = "BLOCK_Q=64 BLOCK_K=64 num_warps=4 num_stages=3 loads=pointer"


@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        "loads=pointer  num_stages=3, BLOCK_Q=64,BLOCK_K=64 num_warps=4 kpack=None",
        json.dumps({"num_warps": 4, "BLOCK_Q": 64, "BLOCK_K": 64, "num_stages": 3, "loads": "pointer", "kpack": None}),
    ],
)
def test_a_config_is_read_from_words_and_from_json(text: str) -> None:
    found = parse_config(text, IMPLEMENTATION.space, NVIDIA_H200)
    assert found == sample.config(BLOCK_Q=64, BLOCK_K=64, num_warps=4, num_stages=3, loads="pointer")
    assert list(found) == list(sample.FAST)


AMD = replace(NVIDIA_H200, name="AMD Instinct MI300X", arch="gfx942")


@pytest.mark.parametrize(
    ("text", "device", "words"),
    [
        ("", NVIDIA_H200, "has no BLOCK_Q; allowed: 16, 32, 64, 128, 256"),
        ("foo=64 bar=1", NVIDIA_H200, "has foo, bar, which is no parameter; expected BLOCK_Q, BLOCK_K, num_warps"),
        (TEXT, AMD, "has no waves_per_eu; allowed: 0, 2"),
        (f"{TEXT} BLOCK_Q=32", NVIDIA_H200, "names BLOCK_Q twice"),
        ("BLOCK_Q", NVIDIA_H200, "has 'BLOCK_Q'; expected NAME=VALUE"),
        ("=3", NVIDIA_H200, "has '=3'; expected NAME=VALUE"),
        ("{", NVIDIA_H200, "is no JSON object"),
        ('{"BLOCK_Q": 1.5}', NVIDIA_H200, "has BLOCK_Q=1.5; expected an integer, a string or null"),
        ('{"BLOCK_Q": true}', NVIDIA_H200, "has BLOCK_Q=True"),
    ],
)
def test_a_config_of_another_form_is_refused(text: str, device: Device, words: str) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        parse_config(text, IMPLEMENTATION.space, device)
    assert str(refused.value).startswith(f"config={text!r} ")
    assert words in str(refused.value)


def test_docstring_examples() -> None:
    names = {"space": IMPLEMENTATION.space, "NVIDIA_H200": NVIDIA_H200}
    assert doctest.testmod(options, extraglobs=names).failed == 0
