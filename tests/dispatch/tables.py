"""Tables of flash attention to serve from, in this process or a fresh one."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from autotune import platforms
from autotune.device import NVIDIA_H200
from autotune.dispatch import evidence, reload
from autotune.registry import our_implementations
from autotune.search_spaces.flash_attention.triton import IMPLEMENTATION
from autotune.shape import AttentionShape, PagedShape
from autotune.space import Config
from autotune.table import Assignment, Compilation, Store, write_compilations, write_portfolio, write_shipped
from autotune.trial import Trial
from tests import sample

H200: Final = "NVIDIA H200"
CAPPED: Final = replace(NVIDIA_H200, power_cap_watts=500)
# Valid wherever FAST is, and told apart from it and from the default.
SLOWER: Final = sample.config(BLOCK_K=64)
THIRD: Final = sample.config(BLOCK_K=32)
PAGED: Final = PagedShape(batch=4, heads=8, max_context=256, head_dim=64)


class Tables:
    """The user's table and the shipped one, both empty at first."""

    def __init__(self, folder: Path) -> None:
        self.home, self.results = folder / "home", folder / "results"

    def tune(self, *trials: Trial) -> None:
        """Add rows to the user's table, and read it again."""
        for trial in trials:
            Store(self.home).append([trial])
        reload()

    def ship(self, *trials: Trial) -> None:
        """Write the shipped table of the H200, and read it again."""
        write_shipped(Path("nvidia_h200/flash_attention/triton.parquet"), trials, results=self.results)
        reload()

    def cover(self, *rows: Assignment) -> Path:
        """Write the shipped portfolio of an architecture, and read it again; return its file."""
        path = write_portfolio(rows, results=self.results)
        reload()
        return path

    def compiled(self, *rows: Compilation) -> Path:
        """Write what versions of Triton make of stored configs, and read it again; return the file."""
        path = write_compilations(rows, results=self.results)
        reload()
        return path


@contextmanager
def served_from(tables: Tables) -> Iterator[Tables]:
    """Serve from these tables alone, on an H200, by the toolchain of the sample's rows."""
    with pytest.MonkeyPatch.context() as patch:
        sample.serve_from(patch, tables.home, tables.results)
        patch.setattr(evidence, "installed_version", lambda package: sample.TOOLCHAIN.triton)
        patch.setattr(platforms, "has_gpu", lambda: True)
        patch.setattr(platforms, "current_index", lambda: 0)
        patch.setattr(platforms, "current_device", lambda index=0: NVIDIA_H200)
        reload()
        yield tables
    reload()


def default_of(shape: AttentionShape) -> Config:
    return IMPLEMENTATION.space.default(shape, NVIDIA_H200)


def defaults_of(shape: AttentionShape) -> list[Config]:
    """Return the spaces' defaults of all implementations of ours that support a shape on an H200."""
    supporting = (each for each in our_implementations("flash_attention") if not each.supports(shape, NVIDIA_H200))
    return [each.space.default(shape, NVIDIA_H200) for each in supporting]


def in_fresh_process(code: str, home: Path, **environment: str) -> str:
    """Return what a new interpreter prints that stands in another folder and serves from this home.

    It imports what is installed, not what ``PYTHONPATH`` names: in a worktree, its own environment must be.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "AUTOTUNE"))}
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tempfile.gettempdir(),
        env={**inherited, "AUTOTUNE_HOME": str(home), **environment},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout
