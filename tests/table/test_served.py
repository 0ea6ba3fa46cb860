"""Which row is served where the user's store, the shipped tables and several implementations have one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.device import NVIDIA_H200
from autotune.errors import TableError
from autotune.registry import get_implementation
from autotune.space import Config
from autotune.table import Store, served_winners, write_shipped
from autotune.table.shipped import shipped_winners
from autotune.trial import Trial
from tests.table import sample
from tests.table.growth import change_space


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of shipped tables, in the place of the package's."""
    folder = tmp_path / "results"
    monkeypatch.setattr(
        "autotune.table.served.shipped_winners", lambda name, **named: shipped_winners(name, results=folder, **named)
    )
    return folder


def ship(results: Path, *trials: Trial) -> None:
    for trial in trials:
        write_shipped(Path(f"nvidia_h200/{sample.NAME}/{trial.implementation}.parquet"), [trial], results=results)


def foreign(number: int, **changes: Any) -> Trial:
    return sample.trial(number, implementation="foreign", config=Config(TILE=1), **changes)


def served(root: Path, *trials: Trial) -> list[tuple[int, str]]:
    """The number and origin of what is served, after these trials."""
    for trial in trials:
        Store(root).append([trial])
    return [(row.trial.number, row.origin) for row in served_winners(sample.NAME, root=root)]


def test_what_the_user_measured_comes_before_what_ships_and_that_before_a_replay(tmp_path: Path, results: Path) -> None:
    home = tmp_path / "home"
    assert served(home, sample.trial(1, executor="replay")) == [(1, "user")]
    ship(results, sample.trial(2))
    assert served(home) == [(2, "shipped")]
    assert served(home, sample.trial(3)) == [(3, "user")]


def test_implementations_of_one_problem_stand_together_the_best_first(tmp_path: Path, results: Path) -> None:
    home = tmp_path / "home"
    other = replace(sample.SHAPE, batch=9)
    ship(results, sample.trial(1), foreign(2, timing=sample.timing(50.0)))
    assert served(home) == [(2, "shipped"), (1, "shipped")]
    assert served(home, sample.trial(3, shape=other)) == [(3, "user"), (2, "shipped"), (1, "shipped")]
    # A race of the user's own says nothing of what was measured elsewhere: ours comes first.
    assert served(home, sample.trial(4, race_id="mine")) == [(4, "user"), (2, "shipped"), (3, "user")]


def test_a_race_that_was_merged_in_part_is_still_one(tmp_path: Path, results: Path) -> None:
    ship(results, sample.trial(1), foreign(2, timing=sample.timing(50.0)))
    assert served(tmp_path / "home", sample.trial(1)) == [(2, "shipped"), (1, "user")]


@pytest.mark.parametrize("has_shipped", [True, False])
def test_a_row_that_is_invalid_for_its_own_shape_displaces_none(
    tmp_path: Path, results: Path, monkeypatch: pytest.MonkeyPatch, has_shipped: bool
) -> None:
    if has_shipped:
        ship(results, sample.trial(1))
    space = get_implementation(sample.NAME, "triton").space
    found = [(1, "shipped")] if has_shipped else []

    def reject(config: Config, shape: Any, device: Any) -> str | None:
        return "too wide" if config["BLOCK"] == 64 and shape.batch == 2 else None

    change_space(monkeypatch, sample.NAME, "triton", space.parameters, reject=reject)
    assert served(tmp_path / "home", sample.trial(2, config=sample.config(64))) == found
    valid = sample.trial(3, config=sample.config(64), shape=replace(sample.SHAPE, batch=4))
    assert (3, "user") in served(tmp_path / "home", valid)


def test_a_rule_that_does_not_know_the_architecture_serves_none(
    tmp_path: Path, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameters = tuple(each for each in sample.PARAMETERS if each.needs is None)

    def reject(config: Config, shape: Any, device: Any) -> str | None:
        return None if device.warp_size else "never"

    change_space(monkeypatch, sample.NAME, "triton", parameters, reject=reject)
    config = Config({name: value for name, value in sample.config().items() if name != "kpack"})
    voodoo = replace(NVIDIA_H200, name="Voodoo 2", arch="voodoo")
    good, bad = sample.trial(1, config=config), sample.trial(2, config=config, device=voodoo)
    assert served(tmp_path / "home", good, bad) == [(1, "user")]


def test_an_account_without_a_home_folder_is_served_what_ships(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Path:
        raise TableError("there is no home folder to keep tables in; set AUTOTUNE_HOME")

    monkeypatch.setattr("autotune.table.served.home", none)
    ship(results, sample.trial(2))
    damaged: list[TableError] = []
    assert [row.trial.number for row in served_winners(sample.NAME, on_damaged=damaged.append)] == [2]
    assert ["no home folder" in str(error) for error in damaged] == [True]
    with pytest.raises(TableError, match="no home folder"):
        served_winners(sample.NAME)
