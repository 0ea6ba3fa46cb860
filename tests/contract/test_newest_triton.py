"""The kernels of every implementation compile for Hopper with the newest Triton that the package allows, too."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest
import triton

from autotune.trial import Status
from tests.contract.compile_sample import compiled_for
from tests.contract.compiling import compile_sample
from tests.contract.suite import device_of
from tests.kernels.flash_attention.bytes_sample import check_sample

ROOT: Final = Path(__file__).resolve().parents[2]
ARCH: Final = "sm_90"
INDEX_SECONDS: Final = 300.0


def allowed_range() -> str:
    """The versions of Triton that the package allows, as it declares them."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["gpu"]
    (found,) = [each.removeprefix("triton") for each in declared if each.startswith("triton")]
    return str(found)


@pytest.fixture(scope="module")
def newest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the newest allowed Triton; without an index the tests are skipped, but not in CI."""
    folder = tmp_path_factory.mktemp("triton")
    program = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-compile", "--target", str(folder)]
    try:
        subprocess.run(
            [*program, f"triton{allowed_range()}"], check=True, capture_output=True, text=True, timeout=INDEX_SECONDS
        )
    except (subprocess.SubprocessError, OSError) as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"the newest Triton cannot be fetched: {error}")
    return folder


@pytest.mark.slow
def test_defaults_and_samples_compile_without_a_spill_in_a_default(newest: Path, tmp_path: Path) -> None:
    (found,) = newest.glob("triton-*.dist-info")
    version = re.search(r"triton-([\d.]+)", found.name)
    assert version is not None
    assert version[1] != triton.__version__, "the newest is installed: nothing is learned"
    outcomes = compile_sample("tests.contract.compile_sample", ARCH, tmp_path, packages=newest)
    assert list(outcomes) == [each.title for each in compiled_for(device_of(ARCH))]
    for title, binaries in outcomes.items():
        for name, outcome in binaries.items():
            assert outcome["status"] in (Status.OK, Status.OUT_OF_RESOURCES), f"{title}, {name}: {outcome['message']}"
            if name.startswith("default"):
                assert outcome["status"] == Status.OK, (title, name)


@pytest.mark.slow
def test_products_and_exponentials_of_the_gluon_kernel_are_mixed_by_the_newest_too(
    newest: Path, tmp_path: Path
) -> None:
    found = compile_sample("tests.kernels.flash_attention.gluon_sample", ARCH, tmp_path, packages=newest)
    for name, binary in found.items():
        assert binary["shared"] <= device_of(ARCH).shared_memory_bytes, name
        assert binary["steady_spills"] == 0, name  # outside, up to 160 bytes are spilled
        assert binary["overlapped"] >= 8 or binary["values"] == "early", f"{name}: {binary}"


@pytest.mark.slow
def test_weights_of_e4m3_stay_in_their_registers_by_the_newest_too(newest: Path, tmp_path: Path) -> None:
    check_sample(
        compile_sample("tests.kernels.flash_attention.bytes_sample", ARCH, tmp_path, packages=newest), newest=True
    )
