"""The wheel holds real files and works without the checkout, and Hugging Face's ``kernels`` stays theirs beside it."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
LINKED: Final = ("kernels", "search_spaces", "results")  # installed inside autotune
THEIRS: Final = "import kernels; kernels.get_kernel; print(kernels.__file__)"

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """The output of a command that must succeed; the checkout is on no path of it unless ``cwd`` puts it there."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "AUTOTUNE"))}
    result = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=inherited | environment, capture_output=True, text=True
    )
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    return result.stdout


class Environment:
    """A fresh virtual environment that borrows the libraries of the running one, but not its own packages."""

    def __init__(self, folder: Path) -> None:
        run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=ROOT)
        self.python = folder / "bin" / "python"
        self.site = Path(self.script("import site; print(site.getsitepackages()[0])", folder).strip())
        borrowed = [path for path in sys.path if Path(path).name in {"site-packages", "dist-packages"}]
        # Directories named in a .pth file are searched last, and their own .pth files, such as that of the editable
        # install of the checkout, are not read.
        (self.site / "borrowed.pth").write_text("\n".join(borrowed) + "\n")

    def pip(self, *arguments: str | Path) -> str:
        command = (sys.executable, "-m", "pip", "--python", self.python, "--disable-pip-version-check", *arguments)
        return run(*command, cwd=self.site)

    def script(self, code: str, cwd: Path, **environment: str) -> str:
        return run(self.python, "-c", code, cwd=cwd, **environment)


def sources(folder: str) -> set[str]:
    """The files that the wheel must hold of a linked folder, by name inside the wheel."""
    patterns = ["*.parquet", "SHA256SUMS"] if folder == "results" else ["*.py", "*.npz"]
    return {
        f"autotune/{path.relative_to(ROOT).as_posix()}"
        for pattern in patterns
        for path in (ROOT / folder).rglob(pattern)
    }


def importable(folder: Path) -> list[str]:
    """The modules and regular packages directly in a folder."""
    packages = [path.parent.name for path in folder.glob("*/__init__.py")]
    return sorted([*packages, *(path.stem for path in folder.glob("*.py") if path.stem != "__init__")])


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of the tree, so that no build leaves files in the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "copy"
    left_out = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, copy, symlinks=True, ignore=left_out)
    command = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, copy)
    run(*command, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    environment = Environment(tmp_path_factory.mktemp("installed") / "venv")
    # The borrowed folders may hold the editable install of the same version: pip must not take it for this one.
    environment.pip("install", "--no-deps", "--no-index", "--ignore-installed", wheel)
    return environment


def test_wheel_holds_the_linked_folders_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        assert all(info.external_attr >> 28 != 0o12 for info in archive.infolist()), "the wheel holds a link"
    packaged = {name for name in names if ".dist-info/" not in name}
    for folder in LINKED:
        assert {name for name in packaged if name.startswith(f"autotune/{folder}/")} == sources(folder)
    assert {name.partition("/")[0] for name in packaged} == {"autotune"}
    hub = "autotune/integrations/hub/kernel"
    assert {"autotune/py.typed", f"{hub}/__init__.py", f"{hub}/metadata.json"} <= packaged
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_installed_modules_are_real_files(installed: Environment, tmp_path: Path) -> None:
    package = installed.site / "autotune"
    assert [path for path in [package, *package.rglob("*")] if path.is_symlink()] == []
    names = ["autotune", *(f"autotune.{folder}.{stem}" for folder in LINKED for stem in importable(ROOT / folder))]
    code = f"from importlib import import_module as load; [print(load(name).__file__) for name in {names}]"
    for name, file in zip(names, installed.script(code, tmp_path).split(), strict=True):
        assert Path(file).with_suffix("").as_posix().removesuffix("/__init__").endswith(name.replace(".", "/"))
        assert Path(file).is_relative_to(package)


TYPED: Final = """
import autotune
from autotune.shape import AttentionShape

kernel: int = autotune.get_kernel(AttentionShape(batch=1, heads=1, seq_q=1, head_dim=64))
"""


def types_of(python: Path, folder: Path) -> str:
    """The output of mypy, run elsewhere than in the checkout, on a program whose one mistake only types show."""
    (folder / "typed.py").write_text(TYPED)
    mypy = (sys.executable, "-m", "mypy", "--python-executable", python, "--strict", "typed.py")
    return subprocess.run(mypy, cwd=folder, capture_output=True, text=True).stdout


def test_mypy_finds_the_types_of_the_installed_package(installed: Environment, tmp_path: Path) -> None:
    output = types_of(installed.python, tmp_path)
    assert 'typed.py:5: error: Incompatible types in assignment (expression has type "TunedKernel"' in output
    assert "Found 1 error in 1 file" in output


def is_made() -> bool:
    """True in an environment that today's Makefile made."""
    stamp = Path(sys.prefix) / ".installed"
    return stamp.exists() and stamp.stat().st_mtime >= (ROOT / "Makefile").stat().st_mtime


@pytest.mark.skipif(not is_made(), reason="not the environment of `make`")
def test_mypy_finds_the_types_in_the_environment_of_make(tmp_path: Path) -> None:
    assert "Found 1 error in 1 file" in types_of(Path(sys.executable), tmp_path)


def test_hugging_face_kernels_stay_theirs(wheel: Path, tmp_path: Path) -> None:
    """Installing a second top-level ``kernels`` would overwrite theirs, and a root folder could shadow it."""
    environment = Environment(tmp_path / "venv")
    try:
        environment.pip("install", "--quiet", "kernels")
    except AssertionError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"Hugging Face's kernels cannot be installed here: {str(error).strip().splitlines()[-1]}")
    theirs = f"{environment.site / 'kernels' / '__init__.py'}\n"

    def found() -> list[str]:
        return [environment.script(THEIRS, folder) for folder in (tmp_path, ROOT)]

    assert found() == [theirs, theirs]
    environment.pip("install", "--no-deps", "--no-index", "--ignore-installed", wheel)
    assert found() == [theirs, theirs]
    assert environment.script("import autotune; print(autotune.__file__)", tmp_path).startswith(str(environment.site))
    environment.pip("uninstall", "--yes", "attention-autotune")
    assert not (environment.site / "autotune").exists()
    assert found() == [theirs, theirs]
