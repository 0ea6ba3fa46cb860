"""The command line's machine without a GPU, its ``run``, and a way to stop it."""

from tests.cli.conftest import machine, run
from tests.lab.stopping import stopped

__all__ = ["machine", "run", "stopped"]
