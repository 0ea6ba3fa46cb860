"""Every block of the documentation is run, or says why not and names nothing that does not exist."""

import re
from pathlib import Path
from typing import Final

import pytest

from tests.docs.blocks import PAGES, REMARKS, ROOT, RUN, SHOWN, Block, blocks
from tests.docs.names import wrong_names
from tests.docs.running import reader

# Pages whose blocks take two seconds at most; all others are slow.
QUICK: Final = frozenset({"search-efficiency.md", "worth-it.md"})
BLOCKS: Final = [block for page in PAGES for block in blocks(page)]
PLACEHOLDER: Final = re.compile(r"^[ \t]*([A-Z][A-Z_]+)[ \t]*$", re.MULTILINE)
READ: Final = [page for page in PAGES if any(block.page == page and block.is_run for block in BLOCKS)]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_a_block_has_a_language_and_names_what_exists(block: Block) -> None:
    assert block.language in (*RUN, *SHOWN), f"{block.place}: a fence names its language: {', '.join((*RUN, *SHOWN))}"
    assert block.remark in ("", *REMARKS)
    assert block.value or block.remark in ("", "output"), f"{block.place}: say why, or what, behind the colon"
    if block.language in RUN:
        text = block.text if block.language == "python" else "\n".join(block.commands())
        assert wrong_names(block.language, text) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_line_is_a_word_that_stands_for_what_is_to_be_written(page: Path) -> None:
    assert PLACEHOLDER.findall(page.read_text(encoding="utf-8")) == []


def test_words_that_stand_for_something_are_found() -> None:
    assert PLACEHOLDER.findall("of each.\n\nSIMULATION\n\nGPU hours\nTO_DO\n| H200 |\n") == ["SIMULATION", "TO_DO"]


def test_names_that_do_not_exist_are_found() -> None:
    source = "autotune.tunes(shape)\nautotune.seal(late='count', later=1)\nautotune.dispatch.get_kernel\n"
    assert wrong_names("python", source) == ["autotune.tunes", "seal(later=)"]
    script = (
        "X=1 autotune search --seqs 4 | autotune shown\nmake tests ARGS=--x\npython -m benchmarks.nothing\n"
        ".venv/bin/autotune analyze memory --seq 1 --length 2\nautotune COMMAND --help\nls --seqs\n"
    )
    assert wrong_names("bash", script) == [
        *("autotune search --seqs", "autotune shown", "make tests"),
        *("python -m benchmarks.nothing", "autotune memory --length"),
    ]


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[] if page.name in QUICK else pytest.mark.slow) for page in READ],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_what_a_page_shows_is_what_a_reader_sees(page: Path, tmp_path: Path) -> None:
    with reader(tmp_path) as here:
        for block in blocks(page):
            here.read(block)
