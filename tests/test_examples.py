"""The examples run as their first lines say, and what they check holds."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent


def run_example(name: str, home: Path) -> str:
    """The output of an example on a machine without a GPU, with empty tables of the user's; it must succeed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TRITON", "AUTOTUNE"))}
    environment |= {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "AUTOTUNE_HOME": str(home)}
    environment["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, str(ROOT / "examples" / name)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.mark.slow
def test_generation_over_a_paged_cache_chooses_the_tokens_of_torch(tmp_path: Path) -> None:
    lines = run_example("generate.py", tmp_path).splitlines()
    assert lines[0].startswith("no GPU here")
    assert any(line.startswith("picked") for line in lines)
    assert lines[-1].startswith("agreement 18 of 18 tokens")
