"""The kernels of every implementation compile for Hopper with the newest Triton that the package allows, too."""

import os
import re
import tomllib
from pathlib import Path
from typing import Final

import pytest
import triton

from autotune.trial import Status, Trial
from benchmarks.merge import RESULTS
from benchmarks.toolchain_drift.book import Book, as_compilation, series_of, winners_of
from benchmarks.toolchain_drift.tritons import UnavailableError, compile_with, install
from tests.contract.compile_sample import compiled_for
from tests.contract.compiling import compile_sample
from tests.contract.suite import device_of
from tests.kernels.flash_attention.bytes_sample import check_sample

ROOT: Final = Path(__file__).resolve().parents[2]
ARCH: Final = "sm_90"
SAMPLED: Final = 2  # winners of each implementation, which takes half a minute on two cores


def allowed_range() -> str:
    """The versions of Triton that the package allows, as it declares them."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["gpu"]
    (found,) = [each.removeprefix("triton") for each in declared if each.startswith("triton")]
    return str(found)


@pytest.fixture(scope="module")
def newest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the newest allowed Triton; without an index the tests are skipped, but not in CI."""
    folder = tmp_path_factory.mktemp("triton")
    try:
        install(f"triton{allowed_range()}", folder)
    except UnavailableError as error:
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
        assert binary["steady_spills"] == 0, name  # outside, up to 112 bytes of a default, 160 of three consumers
        assert binary["overlapped"] >= 8 or binary["values"] == "early", f"{name}: {binary}"


def sampled_winners() -> list[Trial]:
    """A few of the shipped winners of each implementation, far apart, with configs of their own."""
    found: dict[tuple[str, str], dict[object, Trial]] = {}
    for trial in winners_of(None, None, RESULTS):
        found.setdefault((trial.operation, trial.implementation), {}).setdefault(trial.config, trial)
    return [own for each in found.values() for own in list(each.values())[:: max(1, len(each) // SAMPLED)][:SAMPLED]]


@pytest.mark.slow
def test_what_the_newest_refuses_or_spills_in_a_loop_is_recorded_and_so_not_served(newest: Path) -> None:
    winners, book = sampled_winners(), Book(RESULTS)
    assert len({trial.implementation for trial in winners}) > 1
    for version, trial, answer in compile_with(newest, winners):
        assert version != triton.__version__
        found, own = as_compilation(trial, version, answer), book.find(trial, series_of(trial.toolchain.triton))
        recorded = book.find(trial, series_of(version))
        assert found is not None, "memory ran out"
        assert own is not None, f"{trial}: run `python -m benchmarks.toolchain_drift`"
        assert bool(found.why_unfit(own)) == (recorded is not None and bool(recorded.why_unfit(own))), (
            f"triton {version} compiles {trial.candidate} for {trial.shape} to {found}; recorded is {recorded}; "
            f"run `python -m benchmarks.toolchain_drift --triton {series_of(version)}`"
        )


@pytest.mark.slow
def test_weights_of_e4m3_stay_in_their_registers_by_the_newest_too(newest: Path, tmp_path: Path) -> None:
    check_sample(
        compile_sample("tests.kernels.flash_attention.bytes_sample", ARCH, tmp_path, packages=newest), newest=True
    )
