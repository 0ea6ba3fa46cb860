"""Links lead somewhere, every page is in the navigation, and all questions are two clicks from the start."""

import re
from pathlib import Path
from typing import Final

import pytest

from tests.docs.blocks import DOCS, PAGES, ROOT
from tests.docs.links import Link, anchors, links, prose

START: Final = DOCS / "index.md"
QUESTIONS: Final = DOCS / "questions.md"
ABSENT: Final = {"kernels/__init__.py"}  # which a page says must not be there
LINKING: Final = (*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md")


@pytest.mark.parametrize("page", LINKING, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert [problem for link in links(page) if (problem := link.problem())] == []


def test_links_that_lead_nowhere_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One\n[a](#one) [b](#two) [c](none.md) [`d`](https://x.example)\n```text\n[e](f)\n```\n# One\n")
    assert [link.problem() for link in links(page)] == [
        *("", "page.md: #two: no such heading", "page.md: none.md: no such file", ""),
    ]
    assert anchors(page) == {"one", "one-1"}
    assert Link(START, "../README.md").problem() == "index.md: ../README.md: outside of the site"


def test_every_page_is_in_the_navigation() -> None:
    named = re.findall(r"^\s+- (?:[^:\n]+: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M)
    assert sorted(named) == sorted(page.name for page in DOCS.glob("*.md"))


def reached(start: Path, clicks: int) -> set[Path]:
    """Return the pages that links reach from a page in so many clicks, without the navigation."""
    found = {start}
    for _ in range(clicks):
        found |= {link.path for page in found for link in links(page) if link.path.suffix == ".md"}
    return found


def test_questions_are_answered_two_clicks_from_the_start() -> None:
    lines = [line for line in QUESTIONS.read_text(encoding="utf-8").splitlines() if re.match(r"\d+\. ", line)]
    assert [int(line.partition(".")[0]) for line in lines] == list(range(1, len(lines) + 1))
    assert len(lines) >= 30
    assert QUESTIONS in reached(START, 1)
    for line in lines:
        (target,) = re.findall(r"\]\(([^)]+)\)$", line)
        link = Link(QUESTIONS, target)
        assert not link.is_external
        assert link.problem() == ""
        assert link.path in reached(START, 2)


def test_every_page_is_two_clicks_from_the_start() -> None:
    assert set(DOCS.glob("*.md")) - reached(START, 2) - {DOCS / "contributing.md"} == set()


def paths(page: Path) -> list[str]:
    """Return the files and folders of the clone that a page names in its prose; those with placeholders are none."""
    named = re.findall(r"`([\w./{},-]+)`", prose(page))
    tops = ("autotune", "benchmarks", "docs", "examples", "kernels", "results", "search_spaces", "tests")
    return [
        name for name in named if name.split("/")[0] in tops and "/" in name and not re.search(r"[A-Z]{4}|[{]", name)
    ]


@pytest.mark.parametrize("page", LINKING[:-1], ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_of_the_clone_exist(page: Path) -> None:
    """The changelog is left out: it names what was."""
    assert [name for name in paths(page) if name not in ABSENT and not (ROOT / name).exists()] == []
