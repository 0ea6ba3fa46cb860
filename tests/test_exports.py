"""The public face: what ``autotune`` exports, and that the README speaks of every command."""

import re
import subprocess
import sys
from pathlib import Path
from types import FunctionType

import pytest

import autotune
from autotune.cli import app

README = Path(__file__).resolve().parent.parent / "README.md"
COMMANDS = sorted(app.COMMANDS)


def test_all_is_exactly_what_is_public() -> None:
    values = {name: getattr(autotune, name) for name in dir(autotune)}
    ours = {name for name, value in values.items() if getattr(value, "__module__", "").startswith("autotune.")}
    public = {name for name in ours if isinstance(values[name], FunctionType | type)}
    assert sorted(public | {"__version__"}) == sorted(autotune.__all__)


def test_what_tunes_is_imported_on_first_use() -> None:
    code = "import autotune, sys; print(*{'optuna', 'pyarrow'} & {*sys.modules}); print(autotune.tune.__module__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["", "autotune.tuning.tuner"]
    with pytest.raises(AttributeError, match="'autotune' has no attribute 'tuned'"):
        _ = autotune.tuned


def test_everything_public_is_documented() -> None:
    assert [name for name in autotune.__all__ if not getattr(autotune, name).__doc__] == []


def test_the_command_line_has_the_commands_of_the_design() -> None:
    designed = [
        *("analyze", "bench", "doctor", "explain", "export", "lookup", "report", "search", "show", "sweep"),
    ]
    assert designed == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_the_readme_speaks_of_the_command(command: str) -> None:
    text = README.read_text(encoding="utf-8")
    assert re.search(rf"autotune {command}\b", text), f"README.md does not say what `autotune {command}` does"
