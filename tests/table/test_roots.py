"""Roots beside the user's: whose rows win, what is found without running code, and what a first look-up opens."""

import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Final

import pytest

from autotune import references
from autotune.errors import TableError
from autotune.table import Store, raise_damaged
from autotune.table.roots import SITE, extra_roots
from tests import sample
from tests.dispatch.tables import H200, SLOWER, THIRD, Tables, in_fresh_process, served_from


@pytest.fixture(autouse=True)
def no_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(SITE, raising=False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    monkeypatch.setattr(references, "_scan", dict)


def bring(monkeypatch: pytest.MonkeyPatch, **places: str) -> None:
    """Install packages that bring tables, by name and place."""
    points = tuple(EntryPoint(name, place, references.TABLE_ENTRY_POINTS) for name, place in places.items())
    monkeypatch.setattr(references, "_scan", lambda: {references.TABLE_ENTRY_POINTS: points})


def test_there_is_no_root_by_default() -> None:
    assert extra_roots(raise_damaged) == []


def test_the_site_is_a_variable_or_a_folder_of_the_prefix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usual = tmp_path / "prefix" / "share" / "autotune"
    usual.mkdir(parents=True)
    assert [(root.title, root.path) for root in extra_roots(raise_damaged)] == [("site", usual)]
    (tmp_path / "site").mkdir()
    monkeypatch.setenv(SITE, str(tmp_path / "site"))
    assert [root.path for root in extra_roots(raise_damaged)] == [tmp_path / "site"]


def test_what_is_named_and_absent_is_reported_and_the_others_are_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(SITE, str(tmp_path / "absent"))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "some_kernels_92" / "tables").mkdir(parents=True)
    bring(
        monkeypatch,
        good="some_kernels_92.tables",
        gone="some_kernels_92.elsewhere",
        unknown="no_such_package_92",
        wrong="../etc",
    )
    errors: list[TableError] = []
    assert [root.name for root in extra_roots(errors.append)] == ["good"]
    assert [
        next(word for word in ("AUTOTUNE_SITE", "'gone'", "'unknown'", "'wrong'") if word in str(error))
        for error in errors
    ] == ["AUTOTUNE_SITE", "'gone'", "'unknown'", "'wrong'"]


def test_no_code_of_a_package_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "loud_kernels_92" / "data" / "tables"
    folder.mkdir(parents=True)
    (tmp_path / "loud_kernels_92" / "__init__.py").write_text("raise SystemExit('ran')")
    bring(monkeypatch, loud="loud_kernels_92.data.tables")
    assert extra_roots(raise_damaged)[0].path == folder
    assert "loud_kernels_92" not in sys.modules


def test_the_user_wins_over_the_site_over_packages_over_what_ships(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from autotune.dispatch import get_kernel, reload

    monkeypatch.syspath_prepend(tmp_path)
    package, site, shape = tmp_path / "fine_kernels_92" / "tables", tmp_path / "site", sample.shape()
    bring(monkeypatch, fine="fine_kernels_92.tables")
    fourth = sample.config(num_stages=3)

    def served() -> tuple[object, str]:
        reload()
        kernel = get_kernel(shape, device=H200)
        return kernel.config, kernel.provenance.origin

    package.mkdir(parents=True)
    with served_from(Tables(tmp_path)) as tables:
        tables.ship(sample.trial())
        assert served() == (sample.FAST, "shipped")
        # Older, and yet before what ships: precedence is by root, not by date.
        Store(package).append([sample.trial(chosen=SLOWER, race_id="a")])
        assert served() == (SLOWER, "package")
        Store(site).append([sample.trial(chosen=THIRD, race_id="b")])
        monkeypatch.setenv(SITE, str(site))
        assert served() == (THIRD, "site")
        tables.tune(sample.trial(chosen=fourth, race_id="c", executor="replay"))
        assert served() == (THIRD, "site")  # a replay measures nothing
        tables.tune(sample.trial(chosen=fourth, race_id="d"))
        assert served() == (fourth, "user")


def test_a_damaged_root_leaves_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from autotune.dispatch import get_kernel, reload

    site = tmp_path / "site"
    (part,) = Store(site).append([sample.trial(chosen=SLOWER)])
    part.write_bytes(part.read_bytes()[:-1])
    monkeypatch.setenv(SITE, str(site))
    with served_from(Tables(tmp_path)) as tables:
        tables.ship(sample.trial())
        reload()
        with pytest.warns(RuntimeWarning, match="damaged"):
            kernel = get_kernel(sample.shape(), device=H200)
        assert kernel.provenance.origin == "shipped"


ROOT: Final = Path(__file__).resolve().parents[2]
OPENED: Final = """
import sys
opened = []
sys.addaudithook(lambda event, given: opened.append(str(given[0])) if event in ("open", "os.listdir") else None)
import autotune
shape = autotune.AttentionShape(batch=16, heads=16, seq_q=1024, head_dim=128, causal=True)
autotune.get_kernel(shape, device="NVIDIA H200")
first = list(opened)
del opened[:]
for seq in (512, 2048, 4096):
    shape = autotune.AttentionShape(batch=16, heads=16, seq_q=seq, head_dim=128, causal=True)
    autotune.get_kernel(shape, device="NVIDIA H200")
points = [path for path in first if path.endswith("entry_points.txt")]
print(len(points) - len(set(points)), sum("share/autotune" in path for path in first))
later = [path for path in opened if not path.endswith(".py")]  # a source is read once its hash is asked for
print(sum(path.endswith((".parquet", "SHA256SUMS")) for path in first), len(later))
"""


def test_a_first_look_up_scans_entry_points_once_and_opens_nothing_for_absent_roots(tmp_path: Path) -> None:
    twice, absent, tables, later = map(int, in_fresh_process(OPENED, tmp_path / "home", PYTHONPATH=str(ROOT)).split())
    assert (twice, absent, later) == (0, 0, 0)
    # Winners of the four implementations that have some and portfolios of the two that compute the shape, and the list
    # for each pattern: winners of seven, portfolios of two. A hook sees ``files.read_bytes`` open twice.
    assert tables == 2 * (6 + 9)
