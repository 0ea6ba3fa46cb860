"""Progress that a search shows while it runs."""

import io
import time
from collections.abc import Mapping

import pytest
from rich.console import Console

from autotune.cli.progress import Progress
from autotune.console.output import PlainConsole
from autotune.errors import SearchError
from autotune.search_spaces.flash_attention.operation import OPERATION
from autotune.trial import Candidate, Trial
from tests import sample

SHAPE = sample.shape(64)
OTHER = sample.config(num_warps=4)


def shown(
    *trials: Trial,
    started: float | None = None,
    resumed: int = 0,
    best: Trial | None = None,
    valid: Mapping[str, int] | None = None,
) -> str:
    """Return what is printed of these trials of a search with a budget of 60 s."""
    console = Console(file=io.StringIO(), width=200)
    with Progress(console, 60.0, started) as progress:
        progress.on_start(OPERATION, SHAPE, valid=valid or {"triton": 7}, resumed=resumed, best=best)
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


def test_the_best_of_several_implementations_is_named_with_its_own() -> None:
    out = shown(sample.trial(SHAPE), valid={"triton": 7, "flex": 2})
    assert "\n9 valid configs (7 of triton, 2 of flex)\n" in out
    assert f"; best 200.0 us, triton {sample.FAST}\n" in out


@pytest.mark.parametrize(
    ("candidates", "words"),
    [
        ([sample.candidate()], "1 finalist against"),
        ([sample.candidate(), sample.candidate(OTHER)], "2 finalists, the default among them, against"),
        ([sample.candidate(), sample.candidate(OTHER, "flex")], "2 finalists, the defaults among them, against"),
    ],
)
def test_the_finalists_are_counted(candidates: list[Candidate], words: str) -> None:
    console = Console(file=io.StringIO(), width=200)
    with Progress(console) as progress:
        progress.on_race(candidates)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == f"racing {words} the fastest baseline\n"


def test_the_lines_of_an_error_are_indented_and_move_no_cursor() -> None:
    console = PlainConsole(file=io.StringIO(), width=200)
    with Progress(console, 60.0, None) as progress:
        progress.on_failure(SHAPE, SearchError("no config works:\n\x1b[2Jwinner    of nobody\nerror: spilled"))
    assert isinstance(console.file, io.StringIO)
    lines = ["failed    no config works:", "          ?[2Jwinner    of nobody", "          error: spilled", "", ""]
    assert console.file.getvalue().split("\n") == lines
