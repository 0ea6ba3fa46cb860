"""The public face: what ``autotune`` exports, and that the README speaks of every command."""

import re
from pathlib import Path
from types import FunctionType

import pytest

import autotune
from autotune.cli.app import app

README = Path(__file__).resolve().parent.parent / "README.md"
GROUPS = [str(group.name) for group in app.registered_groups]
COMMANDS = sorted([*GROUPS, *(command.callback.__name__ for command in app.registered_commands if command.callback)])


def test_all_is_exactly_what_is_public() -> None:
    public = {name for name, value in vars(autotune).items() if isinstance(value, FunctionType | type)}
    assert sorted(public | {"__version__"}) == sorted(autotune.__all__)


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
    if "autotune search" not in text:
        pytest.skip("the README has no list of commands yet")
    assert re.search(rf"autotune {command}\b", text), f"README.md does not say what `autotune {command}` does"
