"""Every message of the page on troubleshooting is one of the sources."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import Final

from tests.docs.blocks import DOCS, ROOT

PAGE: Final = DOCS / "troubleshooting.md"
SOURCES: Final = ("autotune", "kernels", "search_spaces")
GAP: Final = "\0"  # where a source puts a value into a message


@cache
def texts() -> list[str]:
    """Return all text of the sources, each f-string as one text with gaps for its values."""
    found = []
    for folder in SOURCES:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    parts = (part.value if isinstance(part, ast.Constant) else GAP for part in node.values)
                    found.append("".join(map(str, parts)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return found


def is_said(message: str) -> bool:
    """Return True if a source has the parts of a message between its dots, in order, in one text."""
    parts = [part for each in message.split("...") if (part := each.strip())]
    return any(_has_in_order(text, parts) for text in texts())


def _has_in_order(text: str, parts: list[str]) -> bool:
    end = 0
    for part in parts:
        start = text.find(part, end)
        if start < 0:
            return False
        end = start + len(part)
    return True


def messages(page: Path) -> list[str]:
    rows = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    return [message for row in rows for message in re.findall(r"`([^`]+)`", row.split(" | ")[0])]


def test_every_message_is_said() -> None:
    assert [message for message in messages(PAGE) if not is_said(message)] == []


def test_a_message_that_is_not_said_is_found() -> None:
    assert is_said("on_miss=... is not allowed; ...")
    assert not is_said("on_miss=... is never allowed; ...")
    assert not is_said("is not allowed; ... on_miss=")


def test_messages_are_found_on_the_page() -> None:
    assert len(messages(PAGE)) > 50
