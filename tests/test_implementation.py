"""The source hash changes with what the launch can reach, and with nothing else."""

import ast
import hashlib
import importlib.metadata
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune import implementation
from autotune.errors import UsageError
from autotune.implementation import Implementation, forget_sources, installed_version, source_hash
from autotune.search_spaces.flash_attention.flex import IMPLEMENTATION as FLEX
from autotune.search_spaces.flash_attention.gluon_hopper import IMPLEMENTATION as GLUON
from autotune.search_spaces.flash_attention.triton import IMPLEMENTATION
from autotune.trial import Toolchain
from tests import flex_sample, sample

SOURCE = '''"""A module."""

SCALE = 2  # a constant
UNUSED = 3


def launch(x):
    """Start here."""
    return helper(x) * SCALE


def helper(x):
    return x + 1


def stranger(x):
    return x - UNUSED


class Options:
    """Reached by nobody."""

    width: int = 1
'''


@pytest.fixture
def hash_of(tmp_path: Path) -> Callable[[str], str]:
    """Hash a text as the only source; every text has a file of its own, since hashes are remembered by path."""
    count = 0

    def hash_text(text: str) -> str:
        nonlocal count
        count += 1
        path = tmp_path / f"{count}.py"
        path.write_text(text)
        return source_hash((path,), ("launch",))

    return hash_text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""Start here."""', '"""Start elsewhere."""'),
        ('    """Start here."""\n', ""),
        ('"""A module."""', ""),
        ("  # a constant", "  # a comment"),
        ("return helper(x) * SCALE", "return (\n        helper(x)\n        * SCALE\n    )"),
        ("SCALE = 2 ", "SCALE   =   2 "),
        ("x - UNUSED", "x + UNUSED"),
        ("UNUSED = 3", "UNUSED = 4"),
        ("width: int = 1", "width: int = 2"),
    ],
)
def test_text_and_strangers_do_not_count(hash_of: Callable[[str], str], old: str, new: str) -> None:
    assert SOURCE.count(old) == 1
    assert hash_of(SOURCE.replace(old, new)) == hash_of(SOURCE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SCALE = 2", "SCALE = 3"),
        ("SCALE = 2", "SCALE = 2.0"),
        ("SCALE = 2", "SCALE: int = 2"),
        ("x + 1", "x - 1"),
        ("x + 1", "x + 2"),
        ("helper(x) * SCALE", "SCALE * helper(x)"),
        ("helper(x) * SCALE", "helper(x) * SCALE * UNUSED"),
        ("def launch(x):", "def launch(x, y=0):"),
        ("def helper(x):", "@cache\ndef helper(x):"),
    ],
)
def test_what_is_reached_counts(hash_of: Callable[[str], str], old: str, new: str) -> None:
    assert SOURCE.count(old) == 1
    assert hash_of(SOURCE.replace(old, new)) != hash_of(SOURCE)


def test_the_order_of_definitions_and_files_does_not_count(hash_of: Callable[[str], str], tmp_path: Path) -> None:
    first, second = tmp_path / "first.py", tmp_path / "second.py"
    first.write_text("SCALE = 2\n\n\ndef launch(x):\n    return helper(x) * SCALE\n")
    second.write_text("def helper(x):\n    return x + 1\n")
    assert source_hash((first, second), ("launch",)) == source_hash((second, first), ("launch",)) == hash_of(SOURCE)


def test_an_entry_must_exist(tmp_path: Path) -> None:
    (tmp_path / "source.py").write_text(SOURCE)
    with pytest.raises(KeyError, match="start"):
        source_hash((tmp_path / "source.py",), ("start",))


def assignments(path: Path) -> list[str]:
    """Lines that define a constant of a module by one literal or call."""
    tree = ast.parse(path.read_text())
    found = (node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None)
    return [ast.unparse(node) for node in found]


FLASH_SOURCES = IMPLEMENTATION.sources
KERNEL_CONSTANTS = [
    (ours, path.name, line)
    for ours in (IMPLEMENTATION, GLUON)
    for path in ours.sources
    if "flash_attention" in path.parts
    for line in assignments(path)
]


@pytest.mark.parametrize(("ours", "file", "line"), KERNEL_CONSTANTS)
def test_each_constant_of_a_flash_attention_kernel_counts(
    ours: Implementation[Any], file: str, line: str, tmp_path: Path
) -> None:
    copies = []
    for index, path in enumerate(ours.sources):
        tree = ast.parse(path.read_text())
        for node in tree.body:
            if path.name == file and ast.unparse(node) == line and isinstance(node, ast.Assign | ast.AnnAssign):
                node.value = ast.Constant(12345)
        copies.append(tmp_path / f"{index}.py")
        copies[-1].write_text(ast.unparse(tree))
    assert source_hash(tuple(copies), ours.entry) != ours.source_hash


def test_the_copy_alone_does_not_change_the_hash_of_flash_attention(tmp_path: Path) -> None:
    copies = []
    for index, path in enumerate(FLASH_SOURCES):
        copies.append(tmp_path / f"{index}.py")
        copies[-1].write_text(ast.unparse(ast.parse(path.read_text())))
    assert source_hash(tuple(copies), IMPLEMENTATION.entry) == IMPLEMENTATION.source_hash
    assert re.fullmatch("[0-9a-f]{64}", IMPLEMENTATION.source_hash)


def test_a_row_of_ours_is_of_this_source_whatever_measured_it() -> None:
    for toolchain in (sample.TOOLCHAIN, flex_sample.TOOLCHAIN, Toolchain("1")):
        assert IMPLEMENTATION.source_hash_under(toolchain) == IMPLEMENTATION.source_hash
        assert IMPLEMENTATION.is_source_of(sample.trial(toolchain=toolchain))
        assert not IMPLEMENTATION.is_source_of(sample.trial(toolchain=toolchain, source_hash="ab" * 32))


@pytest.mark.parametrize("installed", ["2.11.0+cpu", "2.13.0", ""])
def test_a_row_of_a_library_is_of_the_version_that_it_names(monkeypatch: pytest.MonkeyPatch, installed: str) -> None:
    flex_sample.install(monkeypatch, installed)
    measured = Toolchain("1", torch="2.11.0+cu130")
    assert FLEX.source_hash_under(measured) == hashlib.sha256(b"torch 2.11.0").hexdigest()
    row = flex_sample.trial(flex_sample.SMALL, toolchain=measured)
    assert FLEX.is_source_of(row)
    assert not FLEX.is_source_of(replace(row, toolchain=Toolchain("1", torch="2.13.0")))
    assert (row.source_hash == FLEX.source_hash) == installed.startswith("2.11.0")


def test_a_library_that_no_toolchain_names_is_the_installed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        implementation, "installed_version", lambda library: {"flash-attn": "2.8", "torch": "2.13"}[library]
    )
    foreign = replace(FLEX, library="flash-attn")
    assert foreign.source_hash_under(sample.TOOLCHAIN) == hashlib.sha256(b"flash-attn 2.8").hexdigest()
    assert FLEX.source_hash_under(Toolchain("1")) == hashlib.sha256(b"torch 2.13").hexdigest()


@pytest.mark.parametrize("library", ["triton", "torch", "numpy", "pytest", "no-such-library"])
def test_a_version_is_what_the_metadata_say(library: str) -> None:
    try:
        expected = importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        expected = ""
    assert installed_version(library) == expected


def test_a_version_is_found_in_metadata_of_another_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, odd = tmp_path / "older.egg-info", tmp_path / "odd-1.dist-info"
    old.mkdir()
    (old / "PKG-INFO").write_text("Metadata-Version: 1.0\nName: older\nVersion: 4.5\n")
    odd.mkdir()
    (odd / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nversion: 6.7\n\nVersion: 8.9\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [installed_version(name) for name in ("older", "odd")] == ["4.5", "6.7"]


def test_a_kernel_with_half_a_source_is_refused() -> None:
    given: list[dict[str, Any]] = [{"sources": ()}, {"entry": ()}]
    for changes in given:
        with pytest.raises(
            UsageError, match=r"^flash_attention/triton: sources=.* say nothing of its source; expected "
        ):
            replace(IMPLEMENTATION, **changes)
    replace(IMPLEMENTATION, sources=(), entry=(), library="torch")


def test_without_sources_all_that_the_kernel_imports_of_its_package_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("kernel", "from mine import rows\nKERNEL = rows"), ("rows", "STEP = 1"), ("other", "A = 1")):
        (tmp_path / "mine").mkdir(exist_ok=True)
        (tmp_path / "mine" / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    mine = replace(IMPLEMENTATION, kernel="mine.kernel:KERNEL", sources=(), entry=())
    before = mine.source_hash
    (tmp_path / "mine" / "other.py").write_text("A = 2")
    forget_sources()  # of what a process reads once
    assert mine.source_hash == before
    (tmp_path / "mine" / "rows.py").write_text("STEP = 2")
    forget_sources()
    assert mine.source_hash != before
