"""``autotune report``: which tables it reads, where it writes, and what it refuses."""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from html import unescape
from pathlib import Path

import pytest

from autotune.device import NVIDIA_H200
from autotune.errors import MissingDependencyError
from autotune.lab.bench.comparison import comparison_data
from autotune.lab.report import document
from autotune.table import write_comparisons
from tests import sample
from tests.cli.conftest import Machine, Ran
from tests.lab.bench.test_words import COMPARISON
from tests.lab.roofline.roofline_sample import saved_roofline
from tests.lab.stopping import assert_session

Run = Callable[..., Ran]


@pytest.fixture(autouse=True)
def no_forests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "shares_of", lambda problem: ({}, ""))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "page.html"


def test_the_users_tables_are_the_default(run: Run, machine: Machine, out: Path) -> None:
    machine.tune(sample.trial())
    machine.ship(sample.trial(sample.shape(4096)))
    ran = run("report", "--output", out)
    assert (ran.code, ran.err) == (0, "writing a page of 1 rows ...\n")
    assert re.fullmatch(rf"{out}: 1 rows of your tables in {machine.home}, \d+ kB\n", ran.out)
    page = out.read_text(encoding="utf-8")
    assert str(sample.shape(1024)) in page
    assert str(sample.shape(4096)) not in page


def test_all_that_ships_is_winners_and_sweeps(run: Run, machine: Machine, out: Path) -> None:
    machine.ship(sample.trial(sample.shape(4096)))
    rows = len(machine.ship_sweep(64)) + 1
    assert f"{rows} rows of the shipped tables" in run("report", "shipped", "--output", out).out
    page = out.read_text(encoding="utf-8")
    assert str(sample.shape(4096)) in page
    assert "A sweep: every valid config was tried" in page
    assert not machine.home.exists()


def test_the_winners_that_ship_are_those_that_show_lists(run: Run, machine: Machine, out: Path) -> None:
    """The race of a sweep, run later than the one of the winner's table, took 200 us."""
    machine.ship_sweep(1024)
    earlier = sample.START - timedelta(days=1)
    machine.ship(sample.trial(timing=sample.timing(190.0), race_id="earlier", started_at=earlier))
    run("report", "shipped", "--output", out)
    page = out.read_text(encoding="utf-8")
    winners = page[page.index("<caption>Winners") : page.index("<figure")]
    assert "190.0 us" in run("show").out
    assert "190.0 us" in winners
    assert "200.0 us" not in winners
    assert "The fastest takes 200 us at screening" in page
    run("report", "shipped", "--device", "NVIDIA H200", "--output", out)
    assert "190.0 us" in out.read_text(encoding="utf-8")
    run("report", "triton_1024", "--output", out)  # what the sweep alone tells
    assert "200.0 us" in out.read_text(encoding="utf-8")


def test_on_a_terminal_each_problem_is_named_as_it_comes(
    run: Run, machine: Machine, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.ship_sweep(64)
    assert run("report", "triton_64", "--output", out).err.count("\n") == 1
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda self: True)
    ran = run("report", "triton_64", "--output", out)
    assert ran.err.splitlines()[1:] == [f"problem 1 of 1: flash_attention, triton, {sample.shape(64)} ..."]


def test_a_sweep_is_read_by_name_and_a_table_by_path(
    run: Run, machine: Machine, out: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = len(machine.ship_sweep(64))
    monkeypatch.chdir(tmp_path)
    assert f"{rows} rows of the shipped sweep triton_64" in run("report", "triton_64").out
    by_name = Path("autotune-report.html").read_text(encoding="utf-8")
    path = machine.results / "nvidia_h200/flash_attention/sweeps/triton_64.parquet"
    assert f"{rows} rows of triton_64.parquet" in run("report", path, "--output", out).out
    by_path = out.read_text(encoding="utf-8")
    assert by_path.count("<rect") == by_name.count("<rect") > 50


def test_a_folder_is_read_as_a_store(run: Run, machine: Machine, out: Path) -> None:
    machine.tune(sample.trial())
    assert "1 rows of the tables in" in run("report", machine.home, "--output", out).out


def test_rows_are_narrowed_to_a_device_and_an_operation(run: Run, machine: Machine, out: Path) -> None:
    other = replace(NVIDIA_H200, name="NVIDIA B200", arch="sm_100")
    machine.tune(sample.trial(), sample.trial(device=other))
    assert "1 rows" in run("report", "--device", "NVIDIA B200", "--output", out).out
    assert "NVIDIA H200" not in out.read_text(encoding="utf-8")
    ran = run("report", "--operation", "paged_decode", "--output", out)
    assert ran.code == 1
    assert ran.err.startswith(f"autotune: no trials of paged_decode in your tables in {machine.home}; ")


@pytest.mark.parametrize("device", [None, "NVIDIA H200", "NVIDIA B200"])
def test_rows_outside_of_todays_spaces_are_listed_and_win_nothing(
    run: Run, machine: Machine, out: Path, device: str | None
) -> None:
    other = replace(NVIDIA_H200, name="NVIDIA B200", arch="sm_100")
    machine.tune(sample.trial(), sample.trial(device=other))
    machine.plant(sample.trial(sample.shape(2048)), BLOCK_Q=96)
    assert run("report", "--output", out, *(["--device", device] if device else [])).code == 0
    page = out.read_text(encoding="utf-8")
    assert str(sample.shape(2048)) not in page
    is_listed = device != "NVIDIA B200"
    assert ("Not of today's spaces: 1 more row, listed under Environment" in unescape(page)) == is_listed
    assert ("BLOCK_Q=96 is not one of" in page) == is_listed


def test_a_missing_evaluator_is_said_and_no_error(
    run: Run, machine: Machine, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autotune.lab.report import parameters

    def importance(space: object, device: object, outcomes: object, evaluator: str) -> dict[str, float]:
        if evaluator == "fANOVA":
            raise MissingDependencyError("fANOVA needs scikit-learn; `pip install scikit-learn`")
        return {"num_warps": 1.0}

    monkeypatch.setattr(parameters, "importance", importance)
    monkeypatch.setattr(document, "shares_of", parameters.shares_of)
    machine.ship_sweep(64)
    assert run("report", "triton_64", "--output", out).code == 0
    page = out.read_text(encoding="utf-8")
    assert "fANOVA needs scikit-learn" in page
    assert "By PED-ANOVA num_warps (100 %)" in page


def test_measured_rooflines_have_a_section(run: Run, machine: Machine, out: Path, tmp_path: Path) -> None:
    machine.tune(sample.trial())
    path = tmp_path / "roofline.json"
    path.write_text(json.dumps(saved_roofline()), encoding="utf-8")
    assert run("report", "--output", out).code == 0
    assert "Roofline, measured" not in out.read_text(encoding="utf-8")
    ran = run("report", "--roofline", path, "--roofline", path, "--output", out)
    assert ran.code == 0
    page = out.read_text(encoding="utf-8")
    assert page.count("NVIDIA H200, 132 SMs, 60 MiB of L2, bfloat16") == 2
    assert "naive -1.4 % at 1,024 and -0.4 % at 4,096" in page


def test_golden(run: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine.ship_sweep(64)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    Path("broken.json").write_text("{")
    given = (
        ("report", "--help"),
        ("report", "absent"),
        ("report", "triton_64", "--device", "Voodoo 2"),
        ("report", "triton_64", "--output", "/nonexistent/page.html"),
        ("report", "triton_64", "--roofline", "/nonexistent.json"),
        ("report", "triton_64", "--roofline", "broken.json"),
    )
    assert_session(Path(__file__).with_name("golden.txt"), *((each, run(*each)) for each in given))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("absent",), ("table='absent'", "no shipped sweep", "triton_64")),
        (("triton_64", "--device", "Voodoo 2"), ("--device='Voodoo 2'", "NVIDIA H200")),
        (("triton_64", "--operation", "sorting"), ("operation='sorting'", "flash_attention")),
        (("triton_64", "--output", "/nonexistent/page.html"), ("--output='/nonexistent/page.html'", "No such file")),
        (
            ("triton_64", "--roofline", "/nonexistent.json"),
            ("--roofline='/nonexistent.json'", "No such file", "--ncu --json"),
        ),
        (
            ("triton_64", "--roofline", __file__),
            (f"--roofline='{__file__}'", "is no JSON", "analyze roofline --ncu --json"),
        ),
    ],
)
def test_a_wrong_request_is_refused(
    run: Run, machine: Machine, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    machine.ship_sweep(64)
    ran = run("report", *arguments)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert all(word in ran.err for word in words), ran.err


def test_a_comparison_of_bench_is_refused_by_its_name(run: Run, tmp_path: Path, out: Path) -> None:
    path = tmp_path / "bench.parquet"
    write_comparisons(path, [comparison_data(COMPARISON)])
    ran = run("report", path, "--output", out)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(f"autotune: {path}: a comparison of `autotune bench`; report takes tables of trials, ")
    assert "`autotune bench --markdown` prints it as it measures" in ran.err
    assert not out.exists()


def test_a_damaged_file_fails_with_its_name(run: Run, tmp_path: Path, out: Path) -> None:
    path = tmp_path / "broken.parquet"
    path.write_bytes(b"PAR1 and no more")
    ran = run("report", path, "--output", out)
    assert ran.code == 1
    assert ran.err.startswith(f"autotune: {path}: cannot be read as Parquet")
    assert not out.exists()
