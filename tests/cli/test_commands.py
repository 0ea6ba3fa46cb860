"""The commands: those of the design, each in the documentation, loadable by its reference and completed by a shell."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.cli.analyze import analyze
from autotune.cli.app import COMMANDS
from autotune.cli.search import search
from autotune.console.command import Reference
from tests.test_layout import loaded_by

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "commands.md"
NOT_LOADED_BY = {
    "autotune.cli.app": {"optuna", "sqlalchemy", "torch", "triton", "pyarrow", "autotune.table"},
    "autotune.cli.show": {"optuna", "sqlalchemy", "torch", "triton", "autotune.executor"},
}


@pytest.mark.parametrize("name", NOT_LOADED_BY)
def test_import_loads_no_more_than_it_needs(name: str) -> None:
    assert NOT_LOADED_BY[name] & loaded_by(name, ROOT) == set()


def test_the_command_line_has_the_commands_of_the_design() -> None:
    designed = [
        *("analyze", "bench", "doctor", "explain", "export", "grid", "lookup", "report", "search", "show", "sweep"),
        *("tables", "verify", "warmup"),
    ]
    assert designed == sorted(COMMANDS)


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_the_reference_speaks_of_the_command(command: str) -> None:
    text = REFERENCE.read_text(encoding="utf-8")
    assert re.search(rf"autotune {command}\b", text), f"docs/commands.md does not say what `autotune {command}` does"


@pytest.mark.parametrize("references", [COMMANDS, analyze.references], ids=["autotune", "analyze"])
def test_every_reference_is_a_command_of_its_name(references: dict[str, Reference]) -> None:
    for name, reference in references.items():
        assert reference.load().name == name
        assert reference.help.endswith(".")


@pytest.mark.parametrize(
    ("typed", "completed"),
    [("sho", "show"), ("show --ta", "--tables"), ("analyze stab", "stability"), ("search --kv-h", "--kv-heads")],
)
def test_a_shell_completes_commands_and_options(typed: str, completed: str) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "COMP_WORDS": f"autotune {typed}",
        "COMP_CWORD": str(len(typed.split())),
        "_AUTOTUNE_COMPLETE": "bash_complete",
    }
    done = subprocess.run([sys.executable, "-m", "autotune"], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()) == (0, [f"plain,{completed}"])


def test_a_search_says_what_its_budget_leaves_out() -> None:
    (option,) = [each for each in search.params if each.name == "budget"]
    text = str(getattr(option, "help", ""))
    assert "Where there is no GPU, compiling" in text
    assert "checking the winner come on top" in text
