"""Winners of FlexAttention as what torch is passed: ``autotune export --format flex``."""

import json
from dataclasses import replace
from importlib import import_module
from typing import Any, get_type_hints

import pytest

from autotune.device import NVIDIA_H200
from autotune.errors import UsageError
from autotune.search_spaces.flash_attention.flex import IMPLEMENTATION
from autotune.shape import AttentionShape
from autotune.space import Config
from autotune.table import export
from autotune.trial import Toolchain, Trial
from tests.table import sample

SHAPE = AttentionShape(batch=16, heads=16, seq_q=1024, head_dim=128, causal=True)


def trial(**changes: Any) -> Trial:
    config = Config(
        BLOCK_M=64,
        BLOCK_N=128,
        num_warps=4,
        num_stages=2,
        PRESCALE_QK=1,
        BLOCKS_ARE_CONTIGUOUS=0,
        USE_TMA=1,
    )
    changes = {"toolchain": Toolchain("1", triton="3.6.0", torch="2.11.0+cu130"), **changes}
    found = sample.trial(config=config, implementation="flex")
    source = IMPLEMENTATION.source_hash
    return replace(found, operation="flash_attention", shape=SHAPE, source_hash=source, device=NVIDIA_H200, **changes)


def test_winners_are_listed_with_their_shape_and_what_to_pass() -> None:
    (winner,) = json.loads(export([trial(default_timing=sample.timing(125.0))], "flex"))
    assert winner == {
        "shape": SHAPE.as_dict(),
        "device": "NVIDIA H200",
        "power_cap_watts": 700,
        "torch": "2.11.0+cu130",
        "median_us": 100.0,
        "default_us": 125.0,
        "kernel_options": {
            "BLOCK_M": 64,
            "BLOCK_N": 128,
            "num_warps": 4,
            "num_stages": 2,
            "PRESCALE_QK": True,
            "BLOCKS_ARE_CONTIGUOUS": False,
            "USE_TMA": True,
        },
    }
    assert AttentionShape(**winner["shape"]) == SHAPE


def test_torch_knows_every_option() -> None:
    from torch.nn.attention.flex_attention import FlexKernelOptions

    (winner,) = json.loads(export([trial()], "flex"))
    assert winner["kernel_options"].keys() <= get_type_hints(FlexKernelOptions).keys()


def test_winners_of_flex_are_exported_as_any() -> None:
    (row,) = json.loads(export([trial()], "json"))["rows"]
    assert {name: row[name] for name in trial().config} == dict(trial().config)


def test_an_implementation_of_ones_own_says_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    own = replace(IMPLEMENTATION, export_options=lambda config: {"rows": config["BLOCK_M"]})
    monkeypatch.setattr(import_module("autotune.table.export"), "get_implementation", lambda *_: own)
    (winner,) = json.loads(export([trial()], "flex"))
    assert winner["kernel_options"] == {"rows": trial().config["BLOCK_M"]}


def test_other_implementations_have_no_such_options() -> None:
    with pytest.raises(UsageError, match="'flex' is for flash_attention/flex, whose kernel takes them; got"):
        export([sample.trial()], "flex")


def test_what_has_no_time_is_no_winner() -> None:
    untimed = trial(outcome=replace(trial().outcome, timing=None))
    with pytest.raises(UsageError, match="has no time"):
        export([untimed], "flex")
