"""Numbers of attention with operands: each way in which a mask lies in memory, beside every other feature.

Pairs of all features and parameters are of the contract suite.
"""

from pathlib import Path
from typing import Any, Final

import pytest

from tests.contract.compiling import compile_sample
from tests.contract.interpreting import interpret
from tests.kernels.flash_attention.masked import MASKS, call_failure, mask_failure

FEATURES: Final[dict[str, dict[str, Any]]] = {
    "plain": {"sinks": True},
    "causal": {"causal": True},
    "blind": {"causal": True, "lengths": (40, 19), "sinks": True},
    "window, softcap": {"causal": True, "window": 20, "softcap": 3.0, "sinks": True},
    "ends": {"causal": True, "ends": True},
    "ends, window": {"causal": True, "window": 20, "ends": True, "sinks": True},
    "ends, blind": {"causal": True, "ends": True, "lengths": (40, 19)},
    "two-sided": {"window": 30, "softcap": 3.0},
}
QUICK: Final = {("expanded", "plain"), ("cut", "window, softcap"), ("one for all", "blind"), ("none", "ends, window")}
CASES: Final = [
    pytest.param(
        *(mask, features),
        id=f"{mask}-{name}".replace(" ", "-"),
        marks=[] if (mask, name) in QUICK else [pytest.mark.slow],
    )
    for mask in MASKS
    for name, features in FEATURES.items()
]
IS_BOOLEAN: Final = ("one for all", "of a sequence", "of keys", "expanded")


@pytest.mark.parametrize("dtype", ["float16", pytest.param("float32", marks=[pytest.mark.slow])])
@pytest.mark.parametrize(("mask", "features"), CASES)
def test_interpreted_masks_of_every_layout_are_right(mask: str, features: dict[str, Any], dtype: str) -> None:
    for tiles in ("computed", "skipped") if mask in IS_BOOLEAN else ("computed",):
        assert interpret(mask_failure, mask, features, dtype, tiles, "cpu") is None, tiles


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(("mask", "features"), CASES)
def test_gpu_masks_of_every_layout_are_right(mask: str, features: dict[str, Any], dtype: str) -> None:
    for tiles in ("computed", "skipped") if mask in IS_BOOLEAN else ("computed",):
        assert mask_failure(mask, features, dtype, tiles, "cuda") is None, tiles


def test_an_interpreted_call_fills_the_buffer_that_it_is_given() -> None:
    assert interpret(call_failure, "cpu") is None


@pytest.mark.gpu
def test_a_gpu_call_fills_the_buffer_that_it_is_given() -> None:
    assert call_failure("cuda") is None


@pytest.mark.slow
def test_the_defaults_spill_nothing_on_hopper(tmp_path: Path) -> None:
    found = compile_sample("tests.kernels.flash_attention.masked_sample", "sm_90", tmp_path)
    assert {name: taken["spill_bytes"] for name, taken in found.items()} == dict.fromkeys(found, 0)
