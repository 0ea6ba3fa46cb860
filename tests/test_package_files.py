"""The files that a module imports of its own package are found, without importing any."""

from pathlib import Path

import pytest

from autotune.errors import UsageError
from autotune.package_files import package_files

FILES = {
    "mine/__init__.py": "raise RuntimeError('imported')\n",
    "mine/kernels/__init__.py": "",
    "mine/kernels/norm.py": "from ..rows import offset\nfrom . import masks\nimport torch, other\n",
    "mine/kernels/masks.py": "def f():\n    import mine.late.deep\n",
    "mine/rows.py": "import os\n",
    "mine/late/deep.py": "",
    "mine/unused.py": "",
    "alone.py": "import beside, mine.rows\n",  # a package beside is somebody else's
    "beside.py": "",
    "apart.py": "",
}


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_of_a_package_what_is_imported_at_any_depth(tmp_path: Path) -> None:
    expected = {"mine/kernels/norm.py", "mine/kernels/masks.py", "mine/rows.py", "mine/late/deep.py"}
    expected |= {"mine/__init__.py", "mine/kernels/__init__.py"}  # which run before
    assert {path.relative_to(tmp_path).as_posix() for path in package_files("mine.kernels.norm")} == expected


def test_of_a_lone_module_what_lies_beside_it(tmp_path: Path) -> None:
    assert package_files("alone") == (tmp_path / "alone.py", tmp_path / "beside.py")


@pytest.mark.parametrize("module", ["none_such", "mine.none", "sys"])
def test_what_is_in_no_file_is_refused(module: str) -> None:
    with pytest.raises(UsageError, match="is in no file"):
        package_files(module)
