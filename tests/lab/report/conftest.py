"""The command line's machine without a GPU, and its ``run``."""

from tests.cli.conftest import machine, run

__all__ = ["machine", "run"]
