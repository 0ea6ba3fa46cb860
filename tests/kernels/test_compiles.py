"""Flash attention compiles for every architecture that it claims, without a GPU, and the default fits each."""

from pathlib import Path

import pytest

from autotune.device import architecture
from autotune.trial import Status
from tests.contract.compiling import compile_sample

ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_120", "gfx942", "gfx950")
# The contract compiles for the usual ones.


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_default_and_samples_compile(arch: str, tmp_path: Path) -> None:
    outcomes = compile_sample("tests.kernels.compile_sample", arch, tmp_path)
    refused = outcomes.pop("too large")
    assert refused["status"] == Status.OUT_OF_RESOURCES
    assert f"{arch} has {architecture(arch).shared_memory_bytes}" in refused["message"]
    defaults = [name for name in outcomes if name.startswith("default")]
    assert len(defaults) == 4
    assert len(outcomes) - len(defaults) == 2
    for name, outcome in outcomes.items():
        # What compiles but does not fit is the space's to propose and the compiler's to refuse; never the default.
        allowed = {Status.OK} if name in defaults else {Status.OK, Status.OUT_OF_RESOURCES}
        assert outcome["status"] in allowed, f"{name}: {outcome['message']}"
        assert outcome["resources"]["registers"] is not None, name
    assert all(
        outcomes[name]["resources"]["shared_bytes"] <= architecture(arch).shared_memory_bytes for name in defaults
    )
