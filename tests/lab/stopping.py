"""Fixtures of commands that are stopped, by Ctrl-C or SIGTERM, and their printed text with its golden file."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.console import interrupts
from tests.cli.conftest import Ran
from tests.golden import assert_golden

Run = Callable[..., Ran]
Stopped = tuple[Callable[[], None], int]

SAID = "interrupted: what was measured before is shown\n"


@pytest.fixture(params=[(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "SIGTERM"])
def stopped(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Stopped:
    """A function that stops this process by a signal, and the exit code of that signal."""
    number, code = request.param
    monkeypatch.setattr(interrupts, "_received", signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    return lambda: signal.raise_signal(number), code


def shown_and_data(run: Run, *arguments: object, code: int) -> tuple[str, Any]:
    """Return the text of a run that is stopped, and the JSON of another."""
    text, as_json = run("analyze", *arguments), run("analyze", *arguments, "--json")
    assert (text.code, [line for line in text.err.splitlines() if not line.endswith(" ...")]) == (code, [])
    assert as_json.code == code
    for shown in (text.out, as_json.err):
        assert shown.endswith(SAID)
    return text.out, json.loads(as_json.out)


def assert_session(path: Path, *runs: tuple[tuple[object, ...], Ran]) -> None:
    """Compare commands, what they printed on both streams and their exit codes with a golden file."""
    parts = []
    for arguments, ran in runs:
        errors = "".join(f"2> {line}\n" for line in ran.err.splitlines())
        parts.append(f"$ autotune {' '.join(map(str, arguments))}\n{ran.out}{errors}[{ran.code}]\n")
    assert_golden(path, "\n".join(parts))
