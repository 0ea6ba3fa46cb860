"""Tables that outlive a change of the kernels' source: rows of which both sources compile the same, and no other."""

import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from autotune.registry import get_operation
from autotune.table import shipped_sweeps, shipped_winners, write_shipped
from autotune.trial import Trial
from benchmarks import carry_over
from benchmarks.carry_over import ROOT, Compiled, compile_in
from benchmarks.intermediate_code import shipped_rows
from tests.report import sample

OLD, NEW, OTHER = "a" * 64, "b" * 64, "c" * 64
FOLDER = Path("nvidia_h200")


def row(length: int, source_hash: str = OLD, dtype: str = "bfloat16") -> Trial:
    made = sample.trial(sample.shape(length, dtype=dtype), source_hash=source_hash)
    return replace(made, started_at=made.started_at + timedelta(seconds=length))


def test_a_row_of_the_earlier_source_is_today_s_where_both_compile_the_same() -> None:
    rows = [row(256), row(512), row(1024, OTHER), row(2048, NEW), row(4096)]
    before, now = Compiled(OLD, ["1", "2", "3", "4", None]), Compiled(NEW, ["1", "0", "3", "4", None])
    found = carry_over.carry_over(rows, before, now)
    assert found == [row(256, NEW), row(512, OLD), row(1024, OTHER), row(2048, NEW), row(4096, OLD)]


def test_winners_and_sweeps_are_written_where_they_were(tmp_path: Path) -> None:
    winners, sweeps = [row(256), row(512)], {"one": [row(1024)], "two": [row(2048), row(4096)]}
    write_shipped(FOLDER / "flash_attention.parquet", winners, results=tmp_path)
    for name, rows in sweeps.items():
        write_shipped(FOLDER / "sweeps" / f"{name}.parquet", rows, results=tmp_path)
    found = list(shipped_rows("flash_attention", tmp_path))
    assert found == [*winners, *sweeps["one"], *sweeps["two"]]
    carry_over.write_tables("flash_attention", [replace(each, source_hash=NEW) for each in found], tmp_path)
    assert shipped_winners("flash_attention", results=tmp_path) == [row(256, NEW), row(512, NEW)]
    swept = {sweep.name: sweep.trials() for sweep in shipped_sweeps("flash_attention", results=tmp_path)}
    assert swept == {"one": [row(1024, NEW)], "two": [row(2048, NEW), row(4096, NEW)]}


def edited(tree: Path, file: str, before: str, after: str) -> Path:
    """A copy of this tree's package in which a file has other words."""
    for folder in ("autotune", "kernels", "search_spaces"):
        shutil.copytree(ROOT / folder, tree / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    text = (tree / file).read_text(encoding="utf-8")
    assert text.count(before) == 1
    (tree / file).write_text(text.replace(before, after), encoding="utf-8")
    return tree


@pytest.mark.parametrize(
    ("file", "before", "after", "same"),
    [
        ("kernels/flash_attention/forward.py", '"""Fold the keys', '"""Folds the keys', [True, True]),
        ("kernels/precision.py", '"bf16x6" if', '"tf32x3" if', [True, False]),
        ("search_spaces/flash_attention.py", "(64, 32, 1) if", "(64, 16, 1) if", [True, False]),
        ("kernels/flash_attention/forward.py", "tl.zeros([BLOCK_Q, BLOCK_DV]", "tl.nothing([BLOCK_Q]", [False, False]),
        ("kernels/flash_attention/forward.py", "row_sum == 0.0, 1.0", "row_sum == 0.0, 2.0", [False, False]),
        ("kernels/flash_attention/launch.py", "* batches * heads,)", "* batches * heads + 1,)", [False, False]),
        ("kernels/flash_attention/launch.py", "else scale * LOG2_E", "else scale * LOG2_E + 1", [False, False]),
    ],
    ids=["docstring", "float32 alone", "its default", "what fails", "a constant", "the grid", "an argument"],
)
def test_what_another_tree_compiles_and_launches_is_told_apart(
    file: str, before: str, after: str, same: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a variable that is set for tests of numbers nothing is seen, or nothing would be compiled."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    rows = [replace(row(256), default_timing=None), row(512, dtype="float32")]
    write_shipped(FOLDER / "flash_attention.parquet", rows, results=tmp_path / "results")
    tree = edited(tmp_path / "tree", file, before, after)
    then, now = compile_in([tree, ROOT], "flash_attention", tmp_path / "results")
    assert now.source_hash == get_operation("flash_attention").source_hash
    assert (then.source_hash == now.source_hash) == (same[0] and file != "kernels/precision.py")
    assert len({*now.digests, None}) == 3
    assert (None in then.digests) == ("tl.nothing" in after)
    assert [was == digest for was, digest in zip(then.digests, now.digests, strict=True)] == same


def test_a_revision_is_extracted_with_its_links(tmp_path: Path) -> None:
    carry_over.extract("HEAD", tmp_path)
    assert (tmp_path / "autotune" / "kernels" / "flash_attention" / "forward.py").is_file()
    assert (tmp_path / "autotune" / "kernels").is_symlink()


def test_a_revision_that_is_none_is_refused_in_one_line() -> None:
    command = [sys.executable, "-m", "benchmarks.carry_over", "no-such-revision"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith("benchmarks.carry_over: ")
    assert "no-such-revision" in ended.stderr
    assert "Traceback" not in ended.stderr
