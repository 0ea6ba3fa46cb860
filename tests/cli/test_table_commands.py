"""``autotune tables``: what each command changes, its exit code, and JSON that says the same."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune import platforms
from autotune.correctness import Verdict
from autotune.executor import select
from autotune.search import Confirmation
from autotune.table import Store, write_portfolio
from autotune.table.compilations import write_compilations
from autotune.trial import Outcome, Status
from autotune.tuning import imports
from tests import sample
from tests.cli.conftest import Machine, Ran
from tests.dispatch.tables import SLOWER
from tests.test_revalidation import NewerGpu

Run = Callable[..., Ran]


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """The tables of another machine: one shape tuned otherwise, and one that nobody here has."""
    store = Store(tmp_path / "theirs")
    store.append([sample.trial(chosen=SLOWER, race_id="theirs", timing=sample.timing(180.0), number=5)])
    store.append([sample.trial(sample.shape(4096), race_id="more")])
    return store.root


def test_merge_adds_what_is_new_once_and_exits_with_1_on_refused_files(
    run: Run, machine: Machine, theirs: Path
) -> None:
    machine.tune(sample.trial())
    data = json.loads(run("tables", "merge", theirs, "--into", machine.home, "--json").out)
    assert (data["files"], data["rows"], data["added"], data["refused"]) == (2, 2, 2, [])
    assert "0 new" in run("tables", "merge", theirs, "--into", machine.home).out
    assert len(machine.kept()) == 3
    (theirs / "stray.parquet").write_bytes(b"PAR1")
    ran = run("tables", "merge", theirs, "--into", machine.home)
    assert (ran.code, "refused: " in ran.out, "stray.parquet" in ran.err) == (1, True, True)


def test_merge_reads_places_by_their_uris_and_from_the_environment(
    run: Run, machine: Machine, theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = theirs.parent / "place" / "tables"
    place.parent.mkdir()
    theirs.rename(place)
    ran = run("tables", "merge", f"file://{place.parent}", "--into", machine.home)
    assert (ran.code, "merged 2 rows of 2 files" in ran.out, "2 new" in ran.out) == (0, True, True)
    monkeypatch.setenv("AUTOTUNE_PLACE", f"file://{place.parent}")
    assert "0 new" in run("tables", "merge", "--into", machine.home).out
    (place / "stray.parquet").write_bytes(b"PAR1")
    ran = run("tables", "merge", "--into", machine.home)
    assert (ran.code, f"refused: {place}/stray.parquet: " in ran.out) == (1, True)


def test_merge_refuses_what_is_no_source(run: Run, machine: Machine, tmp_path: Path) -> None:
    for sources, why in {
        (): "set AUTOTUNE_PLACE",
        ("s3://KEY:SECRET@bucket/x",): "put the URI into AUTOTUNE_PLACE",
        (tmp_path / "absent",): "does not exist",
    }.items():
        ran = run("tables", "merge", *sources, "--into", machine.home)
        assert (ran.code, why in ran.err) == (2, True), ran.err
    (tmp_path / "empty").mkdir()
    ran = run("tables", "merge", f"file://{tmp_path / 'empty'}", "--into", machine.home)
    assert (ran.code, "no tables there" in ran.err) == (1, True)


def test_diff_says_what_moved_and_that_it_was_not_raced_together(run: Run, machine: Machine, theirs: Path) -> None:
    machine.tune(sample.trial())
    ran = run("tables", "diff", machine.home, theirs)
    assert ran.code == 0
    assert "moved: " in ran.out
    assert "not raced together" in ran.out
    assert ran.out.endswith("1 moved, 1 added\n")
    machine.tune(
        sample.trial(race_id="both", number=7, timing=sample.timing(220.0)),
        sample.trial(chosen=SLOWER, race_id="both", number=8, timing=sample.timing(200.0)),
    )
    changes = json.loads(run("tables", "diff", theirs, machine.home, "--json").out)["differences"]
    assert sorted(each["change"] for each in changes) == ["moved", "removed"]
    (race,) = [each["race"] for each in changes if each["race"]]
    assert (race["race_id"], race["before"]["median_us"], race["after"]["median_us"]) == ("both", 200.0, 220.0)


def test_diff_leaves_out_what_a_file_that_cannot_be_read_may_have(run: Run, machine: Machine, theirs: Path) -> None:
    machine.tune(sample.trial(), sample.trial(sample.shape(2048), race_id="kept"))
    for path in theirs.rglob("*.parquet"):
        path.write_bytes(path.read_bytes()[:-9])
    for folders, change in (((machine.home, theirs), "removed"), ((theirs, machine.home), "added")):
        ran = run("tables", "diff", *folders)
        assert (ran.code, f"{change}: " in ran.out) == (1, False)
        ending = "nothing else differs; left out, as the files that could not be read may have them: "
        assert ran.out.splitlines()[-1] == f"{ending}2 {change}"
    data = json.loads(run("tables", "diff", machine.home, theirs, "--json").out)
    assert (data["differences"], data["left_out"], len(data["refused"])) == ([], 2, 2)


def test_check_names_the_folder_of_a_race_that_cannot_be_read(run: Run, machine: Machine, theirs: Path) -> None:
    machine.ship(sample.trial())
    (theirs / "stray.parquet").write_bytes(b"PAR1")
    ran = run("tables", "check", "--against", machine.results, "--races", theirs)
    assert (ran.code, ran.err.startswith(f"autotune: 1 fault, the first is damaged: {theirs}/")) == (1, True)
    assert str(machine.results) not in ran.err


def test_check_fails_with_the_reason_and_passes_without_one(run: Run, machine: Machine) -> None:
    machine.ship(sample.trial())
    assert run("tables", "check", "--against", machine.results).code == 0
    rows = [
        sample.trial(race_id="new", number=3, started_at=sample.START.replace(day=22), timing=sample.timing(230.0)),
        sample.trial(
            chosen=SLOWER, race_id="new", number=4, started_at=sample.START.replace(day=22), timing=sample.timing(200.0)
        ),
    ]
    Store(machine.home).append(rows)
    ran = run("tables", "check", "--against", machine.results)
    assert ran.code == 1
    assert "slower: " in ran.err
    assert "15 % longer" in ran.err
    assert run("tables", "check", "--against", machine.results, "--slower", "20%").code == 0
    assert run("tables", "check", "--against", machine.results, "--slower", "20").code == 0
    ambiguous = run("tables", "check", "--against", machine.results, "--slower", "0.2")
    assert (ambiguous.code, ambiguous.out) == (2, "")
    assert "--slower='0.2' may mean two shares; expected percent with its sign, 20% or 0.2%" in ambiguous.err
    machine.ship(sample.trial(source_hash="cd" * 32))
    ran = run("tables", "check", "--against", machine.results, "--json")
    assert (ran.code, [each["kind"] for each in json.loads(ran.out)["faults"]]) == (1, ["stale", "slower"])
    assert "the kernel changed" in ran.err
    empty = machine.home.parent / "empty"
    empty.mkdir()
    assert run("tables", "check", "--against", empty).code == 1


def test_list_names_what_is_damaged(run: Run, machine: Machine) -> None:
    machine.tune(sample.trial())
    (part,) = machine.home.rglob("*.parquet")
    part.with_name("0" * 64 + ".parquet").write_bytes(b"PAR1")
    ran = run("tables", "list")
    assert (ran.code, "refused: " in ran.out, "damaged" in ran.out) == (0, True, True)
    roots = json.loads(run("tables", "list", "--json").out)["roots"]
    assert [(root["origin"], len(root["files"]), len(root["refused"])) for root in roots] == [
        ("user", 1, 1),
        ("shipped", 0, 0),
    ]
    (file,) = roots[0]["files"]
    assert (file["sha256"], file["rows"], file["devices"]) == (part.stem, 1, ["NVIDIA H200"])


def test_check_goes_on_without_the_tables_of_its_user(
    run: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.ship(sample.trial())
    machine.tune(sample.trial(race_id="mine", number=3))
    (part,) = machine.home.rglob("*.parquet")
    part.write_bytes(b"PAR1")
    ran = run("tables", "check", "--against", machine.results)
    assert (ran.code, ran.err) == (0, "")
    told, summary = ran.out.splitlines()
    assert told.startswith(f"newer races not read: {part}: damaged")
    assert summary == "checked 1 winner against 0 newer races"
    assert len(json.loads(run("tables", "check", "--against", machine.results, "--json").out)["unread"]) == 1
    assert run("tables", "check", "--against", machine.results, "--races", machine.home).code == 1  # named
    assert run("tables", "check", "--against", machine.home).code == 1
    monkeypatch.setenv("AUTOTUNE_HOME", "~nobody-of-that-name")
    ran = run("tables", "check", "--against", machine.results)
    assert (ran.code, ran.err) == (0, "")
    assert "newer races not read: AUTOTUNE_HOME='~nobody-of-that-name' names no folder" in ran.out


def test_list_goes_on_without_a_home_folder(run: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.ship(sample.trial())
    monkeypatch.setenv("AUTOTUNE_HOME", "~nobody-of-that-name")
    ran = run("tables", "list")
    assert (ran.code, ran.err) == (0, "")
    assert "shipped: " in ran.out
    assert "refused: AUTOTUNE_HOME='~nobody-of-that-name' names no folder" in ran.out


def test_list_has_files_of_every_kind_and_says_what_is_replayed(run: Run, machine: Machine) -> None:
    machine.tune(sample.trial(executor="replay"), sample.trial(sample.shape(2048)))
    machine.ship(sample.trial())
    write_portfolio([sample.assignment()], results=machine.results)
    compilations = write_compilations([sample.compilation("3.6.0")], results=machine.results)
    user, shipped = json.loads(run("tables", "list", "--json").out)["roots"]
    assert sorted((file["rows"], file["replayed"]) for file in user["files"]) == [(1, 0), (1, 1)]
    kinds = [(file["kind"], file["operation"], file["implementation"], file["rows"]) for file in shipped["files"]]
    assert kinds == [(kind, "flash_attention", "triton", 1) for kind in ("trials", "compilations", "portfolios")]
    out = run("tables", "list").out
    assert out.count("trials, replayed") == 1
    assert "sm_90/flash_attention/portfolios/triton.parquet" in out
    Store(machine.home).compact("flash_attention", sample.trial().device)
    assert "trials, 1 replayed" in run("tables", "list").out
    compilations.unlink()
    out = run("tables", "list").out
    assert f"refused: {compilations}: not there, and {machine.results / 'SHA256SUMS'} names it" in out


def test_prune_counts_unless_it_is_told_to_apply(run: Run, machine: Machine) -> None:
    machine.tune(sample.trial(), sample.trial(number=2, status=Status.HANG, timing=None))
    ran = run("tables", "prune", "--failed")
    assert ran.out.endswith("would drop 1 row of 2; --apply does it\n")
    assert len(machine.kept()) == 2
    data = json.loads(run("tables", "prune", "--failed", "--apply", "--json").out)
    assert (data["applied"], data["tables"][0]["going"]) == (True, {"failed": 1})
    assert len(machine.kept()) == 1


def test_shipped_tables_are_never_written(run: Run, machine: Machine, theirs: Path) -> None:
    machine.ship(sample.trial())
    before = {path: path.read_bytes() for path in machine.results.rglob("*") if path.is_file()}
    for command in (
        ("prune", "--stale", "--apply", "--tables", machine.results),
        ("compact", "--tables", machine.results),
        ("import", theirs, "--tables", machine.results),
        ("revalidate", "--tables", machine.results),
        ("merge", theirs, "--into", machine.results),
    ):
        ran = run("tables", *command)
        assert (ran.code, "the shipped ones are read without it" in ran.err) == (2, True)
    assert {path: path.read_bytes() for path in machine.results.rglob("*") if path.is_file()} == before


@pytest.fixture
def half_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of imported winners the slower is confirmed, and every other one is refuted."""

    def confirm(operation: Any, shape: Any, device: Any, finalists: Any, winner: Any, settings: Any) -> Any:
        status = Status.OK if winner.config == SLOWER else Status.WRONG_RESULT
        return Confirmation((Outcome(candidate=winner, status=Status.OK),), Verdict(status), "float16")

    monkeypatch.setattr(imports, "confirm", confirm)


@pytest.mark.usefixtures("half_confirmed")
def test_import_serves_what_a_check_here_confirms(run: Run, machine: Machine, theirs: Path) -> None:
    machine.ship(sample.trial())
    ran = run("tables", "import", theirs)
    assert ran.code == 1  # one of two is refuted
    assert "1 confirmed, 0 not confirmed, 1 refuted" in ran.out
    found = json.loads(run("lookup", "--device", "NVIDIA H200", "--json").out)[0]
    assert (found["operation"], found["device"]) == ("flash_attention", "NVIDIA H200")
    assert (found["origin"], found["config"]["BLOCK_K"]) == ("user", 64)
    assert len(machine.kept()) == 1


@pytest.mark.parametrize("name", ["a.json", "a.parquet", "notes.txt"])
def test_import_refuses_what_is_no_table_in_plain_words(run: Run, machine: Machine, tmp_path: Path, name: str) -> None:
    (path := tmp_path / name).write_text("hello")
    ran = run("tables", "import", path)
    assert (ran.code, ran.err) == (1, "autotune: 1 file refused; nothing is kept\n")
    assert f"refused: {path}: is not a table of this format: not " in ran.out
    assert "Error" not in ran.out


@pytest.mark.usefixtures("half_confirmed")
def test_import_says_how_many_are_kept(run: Run, machine: Machine, theirs: Path) -> None:
    (theirs / "a.json").write_text("hello")
    ran = run("tables", "import", theirs)
    assert (ran.code, ran.err) == (1, "autotune: 1 file refused, 1 winner refuted; 1 winner kept\n")


@pytest.mark.parametrize("command", ["import", "diff", "check"])
def test_an_address_is_told_that_only_local_files_are_read(run: Run, machine: Machine, command: str) -> None:
    url = "https://host.example/tables/a.parquet"
    arguments = {"diff": (url, url), "check": ("--against", url)}
    ran = run("tables", command, *arguments.get(command, (url,)))
    assert ran.code == 2
    assert f"={url!r} is a URI; expected a path of this machine; `autotune tables pull` copies" in ran.err


@pytest.fixture
def newer_gpu(monkeypatch: pytest.MonkeyPatch) -> NewerGpu:
    gpu = NewerGpu({sample.FAST: 220.0, SLOWER: 200.0})
    monkeypatch.setattr(platforms, "has_gpu", lambda: True)
    monkeypatch.setattr(select, "open_gpu", lambda settings: gpu)
    return gpu


def test_revalidate_races_again_what_another_toolchain_measured(
    run: Run, machine: Machine, newer_gpu: NewerGpu
) -> None:
    machine.tune(sample.trial(), sample.trial(chosen=SLOWER, number=2, timing=sample.timing(210.0)))
    ran = run("tables", "revalidate", "--dry-run")
    assert (ran.code, "triton 3.6.0 then, 3.9.0 now" in ran.out, newer_gpu.raced) == (0, True, [])
    ran = run("tables", "revalidate")
    assert ran.code == 0
    assert "replaced: flash_attention" in ran.out
    assert "10 % faster" not in ran.err
    assert "0 stamped, 1 replaced, 0 kept" in ran.out
    assert json.loads(run("tables", "revalidate", "--json").out) == []
