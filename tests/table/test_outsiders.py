"""Rows that are not of today's space are kept as they are, listed with the reason, and never served."""

from dataclasses import replace
from pathlib import Path

import pytest

from autotune import registry
from autotune.device import NVIDIA_H200
from autotune.errors import TableError
from autotune.shape import AttentionShape
from autotune.space import Config
from autotune.table import Store, merge, served_winners, shipped_outsiders, winners, write_shipped
from autotune.trial import Resources
from tests.table import sample
from tests.table.growth import change_shape, change_space, refusing
from tests.table.old_tables import append_as_then

FOLDER = Path("nvidia_h200") / sample.NAME / "triton"
WIDE = sample.trial(2, config=sample.config(64), timing=sample.timing(10.0))


def shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take BLOCK=64 out of the space."""
    block, *others = sample.PARAMETERS
    change_space(monkeypatch, sample.NAME, "triton", (replace(block, values=(16, 32)), *others))


def forget(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let the registry forget implementations of the sample, or with no name the operation and all of them."""
    for name in names or ("triton", "foreign"):
        monkeypatch.delitem(registry._implementations, (sample.NAME, name))
    if not names:
        monkeypatch.delitem(registry._operations, sample.NAME)


def test_they_are_kept_listed_and_not_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    (part,) = store.append([sample.trial(1), WIDE])
    data = part.read_bytes()
    for number in (3, 4):
        store.append([sample.trial(number)])
    shrink(monkeypatch)
    for _ in range(2):
        assert [trial.number for trial in store.trials(sample.NAME)] == [1, 3, 4]
        assert [row.trial.number for row in served_winners(sample.NAME, root=tmp_path)] == [1]
        (outsider,) = store.outsiders()
        assert (outsider.where, outsider.row, outsider.median_us) == (str(part), 1, 10.0)
        assert (outsider.operation, outsider.implementation) == (sample.NAME, "triton")
        assert outsider.reason == "BLOCK=64 is not one of (16, 32)"
        assert outsider.problem == {**WIDE.shape.as_dict(), **WIDE.config}
        assert store.outsiders(sample.NAME) == [outsider]
        assert store.outsiders("flash_attention") == []
        store.compact(sample.NAME, NVIDIA_H200)
        assert part.read_bytes() == data
        assert len(list((tmp_path / FOLDER).glob("*.parquet"))) == 2
    monkeypatch.undo()
    assert [trial.number for trial in store.trials(sample.NAME)] == [1, 2, 3, 4]
    assert store.winners(sample.NAME) == [WIDE]
    assert store.outsiders() == []


def test_a_snapshot_of_another_space_is_no_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    store.append([sample.trial(1), WIDE])
    store.compact(sample.NAME, NVIDIA_H200)
    assert store.winners(sample.NAME) == [WIDE]
    shrink(monkeypatch)
    assert store.winners(sample.NAME) == [sample.trial(1)]


def test_a_row_that_leaves_the_space_may_change_who_wins_among_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leanest of those that tie with the fastest: of the fastest that is no more, or of the next."""
    rows = [
        sample.trial(1, config=sample.config(64), timing=sample.timing(100.0), resources=Resources(20)),
        sample.trial(2, config=sample.config(32), timing=sample.timing(100.5), resources=Resources(10)),
        sample.trial(3, config=sample.config(16), timing=sample.timing(101.4), resources=Resources(0)),
    ]
    store = Store(tmp_path)
    store.append(rows)
    store.compact(sample.NAME, NVIDIA_H200)
    assert store.winners(sample.NAME) == rows[1:2]
    shrink(monkeypatch)
    assert store.winners(sample.NAME) == winners(store.trials(sample.NAME)) == rows[2:]


def test_a_shape_that_is_taken_again_has_its_winner_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where only the code of the class says so, which no snapshot knows."""
    narrow = sample.trial(3, shape=replace(sample.SHAPE, head_dim=32, head_dim_v=32))
    store = Store(tmp_path)
    store.append([sample.trial(1), narrow])
    change_shape(monkeypatch, sample.NAME, refusing(AttentionShape, "head_dim", 32))
    store.compact(sample.NAME, NVIDIA_H200)
    assert len(store.winners(sample.NAME)) == 1
    monkeypatch.undo()
    assert store.winners(sample.NAME) == winners(store.trials(sample.NAME)) == [narrow, sample.trial(1)]


@pytest.mark.parametrize("names", [("triton",), ()], ids=["implementation", "operation"])
def test_rows_of_what_is_not_registered_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    store = Store(tmp_path)
    store.append([sample.trial(1)])
    store.append([sample.trial(2, implementation="foreign", config=Config(TILE=1))])
    append_as_then(tmp_path, [sample.trial(3)])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.parquet")}
    forget(monkeypatch, *names)
    found = sorted(store.outsiders(), key=lambda outsider: outsider.columns["number"])
    assert [outsider.columns["number"] for outsider in found] == ([1, 3] if names else [1, 2, 3])
    assert found[0].problem == {**sample.SHAPE.as_dict(), **sample.config()}
    assert "is unknown; registered: " in found[0].reason
    assert [trial.number for trial in store.trials(sample.NAME)] == ([2] if names else [])
    store.compact(sample.NAME, NVIDIA_H200)
    target = Store(tmp_path / "target")
    assert merge([tmp_path], target).added == 3
    assert merge([tmp_path / "nvidia_h200"], target).added == 0
    monkeypatch.undo()
    assert {path: path.read_bytes() for path in before} == before
    assert [trial.number for trial in target.trials(sample.NAME)] == [1, 2, 3]


def test_merge_copies_a_part_with_them_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, store = Store(tmp_path / "source"), Store(tmp_path / "mine")
    (part,) = source.append([sample.trial(1), WIDE])
    store.append([sample.trial(1)])
    shrink(monkeypatch)
    merged = merge([source.root], store)
    assert (merged.files, merged.rows, merged.added, merged.refused) == (1, 2, 1, ())
    assert (store.root / FOLDER / part.name).read_bytes() == part.read_bytes()
    assert merge([source.root], store).added == 0
    monkeypatch.undo()
    assert store.trials(sample.NAME) == [sample.trial(1), WIDE]


def test_damage_beside_them_is_still_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    (part,) = store.append([WIDE])
    part.write_bytes(part.read_bytes()[:-1])
    shrink(monkeypatch)
    with pytest.raises(TableError, match="damaged"):
        store.outsiders()
    found: list[TableError] = []
    assert store.outsiders(on_damaged=found.append) == []
    assert len(found) == 1


def test_shipped_ones_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(f"nvidia_h200/{sample.NAME}")
    write_shipped(folder / "triton.parquet", [sample.trial(1), WIDE], results=tmp_path)
    write_shipped(folder / "sweeps/triton_b1.parquet", [WIDE], results=tmp_path)
    assert shipped_outsiders(sample.NAME, results=tmp_path) == []
    shrink(monkeypatch)
    found = shipped_outsiders(sample.NAME, results=tmp_path)
    assert [(outsider.where, outsider.row) for outsider in found] == [
        (str(tmp_path / folder / "triton.parquet"), 1),
        (str(tmp_path / folder / "sweeps/triton_b1.parquet"), 0),
    ]


def test_a_device_of_an_unknown_vendor_is_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change_space(monkeypatch, sample.NAME, "triton", tuple(each for each in sample.PARAMETERS if each.needs is None))
    device = replace(NVIDIA_H200, name="Voodoo 2", arch="voodoo")
    config = Config({name: value for name, value in sample.config().items() if name != "kpack"})
    store = Store(tmp_path)
    store.append([sample.trial(1, device=device, config=config)])
    monkeypatch.undo()
    (outsider,) = store.outsiders()
    assert "voodoo" in outsider.reason
    with pytest.raises(TableError, match="voodoo"):
        store.append([sample.trial(1, device=device)])
