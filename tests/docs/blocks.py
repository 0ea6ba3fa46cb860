"""Fenced blocks of the documentation, with the remark above each that says how it is tested.

A remark is an HTML comment on the line above a fence, which no reader sees:

- ``<!-- not run: needs a GPU -->``: the block is only checked for names and options that exist;
- ``<!-- file: first.py -->``: the block is written to that file, for the blocks behind it;
- ``<!-- output -->``: what the Python block before it prints;
- ``<!-- exit: 2 -->``: the last command ends with that code, as a wrong one should;
- ``<!-- needs: duckdb -->``: run where this package or command is installed, as after ``make docs``.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
PAGES: Final = (ROOT / "README.md", *sorted(DOCS.glob("*.md")))
RUN: Final = ("bash", "console", "python")
SHOWN: Final = ("json", "sql", "text", "toml", "yaml", "dockerfile", "diff")
REMARKS: Final = ("not run", "file", "output", "exit", "needs")
_REMARK: Final = re.compile(r"<!-- ([a-z ]+?)(?:: (.+))? -->")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: where it stands, its language, its text, and the remark above it."""

    page: Path
    line: int
    language: str
    text: str
    remark: str = ""
    value: str = ""

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def is_run(self) -> bool:
        return self.language in RUN and self.remark not in ("not run", "file")

    def commands(self) -> list[str]:
        """Return the commands of a ``bash`` or ``console`` block, continued lines joined."""
        text = self.text.replace("\\\n", " ")
        lines = text.splitlines()
        if self.language == "console":
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        return [line for line in lines if line.strip() and not line.startswith("#")]


def blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page, in order."""
    lines = page.read_text(encoding="utf-8").splitlines()
    start, language, remark, indent = 0, None, None, ""
    for number, line in enumerate(lines, 1):
        fence = re.match(r"( *)```(.*)", line)
        if fence and language is None:
            start, indent, language = number, fence[1], fence[2].strip()
            remark = _REMARK.fullmatch(lines[number - 2].strip()) if number > 1 else None
        elif fence:
            body = [each.removeprefix(indent) for each in lines[start : number - 1]]
            said, value = (remark[1], remark[2] or "") if remark else ("", "")
            yield Block(page, start, language or "", "\n".join(body) + "\n", said, value)
            language = None
