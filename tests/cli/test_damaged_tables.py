"""A damaged table: who only reads goes on without it and says so, who would write beside it refuses in one line."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.table import Store, grid_path, write_portfolio, write_shipped
from autotune.table.compilations import write_compilations
from tests import sample
from tests.cli.conftest import Machine, Ran

Run = Callable[..., Ran]

READERS = ("show", "lookup", "export", "explain", "search --dry-run")
RESTORE = "`git checkout -- results` in the clone, or installing the package again, brings it back"


def told(part: Path) -> str:
    """Name a part of the user's in a message, by its folder and the start of its digest."""
    return f"{part.parent.name}/{part.stem[:12]}...: damaged"


def halve(path: Path) -> Path:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    return path


@pytest.fixture
def users(machine: Machine) -> Path:
    """The user's only part, damaged, beside shipped winners and a sweep."""
    machine.ship_sweep(64)
    machine.ship(sample.trial())
    machine.tune(sample.trial(timing=sample.timing(190)))
    (part,) = machine.home.rglob("*.parquet")
    return halve(part)


@pytest.mark.parametrize("command", READERS)
def test_a_reader_uses_the_rest_and_warns_once_with_what_sets_the_file_aside(
    run: Run, machine: Machine, users: Path, command: str
) -> None:
    arguments = [*command.split(), *([str(sample.FAST)] if command == "explain" else [])]
    with pytest.warns(RuntimeWarning) as warned:
        ran = run(*arguments)
    assert (ran.code, ran.err) == (0, "")
    start = users.with_name(users.stem[:12])
    assert [str(warning.message) for warning in warned] == [
        f"{told(users)}: its SHA-256 is not its name; `mv {start}*.parquet {start}.parquet.damaged` sets it aside, and "
        "no other row is lost; its rows are not used"
    ]
    assert list(machine.home.rglob("*.parquet")) == [users]


@pytest.mark.parametrize("command", ["show", "lookup"])
def test_the_shipped_row_answers_in_place_of_a_damaged_one(run: Run, users: Path, command: str) -> None:
    with pytest.warns(RuntimeWarning, match="damaged"):
        (found,) = json.loads(run(command, "--json").out)
    assert found.get("row", found)["timing"]["median_us"] == 200


@pytest.mark.parametrize("command", ["show", "lookup", "export", "explain"])
def test_a_damaged_shipped_table_is_told_with_what_brings_it_back(run: Run, machine: Machine, command: str) -> None:
    machine.ship(sample.trial())
    machine.tune(sample.trial(timing=sample.timing(190)))
    table = halve(machine.results / "nvidia_h200" / "flash_attention" / "triton.parquet")
    with pytest.warns(RuntimeWarning) as warned:
        ran = run(command, *([str(sample.FAST)] if command == "explain" else []))
    (text,) = [str(warning.message) for warning in warned]
    assert text.startswith(f"{table}: damaged")
    assert text.endswith(f"; {RESTORE}; its rows are not used")
    assert (ran.code, ran.err) == (0, "")
    assert "190" in ran.out


def test_a_search_refuses_in_one_line_until_the_named_command_was_run(
    run: Run, machine: Machine, users: Path, confirmed: object
) -> None:
    ran = run("search", "--seq", "64", "--trials", "3")  # a second line would be a warning, which fails here
    assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1)
    assert ran.err.startswith(f"autotune: {told(users)}")
    assert list(machine.home.rglob("*.parquet")) == [users]
    command = ran.err.split("`")[1]
    subprocess.run(command, shell=True, check=True)
    assert run("search", "--seq", "64", "--trials", "3").code == 0
    assert users.with_name(f"{users.stem[:12]}.parquet.damaged").exists()
    assert run("show").err == ""


def test_the_named_command_quotes_a_path_that_a_shell_would_split(run: Run, machine: Machine, tmp_path: Path) -> None:
    machine.ship_sweep(64)
    (part,) = map(halve, Store(tmp_path / "my tables; exit 3").append([sample.trial()]))
    ran = run("search", "--seq", "64", "--tables", tmp_path / "my tables; exit 3")
    subprocess.run(ran.err.split("`")[1], shell=True, check=True)
    assert [path.name for path in part.parent.iterdir()] == [f"{part.stem[:12]}.parquet.damaged"]


def test_another_device_s_damaged_part_does_not_stop_a_search(
    run: Run, machine: Machine, users: Path, confirmed: object
) -> None:
    other = machine.home / "nvidia_b200" / "flash_attention" / users.name
    other.parent.mkdir(parents=True)
    users.rename(other)
    with pytest.warns(RuntimeWarning, match="its rows are not used"):  # another kind's winners are tried first
        assert run("search", "--seq", "64", "--trials", "3").code == 0


def test_the_doctor_names_every_damaged_table_and_fails(run: Run, machine: Machine, users: Path) -> None:
    machine.tune(sample.trial(number=2))
    (second,) = set(machine.home.rglob("*.parquet")) - {users}
    halve(second)
    ran = run("doctor")
    assert ran.code == 1
    assert all(told(part) in ran.out for part in (users, second))
    assert ran.err == "autotune: 2 tables cannot be read: see `your tables`, `table`\n"
    findings = json.loads(run("doctor", "--json").out)
    assert [finding["ok"] for finding in findings if "damaged" in finding["text"]] == [False, False]


def test_the_doctor_names_a_damaged_sweep(run: Run, machine: Machine) -> None:
    machine.ship_sweep(64)
    sweep = halve(machine.results / "nvidia_h200" / "flash_attention" / "sweeps" / "triton_64.parquet")
    ran = run("doctor")
    assert (ran.code, ran.err) == (1, "autotune: 1 table cannot be read: see `shipped tables`\n")
    assert f"{sweep}: damaged" in ran.out
    assert RESTORE in ran.out


def test_the_doctor_names_a_damaged_grid(run: Run, machine: Machine) -> None:
    rows = sample.sweep(sample.shape())[:9]
    write_shipped(grid_path(rows[0]), rows, results=machine.results)
    grid = halve(machine.results / "nvidia_h200" / "flash_attention" / "grids" / "triton.parquet")
    ran = run("doctor")
    assert ran.code == 1
    assert f"{grid}: damaged" in ran.out


@pytest.mark.parametrize("kind", ["portfolios", "compilations"])
@pytest.mark.parametrize("spoil", [halve, Path.unlink], ids=["damaged", "missing"])
def test_the_doctor_names_each_file_of_what_is_computed_once(
    run: Run, machine: Machine, kind: str, spoil: Callable[[Path], object]
) -> None:
    write_portfolio([sample.assignment()], results=machine.results)
    write_compilations([sample.compilation("3.6.0")], results=machine.results)
    path = machine.results / "sm_90" / "flash_attention" / kind / "triton.parquet"
    spoil(path)
    ran = run("doctor")
    assert ran.code == 1
    assert ran.err.startswith("autotune: 1 table cannot be read: see ")
    assert ran.out.count(f" {path}: ") == 1


def test_the_doctor_names_a_missing_part_that_a_list_names(run: Run, machine: Machine) -> None:
    machine.tune(sample.trial())
    Store(machine.home).compact("flash_attention", sample.trial().device)
    assert run("doctor").code == 0
    (part,) = machine.home.rglob("*.parquet")
    part.unlink()
    ran = run("doctor")
    assert ran.code == 1
    assert f"{part}: not there, and {part.parent / 'SHA256SUMS'} names it" in ran.out
    assert run("tables", "compact").code == 0
    assert run("doctor").code == 0


def test_only_the_damaged_sweep_itself_cannot_be_exported(run: Run, machine: Machine) -> None:
    for seq in (64, 128):
        machine.ship_sweep(seq)
    sweep = halve(machine.results / "nvidia_h200" / "flash_attention" / "sweeps" / "triton_64.parquet")
    refused = run("export", "--format", "t4", "--sweep", "triton_64")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith(f"autotune: {sweep}: damaged")
    assert refused.err.endswith(f"; {RESTORE}\n")
    assert run("export", "--format", "t4", "--sweep", "triton_128").code == 0


def test_the_warning_of_a_real_process_is_one_line_on_standard_error(users: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "autotune", "lookup"], env=os.environ, capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr.startswith(f"autotune: {told(users)}")
    assert (done.stderr.count("\n"), done.stderr.endswith("; its rows are not used\n")) == (1, True)


@pytest.mark.parametrize(
    "command", ["show --tables", "export --tables", "explain BLOCK_Q=64 --tables", "search --tables", "report"]
)
@pytest.mark.parametrize("inside", ["", "nvidia_h200", "nvidia_h200/flash_attention"])
def test_the_shipped_layout_is_no_folder_of_tables_of_a_search(
    run: Run, machine: Machine, command: str, inside: str
) -> None:
    machine.ship_sweep(64)
    machine.ship(sample.trial())
    before = sorted(machine.results.rglob("*"))
    ran = run(*command.split(), machine.results / inside)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "named by their SHA-256" in ran.err
    assert "mv" not in ran.err
    assert sorted(machine.results.rglob("*")) == before


@pytest.mark.parametrize("command", READERS)
def test_a_file_that_no_search_wrote_is_told_without_a_command_that_renames_it(
    run: Run, machine: Machine, command: str
) -> None:
    machine.ship_sweep(64)
    machine.ship(sample.trial())
    machine.tune(sample.trial())
    (part,) = machine.home.rglob("*.parquet")
    (stray := part.with_name("x.parquet")).write_bytes(part.read_bytes())
    with pytest.warns(RuntimeWarning) as warned:
        run(*command.split(), *([str(sample.FAST)] if command == "explain" else []))
    (text,) = {str(warning.message) for warning in warned}
    assert text.startswith(f"{stray}: not named by its SHA-256")
    assert "mv" not in text
    assert "damaged" not in text
