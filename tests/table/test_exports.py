"""The package shows its public names, and pyarrow stays inside it."""

import subprocess
import sys

from autotune import table


def test_all_is_sorted_and_complete() -> None:
    assert table.__all__ == sorted(table.__all__)
    assert all(hasattr(table, name) for name in table.__all__)


def test_importing_the_floor_loads_nothing_above_it() -> None:
    heavy = ("torch", "triton", "optuna", "pandas", "autotune.search", "autotune.executor", "autotune.kernels")
    code = f"import sys, autotune.table; print([name for name in {heavy!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
