"""The tests of vLLM's classes, over its wheel in a folder of their own.

Its modules that we meet import a few of the packages that it requires, and no line of CUDA; torch is the one that is
here. Half a minute and 1 GB, which is given back.
"""

import shutil
from pathlib import Path
from typing import Final

import pytest

from tests.integrations.wheel_folder import install, run_tests

WHEEL: Final = "vllm==0.33.0"
IMPORTED: Final = (
    *("aiohappyeyeballs", "aiohttp", "aiosignal", "cbor2", "frozenlist", "multidict", "openai", "openai-harmony"),
    *("propcache", "psutil", "pyzmq", "sniffio", "yarl"),
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_the_backend_fits_the_classes_of_the_wheel(tmp_path: Path) -> None:
    site = tmp_path / "site"
    install(site, (WHEEL, *IMPORTED))
    run_tests(site, "tests/integrations/vllm/test_vllm_classes.py")
    shutil.rmtree(site)
