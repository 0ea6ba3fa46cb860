"""``autotune tables pull`` and ``digest``: what they print, and how they end, for cron and for deployments."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.table import Store
from tests import sample
from tests.cli.conftest import Machine, Ran

Run = Callable[..., Ran]


@pytest.fixture
def fleet(tmp_path: Path) -> Store:
    store = Store(tmp_path / "place" / "tables")
    store.append([sample.trial()])
    return store


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AUTOTUNE_SITE", str(tmp_path / "site"))
    return tmp_path / "site"


def test_pull_says_what_is_new_and_nothing_where_nothing_is(
    run: Run, fleet: Store, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = fleet.root.parent
    ran = run("tables", "pull", place)
    assert (ran.code, ran.err) == (0, "")
    assert f"pulled {place} to {site}: 1 table, 1 new, 0 gone; winners: 1 added\n" in ran.out
    assert run("tables", "pull", place) == Ran(0, "", "")
    monkeypatch.setenv("AUTOTUNE_PULL", str(place))
    assert json.loads(run("tables", "pull", "--json").out)["changed"] is False
    assert "exact" in run("lookup", "--device", "NVIDIA H200", "--seq", "1024").out


def test_pull_says_that_rows_were_replayed_and_of_which_shapes(run: Run, fleet: Store) -> None:
    assert "replayed" not in run("tables", "pull", fleet.root).out
    rehearsed = sample.trial(sample.shape(2048), executor="replay")
    fleet.append([rehearsed])
    ran = run("tables", "pull", fleet.root)
    said = " ".join(ran.out.split())
    assert (
        "1 row replayed, not measured: they are of the recorded shapes, and served only where nothing measured" in said
    )
    assert f"{rehearsed.operation}: {rehearsed.shape}" in said
    assert json.loads(run("tables", "pull", fleet.root, "--json").out)["replayed"] == 1


def test_pull_ends_with_1_on_a_damaged_table_and_with_2_on_a_wrong_folder(
    run: Run, machine: Machine, fleet: Store, tmp_path: Path
) -> None:
    run("tables", "pull", fleet.root)
    (part,) = fleet.append([sample.trial(sample.shape(2048), race_id="more")])
    part.write_bytes(b"PAR1")
    ran = run("tables", "pull", fleet.root)
    assert (ran.code, ran.out, part.name in ran.err, "old ones are kept" in ran.err) == (1, "", True, True)
    machine.tune(sample.trial())
    ran = run("tables", "pull", fleet.root, "--tables", machine.home)
    assert (ran.code, "was not pulled" in ran.err) == (2, True)


def test_digest_is_asserted_and_differences_are_named(run: Run, fleet: Store, site: Path, tmp_path: Path) -> None:
    site.mkdir()
    there = tmp_path / "there.json"
    there.write_text(run("tables", "digest", fleet.root, "--json").out)
    expected = json.loads(there.read_text())["digest"]
    ran = run("tables", "digest", "--expect", there)
    assert ran.code == 1
    assert "different: flash_attention/triton/nvidia_h200/winners" in ran.err
    assert run("tables", "digest", "--expect", expected).code == 1
    run("tables", "pull", fleet.root)
    for given in (there, expected):
        assert run("tables", "digest", "--expect", given) == Ran(0, f"{expected}\n", "")
    assert run("tables", "digest", "--expect", "abc").code == 2
    there.write_text("[]")
    assert run("tables", "digest", "--expect", there).code == 2


@pytest.mark.parametrize("command", [("list", "--tables"), ("merge", "x", "--into"), ("pull", "x", "--tables")])
def test_a_uri_is_no_folder_and_its_credentials_are_not_repeated(
    run: Run, tmp_path: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run("tables", *command, "s3://KEY:SECRET@bucket/tables")
    assert (ran.code, "s3://***@bucket/tables' is a URI" in ran.err, "SECRET" in ran.out + ran.err) == (2, True, False)
    monkeypatch.setenv("AUTOTUNE_HOME", "s3://KEY:SECRET@bucket/tables")
    ran = run("tables", "digest")
    assert (ran.code, "is a URI" in ran.err, "SECRET" in ran.out + ran.err) == (1, True, False)
    ran = run("tables", "list")  # goes on with the other roots
    assert (ran.code, "is a URI" in ran.out, "SECRET" in ran.out + ran.err) == (0, True, False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("uri", ["s3://KEY:SECRET@bucket/tables", "s3//KEY:SECRET@bucket/tables"])
def test_credentials_that_were_typed_are_refused_before_any_store_is_asked(run: Run, uri: str) -> None:
    pulled, merged = run("tables", "pull", uri), run("tables", "merge", uri, "--into", "x")
    assert (pulled.code, merged.code) == (2, 2)
    assert "put the URI into AUTOTUNE_PULL" in pulled.err
    assert "put the URI into AUTOTUNE_PLACE" in merged.err
    assert "SECRET" not in pulled.out + pulled.err + merged.out + merged.err


def test_the_sites_variable_is_no_uri_and_a_file_is_no_folder(
    run: Run, tmp_path: Path, fleet: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grid.toml").touch()
    before = set(tmp_path.iterdir())
    ran = run("tables", "pull", fleet.root, "--tables", "grid.toml")
    assert (ran.code, "is a file; expected a folder" in ran.err) == (2, True)
    monkeypatch.setenv("AUTOTUNE_SITE", "s3://KEY:SECRET@bucket/tables")
    ran = run("tables", "pull", fleet.root)
    assert (ran.code, "is a URI" in ran.err, "SECRET" in ran.out + ran.err) == (1, True, False)
    assert set(tmp_path.iterdir()) == before
