"""Printed text is compared with what a page shows, and a difference is seen."""

from pathlib import Path

import pytest

from tests.docs.blocks import Block
from tests.docs.running import is_shown, reader, renew, transcript

PAGE = Path(__file__)


@pytest.mark.parametrize(
    ("printed", "shown", "equal"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a\nb\n", "a\n", False),
        ("a\nb\nc\n", "a\n...\nc\n", True),
        ("a\nc\n", "a\n...\nc\n", True),
        ("a\nb\nc\n", "...\nc\n", True),
        ("a\nb\nc\n", "a\n...\n", True),
        ("a\nb\nc\n", "...\nb\n", False),
        ("in 12.5 s\n", "in 3 s\n", True),
        ("in 12.5 us\n", "in 3 us\n", False),
        ("saved /home/x/y (ok)\n", "saved ... (ok)\n", True),
        ("1 * 2\n", "1 + 2\n", False),
        ("anything\n", "", True),
    ],
)
def test_dots_and_seconds_stand_for_others(printed: str, shown: str, equal: bool) -> None:
    assert is_shown(printed, shown) is equal


def test_lines_of_a_page_are_written_anew_by_their_first_word() -> None:
    printed = "shape 5\nwhy    nearest\nwhy    far\nregret 1 %\n"
    assert renew(printed, "...\nwhy    default\nregret 2 %\n") == "...\nwhy    nearest\nregret 1 %\n"
    assert renew(printed, "why ... row\nnone 3\n") == "why ... row\nnone 3\n"


def test_a_page_is_written_anew_only_where_that_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("$ echo regret 4\nregret 5\n")
    block = Block(page, 1, "console", page.read_text())
    monkeypatch.setattr("tests.docs.blocks.ROOT", tmp_path)
    with reader(tmp_path / "reader") as here, pytest.raises(AssertionError, match="printed\nregret 4"):
        here.read(block)
    assert "regret 5" in page.read_text()
    monkeypatch.setenv("AUTOTUNE_GOLDEN", "write")
    with reader(tmp_path / "writer") as here:
        here.read(block)
    assert page.read_text() == "$ echo regret 4\nregret 4\n"


def test_a_transcript_is_commands_with_what_they_print() -> None:
    assert list(transcript("$ a\nx\ny\n$ b\n")) == [("a", "x\ny\n"), ("b", "")]


def test_a_page_is_read_in_order_and_its_mistakes_are_seen(tmp_path: Path) -> None:
    with reader(tmp_path) as page:
        page.read(Block(PAGE, 1, "python", "x = 1\nprint(x + 1)\n"))
        page.read(Block(PAGE, 2, "text", "2\n", "output"))
        page.read(Block(PAGE, 3, "python", "print(x + 2)\n", "file", "two.py"))
        page.read(Block(PAGE, 4, "console", "$ python -c 'print(3)'\n3\n$ ls two.py\ntwo.py\n"))
        page.read(Block(PAGE, 5, "bash", "exit 1\n", "not run", "needs a GPU"))
        page.read(Block(PAGE, 5, "console", "$ true\n$ exit 3\n", "exit", "3"))
        with pytest.raises(AssertionError, match="exit code 0"):
            page.read(Block(PAGE, 5, "bash", "true\n", "exit", "3"))
        page.read(Block(PAGE, 6, "bash", "exit 1\n", "needs", "no_such_package"))
        with pytest.raises(AssertionError, match=r"(?s)test_running\.py:7: .*NameError"):
            page.read(Block(PAGE, 7, "python", "print(y)\n"))
        with pytest.raises(AssertionError, match="exit code 1"):
            page.read(Block(PAGE, 8, "bash", "false\ntrue\n"))
        with pytest.raises(AssertionError, match="printed\n4"):
            page.read(Block(PAGE, 9, "console", "$ echo 4\n5\n"))
        with pytest.raises(AssertionError, match="printed\n2"):
            page.read(Block(PAGE, 10, "text", "3\n", "output"))
