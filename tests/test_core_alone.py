"""``autotune/`` without ``lab/`` and ``cli/`` passes its own tests."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
ABOVE: Final = ("autotune/lab", "autotune/cli", "tests/lab", "tests/cli", "tests/benchmarks", "benchmarks")
FAST: Final = (
    *("tests/test_exports.py", "tests/test_implementation.py", "tests/test_layout.py", "tests/test_registry.py"),
    *("tests/test_shape.py", "tests/test_space.py", "tests/console", "tests/dispatch", "tests/platforms"),
    *("tests/table/test_export.py", "tests/table/test_kernel_options.py", "tests/table/test_store.py"),
)


@pytest.mark.slow
def test_the_core_passes_its_tests_without_what_stands_on_it(tmp_path: Path) -> None:
    copy = tmp_path / "core"

    def left_out(folder: str, names: list[str]) -> set[str]:
        inside = {name: (Path(folder) / name).relative_to(ROOT).as_posix() for name in names}
        return {name for name in names if inside[name] in ABOVE or name.startswith(".") or name == "__pycache__"}

    shutil.copytree(ROOT, copy, symlinks=True, ignore=left_out)  # the links of autotune are relative
    for room in ("lab", "cli"):  # else an editable install of the whole tree would supply them
        (copy / "autotune" / f"{room}.py").write_text('raise ModuleNotFoundError(f"{__name__} is left out")\n')
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment["PYTHONPATH"] = str(copy)
    for arguments in (("--collect-only", "-m", "not gpu"), ("-m", "not gpu and not slow", *FAST)):
        command = [sys.executable, "-m", "pytest", "-q", *arguments]
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-4000:]
