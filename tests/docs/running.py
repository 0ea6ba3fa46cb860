"""One page's blocks run in order, as a reader without a GPU would run them, in an empty home folder."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Final

from tests.docs.blocks import ROOT, Block

LINKED: Final = ("results", "examples", "tests")  # what commands name relative to the clone
# Executes each source that it reads as a line of JSON, all in one namespace, and answers with what it printed.
SESSION: Final = """
import contextlib, io, json, sys, traceback
space = {"__name__": "__main__"}
for line in sys.stdin:
    text, failure = io.StringIO(), ""
    with contextlib.redirect_stdout(text):
        try:
            exec(compile(json.loads(line), "<block>", "exec"), space)
        except BaseException:
            failure = traceback.format_exc()
    print(json.dumps([text.getvalue(), failure]), flush=True)
"""


class Reader:
    """A folder with an empty home below it, in which commands and one Python session run."""

    def __init__(self, folder: Path, session: "subprocess.Popen[str]", environment: dict[str, str]) -> None:
        self.folder = folder
        self._session = session
        self._environment = environment
        self._printed = ""

    def read(self, block: Block) -> None:
        """Write a file, or run a block and compare what it prints with what the page shows."""
        if block.remark == "file":
            (self.folder / block.value).write_text(block.text, encoding="utf-8")
        elif block.remark == "output":
            compare(block, "", self._printed, block.text)
        elif not block.is_run or (block.remark == "needs" and not _is_installed(block.value)):
            return
        elif block.language == "python":
            self._printed = self._execute(block)
        elif block.language == "bash":
            self._command(block, "\n".join(["set -e", block.text]), _exit_code(block))
        else:
            *_, last = transcript(block.text)
            for command, shown in transcript(block.text):
                printed = self._command(block, command, _exit_code(block) if (command, shown) == last else 0)
                compare(block, f"{command} ", printed, shown)

    def _execute(self, block: Block) -> str:
        told, heard = self._session.stdin, self._session.stdout
        assert told is not None
        assert heard is not None
        print(json.dumps(block.text), file=told, flush=True)
        printed, failure = _answer(heard)
        assert not failure, f"{block.place}: {failure}"
        return printed

    def _command(self, block: Block, script: str, code: int) -> str:
        ran = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert ran.returncode == code, f"{block.place}: exit code {ran.returncode}\n{ran.stdout}"
        return ran.stdout.replace(self._environment["HOME"], "~")


@contextmanager
def reader(folder: Path) -> Iterator[Reader]:
    """Make a reader's folder, whose ``autotune`` and ``python`` are those of the tests; end its session after."""
    home, programs, work = (folder / name for name in ("home", "bin", "work"))
    for each in (home, programs, work):
        each.mkdir(parents=True)
    for name, arguments in (("autotune", " -m autotune"), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable}{arguments} "$@"\n')
        (programs / name).chmod(0o755)
    for name in LINKED:
        (work / name).symlink_to(ROOT / name)
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("TRITON", "AUTOTUNE", "XDG"))}
    environment = kept | {
        "HOME": str(home),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "CUDA_VISIBLE_DEVICES": "",
        "HIP_VISIBLE_DEVICES": "",
        "COLUMNS": "200",
    }
    session = subprocess.Popen(
        [sys.executable, "-c", SESSION],
        cwd=work,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Reader(work, session, environment)
    finally:
        session.communicate()


def transcript(text: str) -> Iterator[tuple[str, str]]:
    """Yield each command of a ``console`` block with what the page shows below it."""
    command, shown = "", ""
    for line in text.splitlines(keepends=True):
        if line.startswith("$ "):
            if command:
                yield command, shown
            command, shown = line[2:].rstrip("\n"), ""
        else:
            shown += line
    yield command, shown


def compare(block: Block, command: str, printed: str, shown: str) -> None:
    """Compare what was printed with what a page shows; ``AUTOTUNE_GOLDEN=write`` writes its lines anew."""
    if not is_shown(printed, shown) and os.environ.get("AUTOTUNE_GOLDEN") == "write":
        text, shown = block.page.read_text(encoding="utf-8"), renew(printed, before := shown)
        block.page.write_text(text.replace(before, shown), encoding="utf-8")
    assert is_shown(printed, shown), f"{block.place}: {command}printed\n{printed}"


def renew(printed: str, shown: str) -> str:
    """Replace lines of a page by the printed ones that begin with the same word; lines with dots stay."""
    lines, renewed = iter(printed.splitlines()), []
    for line in shown.splitlines():
        first = line.partition(" ")[0]
        same = None if "..." in line else next((each for each in lines if each.partition(" ")[0] == first), None)
        renewed.append(line if same is None else same)
    return "".join(f"{line.rstrip()}\n" for line in renewed)


def is_shown(printed: str, shown: str) -> bool:
    """Compare what was printed with a page; ``...`` there stands for anything, seconds for any seconds."""
    if not shown.strip():
        return True
    patterns = [".*".join(map(re.escape, part.split("..."))) for part in _timeless(shown).strip().splitlines()]
    text = "\n".join(line.rstrip() for line in _timeless(printed).strip().splitlines())
    # A line of dots alone is any number of lines, none too.
    pattern = "\n".join(patterns).replace("\n.*\n", "\n(?:.*\n)*?")
    pattern = re.sub(r"^\.\*\n", "(?:.*\n)*?", pattern)
    pattern = re.sub(r"\n\.\*$", "(?:\n.*)*", pattern)
    return re.fullmatch(pattern, text) is not None


def _timeless(text: str) -> str:
    return re.sub(r"\b\d+(?:\.\d+)? s\b", "N s", text)


def _answer(stream: IO[str]) -> tuple[str, str]:
    line = stream.readline()
    assert line, "the Python session ended"
    printed, failure = json.loads(line)
    return printed, failure


def _exit_code(block: Block) -> int:
    return int(block.value) if block.remark == "exit" else 0


def _is_installed(name: str) -> bool:
    return find_spec(name) is not None or shutil.which(name) is not None
