"""The tests of SGLang's classes, over its wheel in a folder of their own.

Its modules that we meet import a part of the packages that it requires, and no line of CUDA; torch is the one that is
here, and torchvision the one of it. Half a minute and 0.4 GB, which is given back.
"""

import shutil
from pathlib import Path
from typing import Final

import pytest
import torch

from tests.integrations.wheel_folder import install, run_tests

WHEEL: Final = "sglang==0.5.23"
IMPORTED: Final = (
    *("aiohappyeyeballs", "aiohttp", "aiosignal", "apache-tvm-ffi", "compressed-tensors", "dill", "einops"),
    *("frozenlist", "gguf", "ipython", "loguru", "msgspec", "multidict", "orjson", "pillow", "propcache", "psutil"),
    *("pybase64", "pyzmq", "sentencepiece", "starlette", "traitlets", "yarl"),
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_the_backend_fits_the_classes_of_the_wheel(tmp_path: Path) -> None:
    minor = int(torch.__version__.split(".")[1])  # torch 2.13 goes with torchvision 0.28
    site = tmp_path / "site"
    install(site, (WHEEL, f"torchvision==0.{minor + 15}.*", *IMPORTED))
    run_tests(site, "tests/integrations/sglang/test_sglang_classes.py")
    shutil.rmtree(site)
