"""The command line imports little before it starts what measures."""

import subprocess
import sys


def test_what_starts_a_search_is_imported_without_what_serves_or_prints() -> None:
    """The command reaches its GPU's children through these imports, and each child imports them before torch."""
    heavy = ("torch", "triton", "numpy", "optuna", "pyarrow", "rich", "autotune.dispatch", "autotune.search")
    code = f"import autotune.cli.app, autotune.cli.search, sys; print(*{{*{heavy}}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
