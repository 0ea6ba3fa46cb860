"""Every implementation compiles for every kind of architecture without a GPU: its defaults fit, and samples compile."""

from pathlib import Path

import pytest

from autotune.device import architecture
from autotune.trial import Status
from tests.contract.compile_sample import compiled_for
from tests.contract.compiling import compile_sample
from tests.contract.suite import device_of


@pytest.mark.parametrize("arch", ["sm_90", "gfx942", "sm_80"])
@pytest.mark.slow
def test_defaults_fit_and_samples_compile(arch: str, tmp_path: Path) -> None:
    found = compile_sample("tests.contract.compile_sample", arch, tmp_path)
    assert list(found) == [each.title for each in compiled_for(device_of(arch))]
    for title, outcomes in found.items():
        assert any(name.startswith("default") for name in outcomes), title
        for name, outcome in outcomes.items():
            # What compiles but does not fit is the space's to propose and the compiler's to refuse; never the default.
            allowed = {Status.OK} if name.startswith("default") else {Status.OK, Status.OUT_OF_RESOURCES}
            assert outcome["status"] in allowed, f"{title}, {name}: {outcome['message']}"
            resources = outcome["resources"]
            assert resources["registers"] is not None, (title, name)
            assert resources["spill_bytes"] is not None, (title, name)
            if outcome["status"] == Status.OK:
                assert resources["shared_bytes"] <= architecture(arch).shared_memory_bytes, (title, name)
