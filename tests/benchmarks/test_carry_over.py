"""Tables that outlive a change of the kernels' source: rows of which both sources compile the same, and no other."""

import functools
import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from autotune.registry import get_implementation
from autotune.table import shipped_sweeps, shipped_winners, write_shipped
from autotune.trial import Candidate, Trial
from benchmarks import carry_over, compiled_rows
from benchmarks.carry_over import ROOT, CompiledTree, as_request, compare, compile_in, shipped_tables
from benchmarks.compiled_rows import name_constants
from tests import sample

OLD, NEW, OTHER = "a" * 64, "b" * 64, "c" * 64
FOLDER = Path("nvidia_h200/flash_attention")
TRITON = get_implementation("flash_attention", "triton")


def row(length: int, source_hash: str = OLD, **changes: Any) -> Trial:
    made = sample.trial(sample.shape(length, **changes), source_hash=source_hash)
    return replace(made, started_at=made.started_at + timedelta(seconds=length))


def compiled(source_hash: str, *digests: str | None) -> CompiledTree:
    return CompiledTree(source_hash, [None if digest is None else {"digest": digest} for digest in digests])


def test_a_row_of_the_earlier_source_is_today_s_where_both_compile_the_same() -> None:
    rows = [row(256), row(512), row(1024, OTHER), row(2048, NEW), row(4096)]
    before, now = compiled(OLD, "1", "2", "3", "4", None), compiled(NEW, "1", "0", "3", "4", None)
    found = carry_over.carry_over(rows, before, now)
    assert found == [row(256, NEW), row(512, OLD), row(1024, OTHER), row(2048, NEW), row(4096, OLD)]


def test_winners_and_sweeps_are_written_where_they_were(tmp_path: Path) -> None:
    winners, sweeps = [row(256), row(512)], {"one": [row(1024)], "two": [row(2048), row(4096)]}
    write_shipped(FOLDER / "triton.parquet", winners, results=tmp_path)
    for name, rows in sweeps.items():
        write_shipped(FOLDER / "sweeps" / f"triton_{name}.parquet", rows, results=tmp_path)
    tables = shipped_tables(TRITON, tmp_path)
    found = [each for table in tables.values() for each in table]
    assert found == [*winners, *sweeps["one"], *sweeps["two"]]
    carry_over.write_tables(tables, [replace(each, source_hash=NEW) for each in found], tmp_path)
    assert shipped_winners("flash_attention", results=tmp_path) == [row(256, NEW), row(512, NEW)]
    swept = {sweep.name: sweep.trials() for sweep in shipped_sweeps("flash_attention", results=tmp_path)}
    assert swept == {"triton_one": [row(1024, NEW)], "triton_two": [row(2048, NEW), row(4096, NEW)]}


def edited(tree: Path, file: str, before: str, after: str) -> Path:
    """A copy of this tree's package in which a file has other words."""
    for folder in ("autotune", "kernels", "search_spaces"):
        shutil.copytree(ROOT / folder, tree / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    text = (tree / file).read_text(encoding="utf-8")
    assert text.count(before) == 1
    (tree / file).write_text(text.replace(before, after), encoding="utf-8")
    return tree


FORWARD = "kernels/flash_attention/triton/forward.py"
LAUNCH = "kernels/flash_attention/triton/launch.py"

# One in 16 bits and one in float32, whose small heads and blocks compile fast; as winners, then as rows of a sweep.
FAST = Candidate("triton", sample.config(BLOCK_Q=64, BLOCK_K=32, num_warps=4))
FLOAT32 = row(512, dtype="float32", head_dim=32)
ROWS = (replace(row(256), default_timing=None), replace(FLOAT32, outcome=replace(FLOAT32.outcome, candidate=FAST)))
REQUESTS = [as_request(each, machine_code=machine_code) for machine_code in (True, False) for each in ROWS]


@functools.cache
def this_tree() -> CompiledTree:
    """Compile with today's sources, once in a process of the tests."""
    return compile_in([ROOT], REQUESTS)[0]


@pytest.mark.parametrize(
    ("file", "before", "after", "same"),
    [
        (FORWARD, '"""Fold the keys', '"""Fold keys, not the keys', [True, True]),
        ("kernels/tiles/precision.py", '"bf16x6" if', '"tf32x3" if', [True, False]),
        ("search_spaces/flash_attention/triton.py", "(64, 64, 2) if", "(64, 32, 2) if", [True, False]),
        ("kernels/tiles/softmax.py", "accumulator = tl.zeros([ROWS, WIDTH]", "accumulator = tl.nothing([ROWS]", None),
        ("kernels/tiles/softmax.py", "row_sum == 0.0, 1.0", "row_sum == 0.0, 2.0", [False, False]),
        (LAUNCH, "* batches * heads,)", "* batches * heads + 1,)", [False, False]),
        (LAUNCH, "else scale * LOG2_E", "else scale * LOG2_E + 1", [False, False]),
    ],
    ids=["docstring", "float32 alone", "its default", "what fails", "a constant", "the grid", "an argument's value"],
)
@pytest.mark.slow
def test_what_another_tree_compiles_and_launches_is_told_apart(
    file: str, before: str, after: str, same: list[bool] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By machine code and by intermediate code; the variable that is set for tests of numbers is not handed on."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    (then,), now = compile_in([edited(tmp_path / "tree", file, before, after)], REQUESTS), this_tree()
    assert now.source_hash == TRITON.source_hash
    assert len({*now.digests, None}) == 5
    assert then.digests == [None] * 4 if same is None else None not in then.digests
    alike = [was == digest for was, digest in zip(then.digests, now.digests, strict=True)]
    assert alike == 2 * (same or [False, False])
    assert [bool(each and each["binaries"]) for each in now.rows] == [True, True, False, False]


@pytest.mark.slow
def test_a_parameter_that_moved_changes_the_exact_digest_alone(tmp_path: Path) -> None:
    tree = edited(
        tmp_path / "tree", FORWARD, "heads, group, seq_q, seq_kv, window,", "group, heads, seq_q, seq_kv, window,"
    )
    path = tree / LAUNCH
    path.write_text(path.read_text().replace("*(heads, heads // kv_heads, seq_q", "*(heads // kv_heads, heads, seq_q"))
    (then,), now = compile_in([tree], REQUESTS[:1]), this_tree()
    assert then.digests == now.digests[:1]
    assert "identical but for places" in compare(ROWS[0], then.rows[0], now.rows[0])


def test_progress_is_said_on_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compiled_rows, "compile_row", lambda request: None)
    monkeypatch.setattr(compiled_rows, "PROGRESS_SECONDS", 0.0)
    assert compiled_rows.compile_rows(REQUESTS[:2], TRITON.title) == [None, None]
    printed = capsys.readouterr()
    assert printed.err == "".join(f"flash_attention/triton: {count} of 2 rows compiled\n" for count in (1, 2))
    assert printed.out == ""
    compiled_rows.compile_rows(REQUESTS[:2], "")
    assert capsys.readouterr().err == ""


def test_binaries_are_compared_in_words() -> None:
    binary = {"digest": "a", "exact": "b", "instructions": 8, "registers": 40, "stack_bytes": 0, "shared_bytes": 64}
    was = {"digest": "1", "binaries": [binary]}
    assert compare(row(256), was, was).endswith(": identical")
    other = {"digest": "2", "binaries": [binary | {"digest": "c", "exact": "d", "instructions": 9}]}
    assert "instructions 8 -> 9, registers 40 -> 40" in compare(row(256), was, other)
    assert compare(row(256), was, was | {"digest": "2"}).endswith("launches or default differ")
    assert compare(row(256), was, None).endswith("this tree does not compile it")


def test_the_order_of_constants_does_not_count() -> None:
    one = "  %c1 = arith.constant 1 : i32\n  %cst = arith.constant dense<2> : tensor<4xi32>\n  %0 = add %c1, %cst\n"
    other = "  %c = arith.constant dense<2> : tensor<4xi32>\n  %c1_0 = arith.constant 1 : i32\n  %0 = add %c1_0, %c\n"
    assert name_constants(one) == name_constants(other) != name_constants(one.replace("constant 1", "constant 3"))
    assert name_constants("arith.andi %1, %2 : i1") == name_constants("arith.andi %2, %1 : i1")


def test_a_revision_is_extracted_with_its_links(tmp_path: Path) -> None:
    carry_over.extract("HEAD", tmp_path)
    assert (tmp_path / "autotune" / "kernels" / "flash_attention" / "triton" / "forward.py").is_file()
    assert (tmp_path / "autotune" / "kernels").is_symlink()


def test_a_revision_that_is_none_is_refused_in_one_line() -> None:
    command = [sys.executable, "-m", "benchmarks.carry_over", "no-such-revision"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith("benchmarks.carry_over: ")
    assert "no-such-revision" in ended.stderr
    assert "Traceback" not in ended.stderr
