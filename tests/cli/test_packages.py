"""A package that is absent or broken costs one line, which says what mends it; serving goes on with defaults."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

from autotune.cli.packages import REQUIRED
from tests.test_layout import ROOT

ABSENT: Final = "raise ModuleNotFoundError(\"No module named '{name}'\", name='{name}')"
BROKEN: Final = "raise RuntimeError('broken install of {name}')"
LOOK_UP: Final = """
import warnings
from autotune import AttentionShape, get_kernel
shape = AttentionShape(batch=16, heads=16, seq_q=1024, head_dim=128, causal=True)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    kernels = [get_kernel(shape, device="NVIDIA H200", on_miss=miss) for miss in ("default", "record")]
why = kernels[0].provenance
rungs = [kernel.provenance.rung for kernel in kernels]
print(*rungs, why.is_unrecorded, why, *(each.message for each in said), sep="|")
"""


def run(tmp_path: Path, name: str, text: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python with a module of that name before all others."""
    (tmp_path / f"{name}.py").write_text(text.format(name=name))
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "AUTOTUNE_HOME": str(tmp_path / "home")}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environment, cwd=tmp_path)


def test_what_is_required_is_what_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {text for text in project["dependencies"] if ";" not in text} == {*REQUIRED.values()}


@pytest.mark.parametrize(
    ("name", "text", "command", "said"),
    [
        ("click", ABSENT, "show", "click cannot be imported: it is not installed; `pip install 'click>=8.1'`"),
        (
            "pyarrow",
            BROKEN,
            "show",
            "pyarrow cannot be imported: RuntimeError: broken install of pyarrow; `pip install",
        ),
        pytest.param("rich", ABSENT, "lookup", "rich cannot be imported: it is", marks=pytest.mark.slow),
        pytest.param("numpy", ABSENT, "search", "numpy cannot be imported: it is", marks=pytest.mark.slow),
        pytest.param("optuna", BROKEN, "search", "optuna cannot be imported: Runtime", marks=pytest.mark.slow),
        pytest.param("threadpoolctl", BROKEN, "search", "threadpoolctl cannot be", marks=pytest.mark.slow),
    ],
)
def test_a_command_says_in_a_line_what_mends_it(tmp_path: Path, name: str, text: str, command: str, said: str) -> None:
    done = run(tmp_path, name, text, "-m", "autotune", command, *(["--budget", "1s"] if command == "search" else []))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"autotune: {said}")


def test_the_doctor_says_what_is_absent_without_it(tmp_path: Path) -> None:
    done = run(tmp_path, "click", ABSENT, "-m", "autotune", "doctor")
    assert done.returncode == 1
    assert done.stdout.split("\n")[0].split() == [
        *("--", "click", "cannot", "be", "imported:", "it", "is"),
        *("not", "installed"),
    ]
    assert "fix: pip install 'click>=8.1'" in done.stdout
    assert done.stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["torch", "triton"])
def test_the_doctor_does_not_call_a_broken_compiler_well(tmp_path: Path, name: str) -> None:
    done = run(tmp_path, name, BROKEN, "-m", "autotune", "doctor")
    assert f"cannot be imported: RuntimeError: broken install of {name}" in done.stdout
    assert f"--  interpreter     needs {name}, which cannot be imported" in done.stdout


@pytest.mark.parametrize("text", [ABSENT, pytest.param(BROKEN, marks=pytest.mark.slow)])
def test_the_default_is_served_without_pyarrow(tmp_path: Path, text: str) -> None:
    done = run(tmp_path, "pyarrow", text, "-c", LOOK_UP)
    first, second, is_unrecorded, why, *said = done.stdout.strip().split("|")
    assert (first, second) == ("default", "default"), done.stderr
    assert (is_unrecorded, why) == ("False", "no table can be read: the space's default")
    assert len(said) == 1
    assert "no table can be read, so defaults are served" in said[0]
    assert "pip install 'pyarrow>=17'" in said[0]
    assert not (tmp_path / "home").exists()


@pytest.mark.slow
def test_a_plug_in_that_ends_the_process_does_not_end_the_doctor(tmp_path: Path) -> None:
    (tmp_path / "ending.py").write_text("import sys\nsys.exit(0)\n")
    code = (
        "import sys, autotune; autotune.register_implementation('flash_attention', 'ending', 'ending:IMPLEMENTATION');"
        "sys.argv = ['autotune', 'doctor']; from autotune.cli import main; main()"
    )
    done = run(tmp_path, "unused", "", "-c", code)
    assert "ending:IMPLEMENTATION" in done.stdout + done.stderr
    assert "SystemExit" in done.stdout + done.stderr
