"""What a search shows while it runs."""

import io
import time

from rich.console import Console

from autotune.cli.progress import Progress
from autotune.search import Limits
from autotune.search_spaces.flash_attention import OPERATION
from tests.report import sample


def shown(started: float | None) -> str:
    """What is printed after one trial of a search with a budget of 60 s."""
    console = Console(file=io.StringIO(), width=200)
    with Progress(console, Limits(seconds=60.0), started) as progress:
        progress.on_start(OPERATION, sample.shape(64), space=7, resumed=0)
        progress.on_trial(sample.trial(sample.shape(64)))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_seconds_left_are_those_of_the_budget() -> None:
    assert ", 60 s left; best 200.0 us" in shown(None)
    assert ", 40 s left; best 200.0 us" in shown(time.monotonic() - 20.0)
