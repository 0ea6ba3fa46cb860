"""The commands and snippets of docs/your-own-kernel.md run as the page says, on a machine without a GPU."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = (ROOT / "docs" / "your-own-kernel.md").read_text()
PYTHON: Final = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
COMMANDS: Final = re.findall(r"^\$ python (.*)$", PAGE, re.MULTILINE)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., str]:
    """Run Python with these arguments beside the page's module."""
    (tmp_path / "my_kernels.py").write_text(PYTHON[0])
    (tmp_path / "launch.py").write_text("from my_kernels import *\n" + PYTHON[1])
    hidden = {"CUDA_VISIBLE_DEVICES": "", "AUTOTUNE_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}

    def command(*arguments: str, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, **hidden, **environment},
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    return command


@pytest.mark.slow
def test_the_page(run: Callable[..., str]) -> None:
    assert len(COMMANDS) == 2
    served, planned = (run(*command.split()) for command in COMMANDS)
    assert "BLOCK=512 num_warps=2" in served
    assert "scaled_silu/triton: rows=4096 width=4096, bfloat16" in planned
    assert "9 configs on NVIDIA H200" in planned
    assert served.startswith("shape   rows=4096 width=4096, bfloat16\n")
    (said,) = re.findall(r"^next    `(.*)` on an NVIDIA H200", served, re.MULTILINE)
    assert "9 configs on NVIDIA H200" in run("-m", *shlex.split(said), "--device", "H200", "--dry-run")
    assert planned.count("bfloat16") == 1
    (searched,) = re.findall(r"^python -m (autotune search .*)$", PAGE, re.MULTILINE)
    assert f"-m {searched} " in COMMANDS[1]  # what is looked at before is what is searched
    printed = run("launch.py", TRITON_INTERPRET="1").strip()
    assert f"prints `{printed}`" in PAGE
