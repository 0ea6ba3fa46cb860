"""The tests of vLLM's classes, over its wheel in a folder of their own: the environment has no room for all of it.

Its modules that we meet import a few of the packages that it requires, and no line of CUDA; torch is the one that is
here. Half a minute and 1 GB, which is given back.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[3]
WHEEL: Final = "vllm==0.33.0"
IMPORTED: Final = (
    *("aiohappyeyeballs", "aiohttp", "aiosignal", "cbor2", "frozenlist", "multidict", "openai", "openai-harmony"),
    *("propcache", "psutil", "pyzmq", "sniffio", "yarl"),
)
INSTALL_SECONDS: Final = 180

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Path]:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    try:
        done = subprocess.run(
            [*command, "--target", str(tmp_path / "site"), WHEEL, *IMPORTED],
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"{WHEEL} was not installed within {INSTALL_SECONDS} s")
    if done.returncode:
        pytest.skip(f"{WHEEL} cannot be installed here: {(done.stderr.strip() or 'no reason given').splitlines()[-1]}")
    yield tmp_path / "site"
    shutil.rmtree(tmp_path / "site")


def test_the_backend_fits_the_classes_of_the_wheel(site: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(site)])}
    done = subprocess.run(
        [*command, "tests/integrations/vllm/test_vllm_classes.py"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "skipped" not in done.stdout
