"""Spaces and shapes grow and shrink, and every shipped row stays what it was, or says why it is of another space."""

import io
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
import pytest

from autotune.errors import TableError
from autotune.registry import get_implementation, get_operation
from autotune.space import Config, Parameter, Space
from autotune.table import served_winners, shipped_outsiders, shipped_winners
from autotune.table.files import read_checksums
from autotune.table.parquet import decode, encode, owner_of
from autotune.table.shipped import RESULTS
from autotune.trial import Trial
from tests.table import sample
from tests.table.growth import GROWN, change_shape, change_space, refusing, without

COMPUTED: Final = {"portfolios", "compilations"}  # folders of files that hold no trials
FILES: Final = sorted(name for name in read_checksums(RESULTS) if not COMPUTED & set(name.split("/")))
OPERATIONS: Final = ("flash_attention", "flash_attention_varlen", "paged_decode", "paged_prefill")
NEW: Final = Parameter("PERSISTENT", (0, 1), absent=0)


@cache
def today(name: str) -> tuple[bytes, tuple[str, str], list[Trial], list[dict[str, Any]]]:
    """The bytes of a shipped file, what it is of, its trials, and its rows as another program reads them."""
    data = (RESULTS / name).read_bytes()
    found = decode(data, name)
    assert found.trials
    assert not found.outsiders
    return data, owner_of(data, name), found.trials, pq.read_table(io.BytesIO(data)).to_pylist()


def in_common(trial: Trial, *gone: str) -> tuple[Any, ...]:
    """All of a trial but the default of its race, which changes with the space, and its shape and config as plain
    values without some."""
    shape, config = (
        {name: value for name, value in values.items() if name not in gone}
        for values in (trial.shape.as_dict(), trial.config)
    )
    outcome = replace(trial.outcome, candidate=sample.trial().candidate)
    return shape, config, replace(trial, shape=sample.SHAPE, outcome=outcome, default_config=None)


@pytest.mark.parametrize("name", FILES)
def test_a_parameter_and_a_field_join(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, owner, before, _ = today(name)
    space, shape_class = get_implementation(*owner).space, get_operation(owner[0]).shape_class
    change_space(monkeypatch, *owner, (*space.parameters, NEW))
    change_shape(monkeypatch, owner[0], GROWN[shape_class])
    after, outsiders = decode(data, name)
    assert outsiders == []
    assert [in_common(trial, "PERSISTENT", "sink") for trial in after] == [in_common(trial) for trial in before]
    assert {(trial.config["PERSISTENT"], trial.shape.as_dict()["sink"]) for trial in after} == {(0, "none")}
    rewritten = encode(after)
    assert decode(rewritten, name).trials == after
    monkeypatch.undo()  # and an older version reads what a newer one wrote as of another space
    trials, outsiders = decode(rewritten, name)
    assert (trials, len(outsiders)) == ([], len(before))
    assert "is of a parameter or field that is gone" in outsiders[0].reason


@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_is_served_stays_when_a_parameter_and_a_field_join(
    operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = served_winners(operation, root=tmp_path)
    for name in {row.trial.implementation for row in before}:
        space = get_implementation(operation, name).space
        change_space(monkeypatch, operation, name, (*space.parameters, NEW))
    change_shape(monkeypatch, operation, GROWN[get_operation(operation).shape_class])
    after = served_winners(operation, root=tmp_path)
    common = [in_common(row.trial, "PERSISTENT", "sink") for row in after]
    assert len(before) == len(shipped_winners(operation))
    assert common == [in_common(row.trial) for row in before]


@pytest.mark.parametrize("name", FILES)
def test_a_parameter_that_joins_without_a_value_for_older_rows_leaves_them_outside(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, owner, before, rows = today(name)
    space = get_implementation(*owner).space
    change_space(monkeypatch, *owner, (*space.parameters, replace(NEW, absent=None)))
    trials, outsiders = decode(data, name)
    assert trials == []
    assert [outsider.row for outsider in outsiders] == list(range(len(before)))
    assert {outsider.reason for outsider in outsiders} == {
        "it has no PERSISTENT, and no value is declared for older rows"
    }
    for outsider, row, trial in zip(outsiders, rows, before, strict=True):
        assert (outsider.where, outsider.operation, outsider.implementation) == (name, *owner)
        assert (outsider.device, outsider.median_us) == (trial.device, row["median_us"])
        # Without the fields that the shape has by now and the file has not.
        assert outsider.problem == {each: row[each] for each in (*trial.shape.as_dict(), *trial.config) if each in row}


def stages_of(space: Space[Any]) -> Parameter:
    """Return the parameter of a space that says how many tiles are held at once, of which 2 is a value."""
    return next(each for each in space.parameters if each.name in ("num_stages", "slots"))


@pytest.mark.parametrize("name", FILES)
def test_a_parameter_goes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, owner, before, rows = today(name)
    space = get_implementation(*owner).space
    gone = stages_of(space)
    change_space(
        monkeypatch,
        *owner,
        tuple(each for each in space.parameters if each is not gone),
        removed={**space.removed, gone.name: 2},
    )
    trials, outsiders = decode(data, name)
    kept = [number for number, row in enumerate(rows) if row[gone.name] == 2]
    assert 0 < len(kept) < len(rows) or "/sweeps/" not in name
    assert [in_common(trial) for trial in trials] == [in_common(before[number], gone.name) for number in kept]
    assert [outsider.row for outsider in outsiders] == [number for number in range(len(rows)) if number not in kept]
    for outsider in outsiders:
        said = rows[outsider.row][gone.name]
        assert outsider.reason == f"{gone.name}={said} is of a parameter or field that is gone"


@pytest.mark.parametrize("name", FILES)
def test_a_value_goes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, owner, before, rows = today(name)
    space = get_implementation(*owner).space
    gone = stages_of(space)
    fewer = tuple(
        replace(each, values=tuple(value for value in each.values if value != 2)) if each is gone else each
        for each in space.parameters
    )
    change_space(monkeypatch, *owner, fewer)
    trials, outsiders = decode(data, name)
    assert list(map(in_common, trials)) == [in_common(trial) for trial in before if trial.config[gone.name] != 2]
    assert [outsider.row for outsider in outsiders] == [
        number for number, row in enumerate(rows) if row[gone.name] == 2
    ]
    assert {outsider.reason.partition(" is not one of")[0] for outsider in outsiders} <= {f"{gone.name}=2"}


@pytest.mark.parametrize("name", FILES)
def test_a_field_goes_and_a_value_of_another_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, owner, before, rows = today(name)
    shape_class = get_operation(owner[0]).shape_class
    change_shape(monkeypatch, owner[0], without(shape_class, "dtype", "bfloat16"))
    trials, outsiders = decode(data, name)
    kept = [trial for trial, row in zip(before, rows, strict=True) if row["dtype"] == "bfloat16"]
    assert [in_common(trial) for trial in trials] == [in_common(trial, "dtype") for trial in kept]
    assert len(outsiders) == len(before) - len(kept)
    assert all("is of a parameter or field that is gone" in outsider.reason for outsider in outsiders)
    monkeypatch.undo()
    change_shape(monkeypatch, owner[0], refusing(shape_class, "head_dim", 128))
    trials, outsiders = decode(data, name)
    assert [trial.shape.as_dict() for trial in trials] == [
        trial.shape.as_dict() for trial, row in zip(before, rows, strict=True) if row["head_dim"] != 128
    ]
    assert {outsider.reason for outsider in outsiders} <= {"head_dim=128 is not allowed any more"}
    assert len(trials) + len(outsiders) == len(before)


def test_shipped_rows_of_another_space_are_listed_and_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not any(map(shipped_outsiders, OPERATIONS))
    space = get_implementation("paged_prefill", "triton").space
    change_space(monkeypatch, "paged_prefill", "triton", (*space.parameters, replace(NEW, absent=None)))
    where = {outsider.where for outsider in shipped_outsiders("paged_prefill")}
    assert where == {
        str(RESULTS / name) for name in FILES if "/paged_prefill/" in name and name.endswith("/triton.parquet")
    }
    assert shipped_winners("paged_prefill", implementation="triton") == []
    assert "triton" not in {each.trial.implementation for each in served_winners("paged_prefill", root=tmp_path)}


# Rows of the sample operation


def test_a_parameter_fills_in_only_where_it_applies(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [sample.trial(1), sample.trial(2, config=sample.config(loads="descriptor"))]
    data = encode(rows)
    depth = Parameter("DEPTH", (1, 2), only=("loads", "descriptor"), absent=2)
    hints = Parameter("HINT", ("a", "b"), needs="wave_hints", absent="b")
    change_space(monkeypatch, sample.NAME, "triton", (*sample.PARAMETERS, depth, hints))
    trials, outsiders = decode(data, "table")
    assert outsiders == []
    assert [(trial.config["DEPTH"], trial.config["HINT"]) for trial in trials] == [(None, None), (2, None)]


def test_integers_become_texts_and_integers_again(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode([sample.trial()])
    block, *others = sample.PARAMETERS
    change_space(monkeypatch, sample.NAME, "triton", (replace(block, values=(*block.values, "auto")), *others))
    (trial,) = decode(data, "table").trials
    assert trial.config == sample.config()
    auto = sample.trial(2, config=Config({**sample.config(), "BLOCK": "auto"}))
    data = encode([trial, auto])
    assert decode(data, "table").trials == [trial, auto]
    monkeypatch.undo()
    trials, outsiders = decode(data, "table")
    assert trials == [trial]
    assert [outsider.reason for outsider in outsiders] == ["BLOCK='auto' is not one of (16, 32, 64)"]


def test_what_is_gone_with_another_form_of_its_value_is_still_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    change_space(monkeypatch, sample.NAME, "triton", (*sample.PARAMETERS, Parameter("mixed", (1, "auto"))))
    rows = [
        sample.trial(number, config=Config({**sample.config(), "mixed": value}))
        for number, value in ((1, 1), (2, "auto"))
    ]
    data = encode(rows)
    monkeypatch.undo()
    change_space(monkeypatch, sample.NAME, "triton", sample.PARAMETERS, removed={"mixed": 1})
    trials, outsiders = decode(data, "table")
    assert [trial.number for trial in trials] == [1]
    assert [outsider.reason for outsider in outsiders] == ["mixed='auto' is of a parameter or field that is gone"]


def test_rows_of_another_space_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [sample.trial()]
    change_space(monkeypatch, sample.NAME, "triton", (*sample.PARAMETERS, NEW))
    with pytest.raises(TableError, match="row 0: config="):
        encode(rows)
    with pytest.raises(TableError, match="row 0: PERSISTENT=7 is not one of"):
        encode([sample.trial(config=Config({**sample.config(), "PERSISTENT": 7}))])
