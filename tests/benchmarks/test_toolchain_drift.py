"""Winners compiled by several versions of Triton: resumed, bounded, compared; and spills found in machine code."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import triton

from autotune.executor.messages import to_plain
from autotune.platforms.nvidia_machine_code import steady_spills
from autotune.table import shipped_compilations, write_shipped
from autotune.trial import Outcome, Resources, Status, Trial
from benchmarks.merge import RESULTS
from benchmarks.toolchain_drift import __main__ as command
from benchmarks.toolchain_drift import book, tritons
from benchmarks.toolchain_drift.book import SERIES
from benchmarks.toolchain_drift.tritons import UnavailableError, compile_with, fetch
from tests import sample

LENGTHS = (256, 512, 1024)


def answer(trial: Trial, *, spills: int = 0, status: Status = Status.OK, message: str = "") -> dict[str, Any]:
    resources = Resources(98304, 168, 4 * spills)
    outcome = Outcome(candidate=trial.candidate, status=status, message=message, resources=resources)
    return {"outcome": to_plain(outcome), "loop_spills": spills if status is Status.OK else None}


class FakeTritons:
    """Compiles nothing: 3.9 spills in loops at 512 and refuses 1024; notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.ends_after = 99

    def fetch(self, series: str, folder: Path) -> Path | None:
        return None if series == "3.6" else Path(series)

    def compile(self, packages: Path | None, trials: Sequence[Trial]) -> Iterator[tuple[str, Trial, dict[str, Any]]]:
        series = "3.6" if packages is None else str(packages)
        for number, trial in enumerate(trials):
            if number == self.ends_after:
                raise RuntimeError(f"triton {series}.0 compiled {number} of {len(trials)} rows")
            length = trial.shape.seq_q  # type: ignore[attr-defined]
            self.asked.append((series, length))
            found = {"spills": 0}
            if series == "3.9" and length == 512:
                found = {"spills": 91}
            if series == "3.9" and length == 1024:
                found = {"status": Status.COMPILE_ERROR, "message": "PassManager::run failed"}  # type: ignore[dict-item]
            yield f"{series}.0", trial, answer(trial, **found)  # type: ignore[arg-type]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeTritons:
    made = FakeTritons()
    monkeypatch.setattr(command, "fetch", made.fetch)
    monkeypatch.setattr(book, "compile_with", made.compile)
    return made


@pytest.fixture
def results(tmp_path: Path) -> Path:
    winners = [
        sample.trial(sample.shape(length), started_at=sample.START + timedelta(seconds=length)) for length in LENGTHS
    ]
    older = sample.trial(sample.shape(2048), source_hash="0" * 64)
    write_shipped(Path("nvidia_h200/flash_attention/triton.parquet"), [*winners, older], results=tmp_path)
    return tmp_path


def run(results: Path, *arguments: str) -> None:
    command.main(["--results", str(results), *arguments])


def test_every_winner_of_todays_source_is_compiled_once_by_each(
    fake: FakeTritons, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(results)
    assert fake.asked == [(series, length) for series in SERIES for length in LENGTHS]
    printed = capsys.readouterr().out
    assert "| flash_attention/triton on NVIDIA H200 | 3.9 | 3 | 1 | 1 | 0 | 0 | 0 | 0 | 0 |" in printed
    assert "**168 / 364 / 91 / 98,304** | 1 |" in printed
    assert "**compile_error: PassManager::run failed** | 1 |" in printed
    fake.asked.clear()
    run(results)
    assert (fake.asked, capsys.readouterr().out) == ([], printed)


def test_a_run_is_bounded_and_goes_on_where_it_was_interrupted(
    fake: FakeTritons, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(results, "--triton", "3.9", "--count", "1")
    assert fake.asked == [("3.9", 256)]
    run(results, "--triton", "3.9", "--minutes", "0", "--operation", "paged_decode")
    assert fake.asked == [("3.9", 256)]
    fake.ends_after = 1
    with pytest.raises(SystemExit, match=r"benchmarks.toolchain_drift: triton 3\.9\.0 compiled 1 of 2 rows"):
        run(results, "--triton", "3.9")
    fake.ends_after = 99
    run(results, "--triton", "3.9", "--json")
    assert fake.asked == [("3.9", length) for length in LENGTHS]
    found = shipped_compilations("flash_attention", results=results)
    assert sorted((row.shape.seq_q, row.loop_spills, row.refusal) for row in found) == [  # type: ignore[attr-defined]
        (256, 0, ""),
        (512, 91, ""),
        (1024, None, "compile_error: PassManager::run failed"),
    ]
    printed = capsys.readouterr().out
    sheets = json.loads(printed[printed.rindex("\n[") :])
    assert [sheet["title"] for sheet in sheets][::2] == ["What each Triton changes", "Side by side"]


def test_what_the_own_triton_makes_otherwise_than_the_row_says_is_told(
    fake: FakeTritons, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = sample.trial(sample.shape(256), resources=Resources(98304, 170, 0))
    write_shipped(Path("nvidia_h200/flash_attention/triton.parquet"), [odd], results=results)
    run(results, "--triton", "3.6")
    assert "registers 170 stored, 168 here |" in capsys.readouterr().out


def test_what_is_of_no_winner_is_forgotten_when_asked(fake: FakeTritons, results: Path) -> None:
    run(results, "--triton", "3.9")
    kept = sample.trial(sample.shape(512))
    write_shipped(Path("nvidia_h200/flash_attention/triton.parquet"), [kept], results=results)
    run(results, "--triton", "3.9")
    assert len(shipped_compilations("flash_attention", results=results)) == 3
    run(results, "--triton", "3.9", "--prune")
    assert [row.shape for row in shipped_compilations("flash_attention", results=results)] == [kept.shape]


def test_a_lack_of_memory_is_no_refusal() -> None:
    trial = sample.trial()
    assert book.as_compilation(trial, "3.9.0", answer(trial, status=Status.OUT_OF_MEMORY)) is None


def test_the_installed_series_needs_no_folder_and_another_is_fetched_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, Path]] = []

    def install(requirement: str, target: Path) -> None:
        asked.append((requirement, target))
        (target / "triton-3.9.0.dist-info").mkdir(parents=True)

    monkeypatch.setattr(tritons, "install", install)
    assert fetch(".".join(triton.__version__.split(".")[:2]), tmp_path) is None
    monkeypatch.setattr(tritons, "installed_version", lambda library: "3.6.0")
    assert fetch("3.9", tmp_path) == fetch("3.9", tmp_path) == tmp_path / "triton-3.9"
    assert asked == [("triton==3.9.*", tmp_path / "triton-3.9")]


def test_what_pip_cannot_fetch_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(program: list[str], **options: Any) -> None:
        raise subprocess.CalledProcessError(1, program, stderr="no route to host\n")

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(UnavailableError, match=r"triton==3\.9\.\* cannot be fetched: no route to host"):
        tritons.install("triton==3.9.*", tmp_path)


@pytest.mark.slow
def test_the_installed_triton_compiles_a_winner_to_what_its_row_stores(tmp_path: Path) -> None:
    trial = next(
        each
        for each in book.winners_of("flash_attention", "triton", RESULTS)
        if each.outcome.resources.spill_bytes == 0
    )
    ((version, answered, found),) = compile_with(None, [trial])
    assert (version, answered) == (triton.__version__, trial)
    row = book.as_compilation(trial, version, found)
    stored = trial.outcome.resources
    assert row is not None
    assert (row.refusal, row.loop_spills) == ("", 0)
    if version == trial.toolchain.triton:
        assert (row.registers, row.spill_bytes, row.shared_bytes) == (
            stored.registers,
            stored.spill_bytes,
            stored.shared_bytes,
        )


@pytest.mark.slow
def test_a_process_that_cannot_compile_is_an_error(tmp_path: Path) -> None:
    broken = tmp_path / "triton"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('a broken build')\n")
    with pytest.raises(RuntimeError, match=r"compiled 0 of 1 rows"):
        list(compile_with(tmp_path, [sample.trial()]))


def code_of(*instructions: str) -> str:
    lines = (f"        /*{16 * place:04x}*/    {text} ;" for place, text in enumerate(instructions))
    return "\n".join(lines)


LOOP = ("HGMMA.64x64x16.F32.BF16 R24, gdesc[UR8]", "MUFU.EX2 R3, R3")


@pytest.mark.parametrize(
    ("instructions", "spills"),
    [
        (("STL [R1], R2", *LOOP, "BRA 0x10", "LDL R2, [R1]"), 0),
        (("STL [R1], R2", *LOOP, "LDL R2, [R1]", "STL.64 [R1+0x8], R2", "@P0 BRA 0x10"), 2),
        # The loop that masks is longer: a spill there is no spill in the steady loop.
        ((*LOOP, "BRA 0x0", *LOOP, "LDL R2, [R1]", "ISETP R2", "BRA 0x30"), 0),
        # An outer loop holds the steady one, and a short one has no product.
        (("LDL R2, [R1]", *LOOP, "BRA 0x10", "LDL R3, [R1]", "BRA 0x40", "BRA 0x0"), 0),
        # Without tensor cores the loop with multiplications counts, and without a loop all of it.
        (("LDL R2, [R1]", "FFMA R1, R2, R3, R4", "STL [R1], R2", "BRA 0x10"), 1),
        (("LDL R2, [R1]", *LOOP, "STL [R1], R2", "EXIT"), 2),
        (("LDLX", "EXIT"), 0),
    ],
    ids=["outside", "inside", "masks", "outer", "without products", "without a loop", "another instruction"],
)
def test_spills_in_steady_loops_are_counted(instructions: tuple[str, ...], spills: int) -> None:
    assert steady_spills(code_of(*instructions)) == spills


def test_the_command_explains_itself() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "benchmarks.toolchain_drift", "--help"], capture_output=True, text=True, check=True
    )
    assert "What is recorded already is not compiled again" in said.stdout
