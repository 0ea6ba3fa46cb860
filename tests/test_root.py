"""Nothing is committed at the root of the repository but what belongs there."""

import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent

# Names at the root that are committed; anything else there is a leftover.
ROOT_NAMES: Final = {
    *(".ci", ".gitignore", ".pre-commit-config.yaml", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile"),
    *("README.md", "SECURITY.md", "autotune", "benchmarks", "docs", "examples", "kernels", "mkdocs.yml"),
    *("pyproject.toml", "recipes", "results", "search_spaces", "tests"),
}


def test_nothing_else_is_committed_at_the_root() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("the tree is no checkout")
    assert {name.split("/")[0] for name in listed.stdout.splitlines()} <= ROOT_NAMES
