"""The doctor finds what is wrong, names what mends it, and is never ill itself."""

import platform
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune import platforms, registry
from autotune.cli import health
from autotune.cli.health import Finding, examine
from autotune.device import NVIDIA_H200
from autotune.implementation import installed_version
from autotune.lab.machine import cuda_tools
from autotune.table import Store, write_shipped
from autotune.trial import Trial
from tests import flex_sample, sample
from tests.outside import row_scale


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with an H200 and everything in order, but no table; tests break one thing each."""
    sample.serve_from(monkeypatch, tmp_path / "home", tmp_path / "results")
    monkeypatch.setattr(platforms, "toolchain", lambda: sample.TOOLCHAIN)
    monkeypatch.setattr(platforms, "has_gpu", lambda: True)
    monkeypatch.setattr(platforms, "current_device", lambda index=None: NVIDIA_H200)
    monkeypatch.setattr(health, "_numpy_version", lambda: (2, 3))
    monkeypatch.setattr(health, "installed_version", lambda library: "1.32.0")
    monkeypatch.setattr(health, "why_no_import", lambda name: None)
    monkeypatch.setattr(cuda_tools, "why_no_sanitizer", lambda: None)
    return tmp_path


def finding(subject: str) -> Finding:
    (found,) = [found for found in examine() if found.subject == subject]
    return found


def ship(machine: Path, trial: Trial) -> None:
    write_shipped(Path("nvidia_h200/flash_attention/triton.parquet"), [trial], results=machine / "results")


def test_a_machine_in_order_needs_nothing(machine: Path) -> None:
    ship(machine, sample.trial())
    assert [found for found in examine() if not found.ok or found.fix] == []
    assert finding("gpu").text == "NVIDIA H200 (sm_90), 132 SMs, 143771 MiB, 700 W"
    assert finding("torch").text == "2.13.0, built for 13.0"
    assert finding("nvml").text == "driver 580.1"
    assert finding("cudnn").text == "Python frontend 1.32.0"
    assert finding("memory checker").text == "compute-sanitizer works: python -m benchmarks.memcheck"
    assert "flash_attention: 1 winner, 0 sweeps" in finding("shipped tables").text
    assert finding("toolchain").text == "measured on NVIDIA H200: triton 3.6.0, torch 2.13.0"


@pytest.mark.parametrize("name", ["torch", "triton"])
def test_a_compiler_that_does_not_import_is_not_well(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "why_no_import", {name: "OSError: libx.so"}.get)
    assert finding(name).text.endswith("cannot be imported: OSError: libx.so")
    assert finding("interpreter").text == f"needs {name}, which cannot be imported"
    assert not any(finding(subject).ok for subject in (name, "interpreter"))


def test_windows_is_told_of_wsl2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "sys", SimpleNamespace(platform="win32", version_info=(3, 12), executable="python.exe"))
    monkeypatch.setattr(platform, "system", lambda: "Windows")
    found = finding("system")
    assert not found.ok
    assert found.text.startswith("Windows")
    assert "use WSL2" in found.fix


@pytest.mark.parametrize(
    ("triton", "numpy", "ok"),
    [("3.6.0", (2, 4), False), ("3.6.0", (3, 0), False), ("3.6.0", (2, 3), True), ("3.7.0", (2, 4), True)],
)
def test_a_numpy_that_breaks_the_interpreter_is_found(
    monkeypatch: pytest.MonkeyPatch, triton: str, numpy: tuple[int, int], ok: bool
) -> None:
    monkeypatch.setattr(platforms, "toolchain", lambda: replace(sample.TOOLCHAIN, triton=triton))
    monkeypatch.setattr(health, "_numpy_version", lambda: numpy)
    found = finding("triton")
    assert (found.ok, found.fix) == (ok, "" if ok else "pip install 'numpy<2.4'")


def test_absent_libraries_come_with_the_command_that_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platforms, "toolchain", lambda: replace(sample.TOOLCHAIN, triton="", torch=""))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for subject in ("torch", "triton", "interpreter"):
        assert not finding(subject).ok
        assert finding(subject).fix == 'pip install ".[gpu]" in the clone'
    assert finding("nvml").fix == "pip install nvidia-ml-py"


def test_an_absent_baseline_comes_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "installed_version", lambda library: "")
    found = finding("cudnn")
    assert (found.ok, found.fix) == (False, 'pip install ".[cudnn]" in the clone')


def test_no_gpu_is_no_obstacle_to_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    sample.hide_gpu(monkeypatch)
    found = finding("gpu")
    assert (found.ok, found.text) == (False, "none visible")
    assert "none needed to replay sweeps" in found.fix


def test_a_folder_that_cannot_be_made_is_found(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine / "file").touch()
    monkeypatch.setenv("AUTOTUNE_HOME", str(machine / "file" / "home"))
    found = finding("folder")
    assert not found.ok
    assert "AUTOTUNE_HOME" in found.fix


@pytest.mark.parametrize(
    ("variable", "below"), [("TRITON_CACHE_DIR", ""), ("TRITON_HOME", ".triton/cache"), ("HOME", ".triton/cache")]
)
def test_a_cache_that_triton_cannot_write_is_found(
    machine: Path, monkeypatch: pytest.MonkeyPatch, variable: str, below: str
) -> None:
    (machine / "file").touch()
    for name in ("TRITON_CACHE_DIR", "TRITON_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(machine / "file"))
    found = finding("compile cache")
    assert not found.ok
    assert found.text.startswith(f"{machine / 'file' / below} is not writable: Not a directory")
    assert "TRITON_CACHE_DIR" in found.fix


def test_a_folder_of_shipped_tables_is_no_home(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ship(machine, sample.trial())
    monkeypatch.setenv("AUTOTUNE_HOME", str(machine / "results"))
    assert "named by their SHA-256" in finding("folder").text


def test_tables_are_counted(machine: Path) -> None:
    Store(machine / "home").append([sample.trial(), sample.trial(number=2)])
    assert "2 trials of flash_attention" in finding("your tables").text
    assert not finding("shipped tables").ok


def test_a_damaged_table_is_named(machine: Path) -> None:
    (part,) = Store(machine / "home").append([sample.trial()])
    part.write_bytes(b"junk")
    found = finding("your tables")
    assert not found.ok
    assert f"`mv {part.with_name(part.stem[:12])}*.parquet " in found.text
    assert "move the damaged file away" in found.fix
    ship(machine, sample.trial())
    table = machine / "results" / "nvidia_h200" / "flash_attention" / "triton.parquet"
    table.write_bytes(b"junk")
    assert str(table) in finding("shipped tables").text


def test_tables_of_another_toolchain_or_source_are_said(machine: Path) -> None:
    toolchain = replace(sample.TOOLCHAIN, triton="3.9.0")
    ship(machine, sample.trial(source_hash="ab" * 32, toolchain=toolchain))
    assert finding("toolchain").text.endswith("triton 3.9.0, torch 2.13.0; triton here is 3.6.0")
    found = finding("kernel source")
    assert (found.ok, found.fix) == (False, "autotune search")


def test_winners_of_ours_ask_for_the_version_of_no_library(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "installed_version", installed_version)
    ship(machine, sample.trial())
    assert finding("kernel source").text == "shipped winners were measured with this source"


def test_winners_of_a_library_are_of_the_version_that_measured_them(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship(machine, sample.trial())
    flex_sample.ship(machine / "results", flex_sample.winners())
    flex_sample.install(monkeypatch, "2.11.0+cpu")
    assert finding("kernel source").text == "shipped winners were measured with this source"
    flex_sample.install(monkeypatch, "2.13.0+cpu")
    found = finding("kernel source")
    assert (found.ok, found.fix) == (True, "")
    assert found.text.endswith("with this source; those of flash_attention/flex with another torch than here")
    with monkeypatch.context() as patched:
        patched.setattr(health, "installed_version", lambda library: "")
        assert finding("kernel source").text == "shipped winners were measured with this source"
    flex_sample.ship(machine / "results", [flex_sample.trial(flex_sample.SMALL, source_hash="ab" * 32)])
    found = finding("kernel source")
    assert (found.ok, found.text) == (False, "changed since the shipped winners of flash_attention/flex")


def fail(error: Exception) -> Callable[..., Any]:
    def call(*arguments: object, **named: object) -> Any:
        raise error

    return call


def test_a_sanitizer_that_does_not_work_is_told_and_nobody_asks_for_one_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cuda_tools, "why_no_sanitizer", lambda: "compute-sanitizer cannot watch a program here: no")
    found = finding("memory checker")
    assert (found.ok, found.text) == (False, "compute-sanitizer cannot watch a program here: no")
    sample.hide_gpu(monkeypatch)
    assert finding("memory checker").text == "compute-sanitizer needs an NVIDIA GPU"


@pytest.mark.parametrize("name", ["toolchain", "has_gpu", "current_device"])
@pytest.mark.parametrize("error", [RuntimeError("driver\nis gone"), ValueError(), OSError("libcuda.so.1")], ids=repr)
def test_the_doctor_survives_whatever_is_broken(monkeypatch: pytest.MonkeyPatch, name: str, error: Exception) -> None:
    healthy = len(examine())
    monkeypatch.setattr(platforms, name, fail(error))
    findings = examine()
    assert len(findings) == healthy
    broken = [found for found in findings if not found.ok and not found.subject.startswith("shipped")]
    assert broken
    assert {found.text for found in broken} == {" ".join(str(error).split()) or type(error).__name__}


def test_an_implementation_of_an_operation_that_is_misspelt_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_implementations", dict(registry._implementations))
    assert finding("registered").ok
    registry.register_implementation("flash_atention", "mine", "mine.space:IMPLEMENTATION")
    found = finding("registered")
    assert not found.ok
    assert "flash_atention/mine" in found.text
    assert "flash_attention" in found.fix


def test_what_cannot_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    row_scale.isolate(monkeypatch)
    registry.register("broken", "no_such_package.space:OPERATION")
    registry.register_implementation("flash_attention", "torn", "autotune.shape:NO_SUCH_NAME")
    found = finding("registered")
    assert not found.ok
    assert found.text.startswith("cannot be loaded, and left out: ")
    for reference in ("'no_such_package.space:OPERATION'", "'autotune.shape:NO_SUCH_NAME'"):
        assert f"reference={reference} cannot be loaded" in found.text
    assert found.fix == "repair or uninstall what registers them; everything else works without"


def test_the_source_of_ours_is_checked_with_no_stand_in_for_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "installed_version", installed_version)
    assert finding("kernel source").ok
