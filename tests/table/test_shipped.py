"""Shipped tables are read as ``SHA256SUMS`` vouches for them, and are replaced without disagreeing for a moment."""

import errno
import itertools
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.errors import TableError
from autotune.table import shipped_sweeps, shipped_winners, write_shipped
from autotune.trial import Trial
from tests.table import sample
from tests.table.faults import fail_call

WINNERS = Path(f"nvidia_h200/{sample.NAME}/triton.parquet")
SWEEP = Path(f"nvidia_h200/{sample.NAME}/sweeps/triton_1k.parquet")
AMD_TRIAL = sample.trial(5, device=sample.MI300X, config=sample.config(kpack=1))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A results folder with winners of two devices and a sweep."""
    write_shipped(WINNERS, _trials(2, 1), results=tmp_path)
    write_shipped(Path(f"amd_instinct_mi300x/{sample.NAME}/triton.parquet"), [AMD_TRIAL], results=tmp_path)
    write_shipped(SWEEP, _trials(3, 4), results=tmp_path)
    return tmp_path


def _trials(*numbers: int) -> list[Trial]:
    return [sample.trial(number) for number in numbers]


def test_what_was_written_is_read(results: Path) -> None:
    assert shipped_winners(sample.NAME, results=results) == [*_trials(1, 2), AMD_TRIAL]
    (sweep,) = shipped_sweeps(sample.NAME, results=results)
    assert (sweep.name, sweep.device) == ("triton_1k", "nvidia_h200")
    assert (sweep.operation, sweep.implementation) == (sample.NAME, "triton")
    assert sweep.trials() == _trials(3, 4)
    assert shipped_winners("flash_attention", results=results) == []
    assert shipped_sweeps("flash_attention", results=results) == []


def test_sha256sum_agrees(results: Path) -> None:
    checked = subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=results, capture_output=True)
    assert checked.returncode == 0, checked.stderr
    assert len(checked.stdout.splitlines()) == 3


def test_sha256sum_writes_what_is_read(results: Path) -> None:
    tables = sorted(str(path.relative_to(results)) for path in results.rglob("*.parquet"))
    sums = subprocess.run(["sha256sum", *tables], cwd=results, capture_output=True, check=True).stdout
    (results / "SHA256SUMS").write_bytes(sums)
    assert len(shipped_winners(sample.NAME, results=results)) == 3


def test_a_folder_without_tables_or_no_folder_is_empty(tmp_path: Path) -> None:
    for results in (tmp_path, tmp_path / "absent"):
        assert shipped_winners(sample.NAME, results=results) == []
        assert shipped_sweeps(sample.NAME, results=results) == []


def test_the_package_ships_tables_that_are_all_read() -> None:
    assert shipped_winners(sample.NAME) == []
    assert all(trial.operation == "flash_attention" for trial in shipped_winners("flash_attention"))


DAMAGE: dict[str, tuple[str, Callable[[Path], object]]] = {
    "flipped": ("damaged: its SHA-256", lambda path: path.write_bytes(b"\0" + path.read_bytes()[1:])),
    "truncated": ("damaged: its SHA-256", lambda path: path.write_bytes(path.read_bytes()[:-1])),
    "missing": ("No such file", lambda path: path.unlink()),
    "exchanged": (
        "damaged: its SHA-256",
        lambda path: shutil.copy(path.parents[2] / SWEEP, path),
    ),
    "unlisted": (
        "not listed",
        lambda path: _edit_sums(path, lambda line: "" if line.endswith(f"  {WINNERS}\n") else line),
    ),
}


def _edit_sums(path: Path, edit: Callable[[str], str]) -> None:
    sums = path.parents[2] / "SHA256SUMS"
    sums.write_text("".join(edit(line) for line in sums.read_text().splitlines(keepends=True)))


@pytest.mark.parametrize(("reason", "damage"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_table_is_refused_by_name_and_the_others_stay(
    results: Path, reason: str, damage: Callable[[Path], object]
) -> None:
    damage(results / WINNERS)
    with pytest.raises(TableError, match=reason) as caught:
        shipped_winners(sample.NAME, results=results)
    assert str(results / WINNERS) in str(caught.value)
    found: list[TableError] = []
    assert shipped_winners(sample.NAME, results=results, on_damaged=found.append) == [AMD_TRIAL]
    assert len(found) == 1
    for slug, sound in (("nvidia_h200", []), ("amd_instinct_mi300x", [AMD_TRIAL]), ("absent", [])):  # by its whole path
        refused: list[TableError] = []
        rows = shipped_winners(
            sample.NAME, implementation="triton", slug=slug, results=results, on_damaged=refused.append
        )
        assert (rows, list(map(str, refused))) == (sound, [str(found[0])] if slug == "nvidia_h200" else [])


@pytest.mark.parametrize(
    "line", ["short  a.parquet", f"{'0' * 64}  ../a.parquet", f"{'0' * 64}  /etc/passwd", f"{'0' * 64}  a b", "\0"]
)
def test_a_malformed_list_is_refused_with_its_line(results: Path, line: str) -> None:
    with (results / "SHA256SUMS").open("a") as sums:
        sums.write(f"{line}\n")
    with pytest.raises(TableError, match="SHA256SUMS: line 4: "):
        shipped_winners(sample.NAME, results=results)
    found: list[TableError] = []
    assert shipped_winners(sample.NAME, results=results, on_damaged=found.append) == []
    assert shipped_sweeps(sample.NAME, results=results, on_damaged=found.append) == []
    assert len(found) == 2


def test_a_sweep_is_checked_when_listed_and_again_when_read(results: Path) -> None:
    (sweep,) = shipped_sweeps(sample.NAME, results=results)
    (results / SWEEP).write_bytes(b"other")
    with pytest.raises(TableError, match="damaged"):
        sweep.trials()
    with pytest.raises(TableError, match="damaged"):
        shipped_sweeps(sample.NAME, results=results)


@pytest.mark.parametrize(
    "path",
    [
        "nvidia_h200/other_operation/triton.parquet",
        "nvidia_h200/table_sample/foreign.parquet",
        "nvidia_a100/table_sample/triton.parquet",
        "table_sample/triton.parquet",
        "nvidia_h200/table_sample.parquet",
        "nvidia_h200/table_sample/sweeps/deep/triton_er.parquet",
        "nvidia_h200/table_sample/sweeps/foreign_er.parquet",
        "nvidia_h200/table_sample/sweeps/triton_name.txt",
        "nvidia_h200/table_sample/sweeps/triton_a b.parquet",
        "../nvidia_h200/table_sample/triton.parquet",
    ],
)
def test_a_path_that_no_reader_would_look_at_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(TableError):
        write_shipped(Path(path), _trials(1), results=tmp_path / "results")
    assert [entry for entry in tmp_path.rglob("*") if entry.is_file()] == []


def test_a_failure_at_any_call_leaves_the_old_table_or_the_new(results: Path) -> None:
    old, new = _trials(1, 2), _trials(7)
    for fatal in itertools.count(1):
        write_shipped(WINNERS, old, results=results)
        with pytest.MonkeyPatch.context() as monkeypatch:
            calls = fail_call(monkeypatch, fatal, errno.ENOSPC)
            try:
                write_shipped(WINNERS, new, results=results)
            except TableError as error:
                refusal = str(error)
            else:
                assert calls() == fatal - 1 >= 12  # three files of four calls
                assert shipped_winners(sample.NAME, results=results) == [AMD_TRIAL, *new]
                return
        assert os.strerror(errno.ENOSPC) in refusal
        assert shipped_winners(sample.NAME, results=results) in ([*old, AMD_TRIAL], [AMD_TRIAL, *new])
