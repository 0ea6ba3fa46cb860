"""Paged prefill compiles without a GPU, its default fits each architecture, and its code is what a Hopper GPU needs."""

from pathlib import Path

import pytest

from autotune.device import architecture
from autotune.trial import Status
from tests.contract.compiling import compile_sample
from tests.kernels.paged_prefill.compile_sample import DEPTHS, THOROUGH


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
    for name in (
        "default chunk",
        "default mixed",
        "default narrow",
        "default wide values",
        "default 256",
        "default 512",
        "default float32",
        "default full",
        "default e4m3",
        "default e5m2",
        "default int8",
        "default int8 of 512",
    ):
        assert outcomes[name]["resources"]["spill_bytes"] == 0, name
    for stages in DEPTHS:
        # Two loops, of keys and of values each as many buffers as stages; the pages of a tile are known before its own
        # iteration. wgmma reads them while the next ones arrive.
        code = {"buffers": [stages] * 4, "async_copies_of": [16], "has_wgmma": True, "has_mma": False}
        assert outcomes[f"chunk with {stages} stages"]["code"] == code
