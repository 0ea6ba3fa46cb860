"""The command line: arguments, one library call, output."""

from autotune.cli.app import main

__all__ = ["main"]
