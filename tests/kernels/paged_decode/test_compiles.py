"""Paged decode compiles without a GPU, its default fits each architecture, and its pipeline is as deep as asked for."""

from pathlib import Path

import pytest

from autotune.device import architecture
from autotune.trial import Status
from tests.contract.compiling import compile_sample
from tests.kernels.paged_decode.compile_sample import DEPTHS, ODD_ROWS, THOROUGH


@pytest.mark.slow  # the contract compiles what is quick
@pytest.mark.parametrize("arch", ["sm_80", "sm_86", THOROUGH, "gfx942"])
def test_defaults_and_both_schedules_compile(arch: str, tmp_path: Path) -> None:
    outcomes = compile_sample("tests.kernels.paged_decode.compile_sample", arch, tmp_path)
    for name, outcome in outcomes.items():
        assert outcome["status"] == Status.OK, f"{name}: {outcome['message']}"
        assert outcome["resources"]["shared_bytes"] <= architecture(arch).shared_memory_bytes, name
        assert outcome["resources"]["registers"] is not None, name
    deep = {name: outcome["buffers"] for name, outcome in outcomes.items() if name.endswith("stages")}
    # One buffer less than stages: the pages of a tile are known before its own iteration.
    assert deep == {name: [int(name.split()[2]) - 1] * 2 for name in deep}
    assert len(deep) == (len(DEPTHS) if arch == THOROUGH else 0)
    packed = [outcome["packed_additions"] for outcome in outcomes.values() if "packed_additions" in outcome]
    assert packed == [0] * (len(ODD_ROWS) if arch == THOROUGH else 0)  # see ``queries.locate_rows``
    words = [outcome["words"] for outcome in outcomes.values() if "words" in outcome]
    assert len(words) == (arch == THOROUGH)
    assert all(count % 2 == 0 and count > 0 for count in words)  # two make a register, see ``packing``
