"""Decode over latents compiles without a GPU: defaults fit and hardly spill, and tiles of keys are kept once."""

from pathlib import Path

import pytest

from autotune.device import architecture
from autotune.trial import Status
from tests.contract.compiling import compile_sample
from tests.kernels.paged_decode.latent_sample import FEW, SAMPLES, SHAPES, THOROUGH

# Bytes: of a default; of one with every feature at once, which no model has; and of the worst config of the space.
SPILLED, SPILLED_BY_ALL, MOST_SPILLED = 16, 128, 700


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_86", THOROUGH, "sm_100", "gfx942"])
def test_defaults_fit_and_samples_hardly_spill(arch: str, tmp_path: Path) -> None:
    outcomes = compile_sample("tests.kernels.paged_decode.latent_sample", arch, tmp_path)
    assert len(outcomes) == (len(SHAPES) + SAMPLES if arch == THOROUGH else len(FEW))
    for name, outcome in outcomes.items():
        assert outcome["status"] == Status.OK, f"{name}: {outcome['message']}"
        assert outcome["resources"]["shared_bytes"] <= architecture(arch).shared_memory_bytes, name
        if arch == THOROUGH:
            few = SPILLED_BY_ALL if name.endswith("all features") else SPILLED
            assert outcome["resources"]["spill_bytes"] <= (MOST_SPILLED if name.startswith("sample") else few), name
            assert len(outcome.get("tiles", [1])) == 1, f"{name}: {outcome['tiles']} tiles of keys in each buffer"
