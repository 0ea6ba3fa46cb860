"""Where CUDA's tools are found, and what is said of a compute-sanitizer that does not work."""

import sys
from pathlib import Path

import pytest

from autotune.errors import MissingDependencyError
from autotune.lab.machine import cuda_tools
from autotune.lab.machine.cuda_tools import find_tool, why_no_sanitizer


@pytest.fixture(autouse=True)
def empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is installed but what a test puts there."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(cuda_tools, "PLACES", {name: (f"{tmp_path}/opt/*/{name}",) for name in cuda_tools.PLACES})


def put(path: Path, script: str = "") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("name", cuda_tools.PLACES)
def test_the_path_comes_first_and_then_the_newest_of_the_usual_places(name: str, tmp_path: Path) -> None:
    put(tmp_path / "opt" / "2024.1" / name)
    newest = put(tmp_path / "opt" / "2025.3.1" / name)
    assert find_tool(name) == newest
    on_path = put(tmp_path / name)
    assert find_tool(name) == on_path


@pytest.mark.parametrize("name", cuda_tools.PLACES)
def test_a_missing_tool_is_named_with_how_to_get_it(name: str) -> None:
    with pytest.raises(MissingDependencyError, match=f"package {cuda_tools.PACKAGES[name]}"):
        find_tool(name)


def test_a_sanitizer_that_counts_no_errors_works(tmp_path: Path) -> None:
    put(tmp_path / "compute-sanitizer", "echo '========= COMPUTE-SANITIZER'; echo '========= ERROR SUMMARY: 0 errors'")
    assert why_no_sanitizer() is None


def test_the_program_that_is_watched_imports_nothing_from_the_current_folder(tmp_path: Path) -> None:
    put(tmp_path / "compute-sanitizer", f"""printf '%s\\n' "$@" > {tmp_path}/called""")
    why_no_sanitizer()
    assert (tmp_path / "called").read_text().splitlines()[2:5] == [sys.executable, "-P", "-c"]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo '========= COMPUTE-SANITIZER'; echo '========= Error: Device not supported'; exit 1", "not supported"),
        ("echo '========= COMPUTE-SANITIZER'; exit 255", "it ended with 255"),
        ("echo '========= COMPUTE-SANITIZER'; echo '========= ERROR SUMMARY: 2 errors'", "2 errors"),
    ],
)
def test_one_that_does_not_says_why(script: str, reason: str, tmp_path: Path) -> None:
    put(tmp_path / "compute-sanitizer", script)
    found = why_no_sanitizer()
    assert found is not None
    assert reason in found


def test_one_that_is_missing_or_does_not_start_says_so(tmp_path: Path) -> None:
    assert "package cuda-sanitizer" in str(why_no_sanitizer())
    (tmp_path / "compute-sanitizer").write_text("no program")
    (tmp_path / "compute-sanitizer").chmod(0o755)
    assert "compute-sanitizer" in str(why_no_sanitizer())
