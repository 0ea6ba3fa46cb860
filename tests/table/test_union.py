"""Merging is commutative, associative and idempotent: as a function of rows, and as folders of files."""

import itertools
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.table import Store, merge, raise_damaged, winners
from autotune.table.order import in_order
from autotune.table.parquet import encode
from autotune.table.pruning import compact_store
from autotune.trial import Conditions, Resources, Stage, Status, Trial
from tests.table import sample

# Few values of each field, so that equal rows, twins that differ in one field, and ties are common. All there are: to
# draw a row as one number takes a tenth of the time that drawing its fields does.
EVERY = [
    sample.trial(
        number,
        race_id=race,
        stage=Stage.RACE if race else Stage.SCREEN,
        config=sample.config(block),
        status=Status.HANG if failed else Status.OK,
        timing=None if failed else sample.timing(median),
        conditions=Conditions(contended=contended),
        resources=Resources(shared_bytes=shared),
    )
    for number, race, block, median, contended, shared, failed in itertools.product(
        *(range(4), ("", "a", "b"), (16, 32, 64), (100.0, 100.5, 120.0)), (False, True), (None, 1), (False, True)
    )
]
ROWS = st.sampled_from(EVERY)
TABLES = st.lists(ROWS, min_size=1, max_size=4)


def union(*tables: list[Trial]) -> list[Trial]:
    return in_order(trial for table in tables for trial in table)


def check_rows(a: list[Trial], b: list[Trial], c: list[Trial]) -> None:
    together = union(a, b, c)
    assert union(a, b) == union(b, a)
    assert union(union(a, b), c) == union(a, union(b, c)) == together
    assert union(a, a) == union(a)
    assert union(together, b) == together
    assert set(together) == {*a, *b, *c}
    assert winners(union(a, b)) == winners([*b, *a, *b])
    # Equal in every field, and so in every byte that is written.
    assert list(map(repr, union(a, b))) == list(map(repr, union(b, a)))


@settings(max_examples=60, deadline=None)
@given(TABLES, TABLES, TABLES)
def test_the_union_of_rows(a: list[Trial], b: list[Trial], c: list[Trial]) -> None:
    check_rows(a, b, c)


@pytest.mark.slow
@settings(max_examples=10_000, deadline=None)
@given(TABLES, TABLES, TABLES)
def test_the_union_of_rows_over_10000_cases(a: list[Trial], b: list[Trial], c: list[Trial]) -> None:
    check_rows(a, b, c)


def merged(folder: Path, *sources: Path) -> dict[str, bytes]:
    """Merge folders one by one, compact, and return the files that come of it."""
    store = Store(folder)
    for source in sources:
        assert not merge([source], store).refused
    compact_store(store, raise_damaged)
    return {path.name: path.read_bytes() for path in folder.rglob("*.parquet")}


def check_files(folder: Path, tables: list[list[Trial]]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for name, rows in zip("abc", tables, strict=True):
        Store(folder / name).append(rows)
    a, b, c = (folder / name for name in "abc")
    (one,) = {
        tuple(merged(folder / f"x{place}", *order)) for place, order in enumerate([(a, b, c), (c, a, b), (b, c, a, b)])
    }
    merged(folder / "ab", a, b)
    assert tuple(merged(folder / "ab-c", folder / "ab", c)) == one
    merged(folder / "bc", b, c)
    assert tuple(merged(folder / "a-bc", a, folder / "bc")) == one
    assert encode(union(*tables)) in merged(folder / "ab-c").values()


def test_merged_folders_are_equal_to_the_byte(tmp_path: Path) -> None:
    same = sample.trial(1, race_id="a")
    check_files(tmp_path, [[same, sample.trial(2)], [same, sample.trial(1, race_id="b")], [sample.trial(3), same]])


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(TABLES, TABLES, TABLES)
def test_merged_folders_are_equal_to_the_byte_over_200_cases(
    tmp_path_factory: pytest.TempPathFactory, a: list[Trial], b: list[Trial], c: list[Trial]
) -> None:
    check_files(tmp_path_factory.mktemp("merging"), [a, b, c])
