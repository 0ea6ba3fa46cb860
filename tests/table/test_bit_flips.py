"""Ten thousand bit flips and every truncation of a table, in a store and shipped: none is accepted in silence."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from autotune.errors import TableError
from autotune.table import Store, shipped_winners, write_shipped
from autotune.table.files import SUMS_NAME
from autotune.table.vouched import read_files
from autotune.trial import Trial
from tests.table import sample

ROWS: Final = [sample.trial(number, race_id=f"race-{number}") for number in range(20)]
PLACE: Final = Path(f"nvidia_h200/{sample.NAME}/triton.parquet")
Damage = Callable[[bytes], Iterator[bytes]]


def flips(count: int) -> Damage:
    def damage(data: bytes) -> Iterator[bytes]:
        generator = random.Random(0)
        for _ in range(count):
            flipped = bytearray(data)
            flipped[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
            yield bytes(flipped)

    return damage


def truncations(data: bytes) -> Iterator[bytes]:
    return (data[:length] for length in range(len(data)))


def count_accepted(path: Path, read: Callable[[list[TableError]], list[Trial]], damage: Damage) -> tuple[int, int]:
    """Count the damaged versions of a file, and those after which other rows were read without an error."""
    data, before = path.read_bytes(), read([])
    tried = accepted = 0
    for damaged in damage(data):
        path.write_bytes(damaged)
        errors: list[TableError] = []
        rows = read(errors)
        accepted += rows != before and not errors
        tried += 1
    path.write_bytes(data)
    assert read([]) == before
    return tried, accepted


@pytest.mark.slow
@pytest.mark.parametrize(("damage", "least"), [(flips(5000), 5000), (truncations, 5000)], ids=["flips", "truncations"])
def test_a_part_of_a_store(tmp_path: Path, damage: Damage, least: int) -> None:
    store = Store(tmp_path)
    (part,) = store.append(ROWS)
    tried, accepted = count_accepted(part, lambda errors: store.winners(sample.NAME, on_damaged=errors.append), damage)
    assert tried >= least
    assert accepted == 0


@pytest.mark.slow
@pytest.mark.parametrize(("damage", "least"), [(flips(5000), 5000), (truncations, 5000)], ids=["flips", "truncations"])
def test_a_shipped_table(tmp_path: Path, damage: Damage, least: int) -> None:
    write_shipped(PLACE, ROWS, results=tmp_path)

    def read(errors: list[TableError]) -> list[Trial]:
        rows = shipped_winners(sample.NAME, results=tmp_path, on_damaged=errors.append)
        others: list[TableError] = []
        files = list(read_files([tmp_path], others.append))  # what merging and checking read
        assert (not errors) == (not others)
        assert [trial for file in files for trial in file.table.trials] == rows
        return rows

    tried, accepted = count_accepted(tmp_path / PLACE, read, damage)
    assert tried >= least
    assert accepted == 0


@pytest.mark.slow
@pytest.mark.parametrize("damage", [flips(500), truncations], ids=["flips", "truncations"])
def test_the_list_of_digests(tmp_path: Path, damage: Damage) -> None:
    write_shipped(PLACE, ROWS, results=tmp_path)

    def read(errors: list[TableError]) -> list[Trial]:
        return shipped_winners(sample.NAME, results=tmp_path, on_damaged=errors.append)

    assert count_accepted(tmp_path / SUMS_NAME, read, damage)[1] == 0
