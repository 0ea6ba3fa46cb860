"""``autotune analyze``: its commands are found when they are run, and their options are documented."""

import subprocess
import sys
from pathlib import Path

import pytest

from autotune.cli.analyze import analyze
from autotune.console.command import OWN

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", analyze.references)
def test_every_option_is_documented(name: str) -> None:
    """All of those that know dense attention alone; of the others their own, beside the usual options of shapes."""
    text = (ROOT / "docs" / "analyses.md").read_text()
    command = analyze.references[name].load()
    assert command.name == name
    own = [
        parameter
        for parameter in command.params
        if name in ("roofline", "memory") or getattr(parameter, "section", "") == OWN
    ]
    flags = {flag for parameter in own for flag in (*parameter.opts, *parameter.secondary_opts)}
    assert flags
    assert {flag for flag in flags if f"`{flag}" not in text} == set()


def test_the_group_loads_no_analysis() -> None:
    code = "import sys, autotune.cli.analyze; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "autotune.lab", "rich"} & set(loaded.stdout.split())
