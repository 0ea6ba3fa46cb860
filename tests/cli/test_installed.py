"""The wheel's own command, without the checkout."""

from pathlib import Path

import pytest

from tests.test_packaging import Environment, installed, run, wheel

__all__ = ("installed", "wheel")  # fixtures

pytestmark = pytest.mark.slow


def test_installed_command_answers_from_the_shipped_tables(installed: Environment, tmp_path: Path) -> None:
    command = installed.python.parent / "autotune"
    printed = run(command, "show", "--json", cwd=tmp_path, AUTOTUNE_HOME=str(tmp_path / "home"))
    assert "flash_attention" in printed
    assert not (tmp_path / "home").exists()
