"""Paged prefill compiles without a GPU, its default fits each architecture, and its code is what a Hopper GPU needs."""

from pathlib import Path

import pytest

from autotune.device import architecture
from autotune.trial import Status
from tests.contract.compiling import compile_sample
from tests.kernels.paged_prefill.compile_sample import DEPTHS, THOROUGH

LONG_BLOCKS = ("chunk", "mixed", "full", "few tiles")
WITHOUT_SPILLS = (
    *("narrow", "narrow window", "wide values", "256", "512", "float32"),
    *("e4m3", "e5m2", "int8", "int8 of 512"),
)


@pytest.mark.slow  # the contract compiles what is quick
@pytest.mark.parametrize("arch", ["sm_80", "sm_86", THOROUGH, "gfx942"])
def test_defaults_compile_and_fit(arch: str, tmp_path: Path) -> None:
    outcomes = compile_sample("tests.kernels.paged_prefill.compile_sample", arch, tmp_path)
    for name, outcome in outcomes.items():
        assert outcome["status"] == Status.OK, f"{name}: {outcome['message']}"
        assert outcome["resources"]["shared_bytes"] <= architecture(arch).shared_memory_bytes, name
        assert outcome["resources"]["registers"] is not None, name
    if arch != THOROUGH:
        return
    for name in WITHOUT_SPILLS:
        assert outcomes[f"default {name}"]["resources"]["spill_bytes"] == 0, name
    for name in (*WITHOUT_SPILLS, *LONG_BLOCKS):  # what long blocks spill is read again once a tile
        assert outcomes[f"default {name}"]["code"]["steady_spills"] == 0, name
        assert outcomes[f"default {name}"]["resources"]["spill_bytes"] <= 88, name
    for stages in DEPTHS:
        # Two loops, of keys and of values each as many buffers as stages; the pages of a tile are known before its own
        # iteration. wgmma reads them while the next ones arrive.
        code = {"buffers": [stages] * 4, "async_copies_of": [16], "has_wgmma": True, "has_mma": False}
        assert outcomes[f"chunk with {stages} stages"]["code"] == code | {"steady_spills": 0}
