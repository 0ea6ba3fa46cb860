"""Every command takes an operation of a user's own, registered by a module that ``--import`` names."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from autotune.table import Store, write_shipped
from tests import sample
from tests.cli.conftest import Machine, Ran
from tests.outside import row_scale
from tests.outside.row_scale.space import RowShape

Run = Callable[..., Ran]
MODULE: Final = "tests.outside.row_scale.on_import"
SHAPE: Final = ("--shape", "rows=64,width=256")


@pytest.fixture
def own(run: Run, machine: Machine) -> Run:
    """Run a command that imports the module which registers the operation."""
    sys.modules.pop(MODULE, None)  # which registers again in the test that imports it
    with pytest.MonkeyPatch.context() as before:
        row_scale.register(before)
        for rows in (64, 128):
            trials = row_scale.sweep(RowShape(rows=rows, width=256), lambda at_once: 30.0 - at_once)
            write_shipped(Path(f"nvidia_h200/row_scale/sweeps/plain_{rows}.parquet"), trials, results=machine.results)
    return lambda *arguments: run(*arguments, "--import", MODULE)


def test_it_is_searched_and_served_shown_explained_exported_and_reported(
    own: Run, confirmed: list[Any], tmp_path: Path
) -> None:
    found = json.loads(own("search", *SHAPE, "--json").out)
    assert found[0]["shape"]["eps"] == 1e-6
    assert [(each["operation"], each["winner"]["config"]) for each in found] == [("row_scale", {"ROWS": 8})]

    (served,) = json.loads(own("lookup", *SHAPE, "--json").out)
    assert (served["rung"], served["config"], served["shape"]["rows"]) == ("exact", {"ROWS": 8}, 64)
    shown = own("show", "--operation", "row_scale")
    assert "rows 64, width 256, kind float16" in shown.out
    explained = own("explain", "ROWS=8", *SHAPE)
    assert "verdict   won" in explained.out
    exported = json.loads(own("export", "--operation", "row_scale").out)
    assert len(exported["rows"]) == 1
    page = tmp_path / "report.html"
    assert own("report", "--output", page).code == 0
    assert "row_scale" in page.read_text()


def test_several_shapes_are_several_searches(own: Run, confirmed: list[Any]) -> None:
    ran = own("search", "--shape", "rows=64,128,width=256", "--json")
    assert [each["shape"]["rows"] for each in json.loads(ran.out)] == [64, 128]
    other = own("lookup", "--shape", "rows=64,width=256,eps=1e-5").out
    assert "why     nearest: " in other  # a number of a shape is kept and compared as any field
    ran = own("search", "--shape", "rows=64,width=256", "--shape", "rows=128,width=256", "--dry-run")
    assert ran.out.count("row_scale/plain: rows ") == 2


def test_what_a_missing_table_advises_runs(own: Run, confirmed: list[Any]) -> None:
    advice = own("show", "--operation", "row_scale").out
    named = "--import tests.outside.row_scale.on_import --operation row_scale"
    assert f"`autotune search {named} --shape rows=INTEGER,width=INTEGER` finds some" in advice
    words = advice.split("`autotune ")[1].split("`")[0].replace("INTEGER", "64", 1).replace("INTEGER", "256")
    assert own(*words.split()).code == 0


def test_an_unrecorded_shape_advises_commands_that_take_it(own: Run) -> None:
    ran = own("search", "--shape", "rows=64,width=256,keep=true")
    assert ran.code == 1
    sizes = "--shape rows=64,width=256,keep=true"
    other = own("verify", "--operation", "row_scale", "--shape", "rows=64,width=256,kind=float32", "--budget", "1")
    assert other.code == 1
    for text in (ran.err, other.err):
        assert "recorded" in text
    assert own("search", *sizes.split(), "--dry-run").code == 0


def test_the_commands_refuse_what_they_cannot_read(own: Run, run: Run) -> None:
    ran = own("lookup", "--operation", "row_scale")
    assert (ran.code, ran.out) == (2, "")
    assert "--operation='row_scale' needs --shape with the fields of its own shapes: rows=INTEGER, " in ran.err
    ran = own("lookup", "--shape", "rows=64,width=x")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "autotune: --shape='rows=64,width=x': width='x' is not allowed; expected an integer\n"
    assert (
        "--shape='rows=64,width=2' and --from-misses"
        in run("search", "--from-misses", "--shape", "rows=64,width=2").err
    )


def test_a_config_is_explained_for_one_operation(own: Run) -> None:
    ran = own("explain", "ROWS=8", *SHAPE, "--shape", "batch=1,heads=2,seq_q=64,head_dim=64")
    assert (ran.code, ran.out) == (2, "")
    assert "shapes of row_scale and flash_attention: a config is of one operation; explain each" in ran.err


@pytest.mark.parametrize("broken", ["no_such_module", ".relative"])
def test_a_module_that_cannot_be_imported_is_named(run: Run, broken: str) -> None:
    ran = run("lookup", "--import", broken)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"autotune: --import='{broken}' cannot be imported: ")
    assert ran.err.endswith("; expected a module such as my_package.register, installed or below this folder\n")


def test_a_module_of_the_current_folder_is_found(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_kernels.py").write_text("import tests.outside.row_scale.on_import\n")
    sys.modules.pop(MODULE, None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    ran = run("lookup", "--import", "own_kernels", *SHAPE)
    sys.modules.pop("own_kernels", None)
    assert (ran.code, "kernel  plain" in ran.out) == (0, True)


def test_a_module_that_raises_is_named_with_what_it_raised(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raising_kernels.py").write_text("raise RuntimeError('no\\nlicence')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert (
        "'raising_kernels' cannot be imported: RuntimeError: no licence; "
        in run("show", "--import", "raising_kernels").err
    )


def test_rows_of_an_operation_that_is_not_registered_are_seen(run: Run, machine: Machine, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as before:
        row_scale.register(before)
        rows = row_scale.sweep(RowShape(rows=64, width=256), float)
        Store(machine.home).append(rows)
    kept = f"{len(rows)} rows kept and never served, "
    doctor = run("doctor").out
    assert kept in doctor
    assert "operation='row_scale' is unknown" in doctor
    ran = run("report", "--output", tmp_path / "page.html")
    assert ran.code == 1
    assert f"{kept}such as of row_scale: operation='row_scale' is unknown; " in ran.err
    machine.tune(sample.trial())
    assert run("report", "--output", tmp_path / "page.html").code == 0
    page = (tmp_path / "page.html").read_text()
    assert f"{len(rows)} more rows" in page
    assert "row_scale/plain" in page
