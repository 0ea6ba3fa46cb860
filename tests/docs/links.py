"""Links of the documentation: to pages, headings and files, as a browser and GitHub resolve them."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.docs.blocks import DOCS

_LINK: Final = re.compile(r"!?\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)\)")


@dataclass(frozen=True, slots=True)
class Link:
    """A link from a page: the file and the heading's anchor that it names, as they are written."""

    page: Path
    target: str

    @property
    def is_external(self) -> bool:
        return "://" in self.target or self.target.startswith("mailto:")

    @property
    def path(self) -> Path:
        name = self.target.partition("#")[0]
        return Path(os.path.normpath(self.page.parent / name)) if name else self.page  # a link of a file is a page, too

    @property
    def anchor(self) -> str:
        return self.target.partition("#")[2]

    def problem(self) -> str:
        """Return why the link leads nowhere, or an empty text."""
        if self.is_external:
            return ""
        if not self.path.is_file():
            return f"{self.page.name}: {self.target}: no such file"
        if self.page.parent == DOCS and DOCS not in self.path.parents:
            return f"{self.page.name}: {self.target}: outside of the site"
        if self.anchor and self.anchor not in anchors(self.path):
            return f"{self.page.name}: {self.target}: no such heading"
        return ""


def links(page: Path) -> Iterator[Link]:
    """Yield the links of a page, those in code left out."""
    for target in _LINK.findall(re.sub(r"`[^`]*`", "", prose(page))):
        yield Link(page, target)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and mkdocs.yml make them."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} (.+)$", prose(page), re.M):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        name = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        found.add(name if name not in found else f"{name}-1")
    return found


def prose(page: Path) -> str:
    """Return the text of a page without its blocks of code."""
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
