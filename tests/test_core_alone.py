"""``autotune/`` without ``lab/`` and ``cli/`` passes its own tests."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
ABOVE: Final = (
    *("autotune/lab", "autotune/cli", "tests/lab", "tests/cli", "tests/benchmarks", "benchmarks", "tests/docs"),
    *("tests/decorated/by_block.py", "tests/decorated/test_search.py"),  # on the GPU of the benchmarks' tests
    "tests/decorated/test_commands.py",
)
FAST: Final = (
    *("tests/test_exports.py", "tests/test_implementation.py", "tests/test_layout.py", "tests/test_registry.py"),
    *("tests/test_shape.py", "tests/test_space.py", "tests/console", "tests/dispatch", "tests/platforms"),
    *("tests/table/test_export.py", "tests/table/test_flex_options.py", "tests/table/test_store.py"),
)


def is_above(path: str) -> bool:
    return any(path == each or path.startswith(f"{each}/") for each in ABOVE)


def imported_by(path: Path) -> set[str]:
    """Return the modules that a module of tests imports, each as a path from the root without its suffix."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.replace(".", "/") for name in found}


def test_no_test_of_the_core_imports_what_stands_on_it() -> None:
    paths = [path for path in sorted((ROOT / "tests").rglob("*.py")) if not is_above(path.relative_to(ROOT).as_posix())]
    assert len(paths) > 100
    wrong = {path.name: found for path in paths if (found := sorted(filter(is_above, imported_by(path))))}
    assert not wrong


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
