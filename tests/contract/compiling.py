"""Kernels compiled without a GPU, for one architecture in one process: Triton's target is the process's."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def compile_sample(module: str, arch: str, folder: Path, *, packages: Path | None = None) -> dict[str, Any]:
    """Return what the script ``module`` prints of an architecture, as JSON; Triton's cache is in the folder.

    A folder of ``packages`` comes before the installed ones.
    """
    environment = {**os.environ, "TRITON_CACHE_DIR": str(folder)}
    if packages is not None:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(packages), os.environ.get("PYTHONPATH")]))
    result = subprocess.run(
        [sys.executable, "-m", module, arch],
        env=environment,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    outcomes: dict[str, Any] = json.loads(result.stdout)
    return outcomes
