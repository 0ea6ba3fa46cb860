"""Where the user's store is, and who may write to it."""

import os
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.device import NVIDIA_H200
from autotune.errors import TableError
from autotune.table import Store, home, merge, raise_damaged, stored_winners, warn_damaged
from autotune.table.parquet import encode
from autotune.table.parts import Shelf
from autotune.table.pruning import Rules, compact_store, prune
from tests.table import sample


def test_home_is_the_variable_or_the_xdg_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/user")
    monkeypatch.delenv("AUTOTUNE_HOME", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert home() == Path("/home/user/.local/share/autotune")
    monkeypatch.setenv("XDG_DATA_HOME", "relative/is/ignored")
    assert home() == Path("/home/user/.local/share/autotune")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert home() == Path("/data/autotune")
    monkeypatch.setenv("AUTOTUNE_HOME", "~/tables")
    assert home() == Path("/home/user/tables")
    monkeypatch.setenv("AUTOTUNE_HOME", "here")
    assert home() == Path.cwd() / "here"


def test_no_home_folder_is_said_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("AUTOTUNE_HOME", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(TableError, match="set AUTOTUNE_HOME"):
        home()


def the_shelf(store: Store) -> Shelf:
    return Shelf(store.root / "nvidia_h200", sample.NAME, "triton")


def merge_another(store: Store) -> None:
    other = Store(store.root.parent / "other")
    other.append([sample.trial(7)])
    merge([other.root], store)


CHANGES: dict[str, Callable[[Store], object]] = {
    "append": lambda store: store.append([sample.trial(1)]),
    "write": lambda store: the_shelf(store).write(encode([sample.trial(7)])),
    "merge": merge_another,
    "compact": lambda store: store.compact(sample.NAME, NVIDIA_H200),
    "compact store": lambda store: compact_store(store, raise_damaged),
    "snapshot": lambda store: the_shelf(store).write_snapshot(),
    "prune to nothing": lambda store: prune(store, Rules(stale=True), raise_damaged, apply=True),
    "prune": lambda store: prune(store, Rules(keep=1), raise_damaged, apply=True),
    "remove": lambda store: the_shelf(store).remove(the_shelf(store).parts()[0]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_link_of_another_user_is_not_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Store], object]
) -> None:
    elsewhere, store = tmp_path / "elsewhere", Store(tmp_path / "home")
    elsewhere.mkdir()
    store.root.mkdir()
    (store.root / "nvidia_h200").symlink_to(elsewhere)
    for number in range(3):  # the user's own link is followed
        store.append([sample.trial(number, timing=sample.timing(100.0 + number))])
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(elsewhere).st_uid + 1)
    lstat = os.lstat
    monkeypatch.setattr(os, "lstat", lambda path: os.stat_result((*lstat(path)[:4], 4242, *lstat(path)[5:])))
    before = contents(elsewhere)
    with pytest.raises(TableError, match="nvidia_h200: cannot be written: it is a link that another user made"):
        change(store)
    assert contents(elsewhere) == before


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_store_that_every_user_can_write_to_is_warned_of_once(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="every user of this machine can add rows there.*chmod o-w"):
        stored_winners(sample.NAME, root=tmp_path)
    assert stored_winners(sample.NAME, root=tmp_path) == []  # silently


def test_a_site_that_every_user_can_write_to_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    site.mkdir()
    site.chmod(0o777)
    monkeypatch.setenv("AUTOTUNE_SITE", str(site))
    with pytest.warns(RuntimeWarning, match=r"site: every user of this machine can add rows there"):
        stored_winners(sample.NAME, root=tmp_path / "home")


@pytest.mark.parametrize("name", ["~nosuchuser/x", "/dev/null", "/dev/null/x", "x" * 5000, "/proc/self/fd/0", "a\nb"])
def test_what_ships_is_served_whatever_the_home_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_HOME", name)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert stored_winners("flash_attention", slug="nvidia_h200", on_damaged=warn_damaged)
    assert all(issubclass(each.category, RuntimeWarning) for each in said)
