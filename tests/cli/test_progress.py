"""What a search shows while it runs."""

import io
import time

import pytest
from rich.console import Console

from autotune.cli.progress import Progress
from autotune.search import Limits
from autotune.search_spaces.flash_attention import OPERATION
from autotune.trial import Trial
from tests.report import sample

SHAPE = sample.shape(64)
OTHER = sample.config(num_warps=4)


def shown(*trials: Trial, started: float | None = None, resumed: int = 0, best: Trial | None = None) -> str:
    """What is printed of these trials of a search with a budget of 60 s."""
    console = Console(file=io.StringIO(), width=200)
    with Progress(console, Limits(seconds=60.0), started) as progress:
        progress.on_start(OPERATION, SHAPE, space=7, resumed=resumed, best=best)
        for trial in trials:
            progress.on_trial(trial)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_seconds_left_are_those_of_the_budget() -> None:
    trial = sample.trial(SHAPE)
    assert "\n1 trial (1 ok), 60 s left; best 200.0 us" in shown(trial)
    assert ", 40 s left; best 200.0 us" in shown(trial, started=time.monotonic() - 20.0)


def test_a_resumed_search_counts_what_is_known_and_begins_with_its_best() -> None:
    known = sample.trial(SHAPE)
    slower, faster = (sample.trial(SHAPE, OTHER, timing=sample.timing(median)) for median in (300.0, 100.0))
    out = shown(slower, faster, resumed=30, best=known)
    assert f"\n7 valid configs, 30 known from an earlier run; best 200.0 us, {sample.FAST}\n" in out
    assert "300.0 us" not in out
    assert f"\n32 trials (30 known, 2 ok), 60 s left; best 100.0 us, {OTHER}\n" in out
    assert "\n7 valid configs, 1 known from an earlier run; best none yet\n" in shown(resumed=1)


@pytest.mark.parametrize(
    ("configs", "words"), [(1, "1 finalist against"), (2, "2 finalists, the default among them, against")]
)
def test_the_finalists_are_counted(configs: int, words: str) -> None:
    console = Console(file=io.StringIO(), width=200)
    with Progress(console, Limits()) as progress:
        progress.on_race([sample.FAST, OTHER][:configs])
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == f"racing {words} the fastest baseline\n"
