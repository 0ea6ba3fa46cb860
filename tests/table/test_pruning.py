"""Pruning drops what a rule names and nothing else; a dry run changes no byte; compacting loses no row."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.table import Store, raise_damaged, winners
from autotune.table.pruning import Going, Rules, compact_store, going_rows, prune
from autotune.trial import Conditions, Resources, Stage, Status, Trial
from tests.table import sample
from tests.table.test_outsiders import shrink

SOURCE = sample.IMPLEMENTATION.source_hash


def trial(number: int, median: float = 100.0, **changes: Any) -> Trial:
    fields = {"source_hash": SOURCE, "timing": sample.timing(median), **changes}
    return sample.trial(number, **fields)


def screened(number: int, median: float, **changes: Any) -> Trial:
    return trial(number, median, stage=Stage.SCREEN, race_id="", **changes)


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def of(store: Store) -> set[int]:
    return {each.number for each in store.trials(sample.NAME)}


def apply(store: Store, **rules: Any) -> list[Going]:
    """Count first, which must change nothing and tell what then goes."""
    before, rows = files(store.root), of(store)
    counted = prune(store, Rules(**rules), raise_damaged)
    assert files(store.root) == before
    done = prune(store, Rules(**rules), raise_damaged, apply=True)
    assert [(each.rows, each.counts, each.winners) for each in done] == [
        (each.rows, each.counts, each.winners) for each in counted
    ]
    assert len(rows) - len(of(store)) == sum(count for each in done for name, count in each.counts.items())
    assert sum(each.total for each in prune(store, Rules(**rules), raise_damaged)) == 0
    return done


def test_rows_of_older_source_go_with_their_winners_named(tmp_path: Path) -> None:
    store, old = Store(tmp_path), trial(1, source_hash="cd" * 32, config=sample.config(16))
    store.append([old])
    store.append([trial(2, race_id="b"), trial(3, race_id="b", config=sample.config(64), source_hash="cd" * 32)])
    (going,) = prune(store, Rules(stale=True), raise_damaged)
    assert (going.counts, going.rows, going.winners) == ({"stale": 2}, 3, ())  # that of race b stays
    prune(store, Rules(stale=True), raise_damaged, apply=True)
    assert of(store) == {2}
    store.append([trial(9, source_hash="cd" * 32, race_id="z")])
    (going,) = prune(store, Rules(stale=True), raise_damaged)
    assert [each.number for each in going.winners] == [9]


def test_failed_trials_go_and_slow_ones_stay(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.append([trial(1), screened(2, 300.0, status=Status.SLOW), *_failures()])
    apply(store, failed=True)
    assert of(store) == {1, 2}


def _failures() -> list[Trial]:
    statuses = (Status.HANG, Status.WRONG_RESULT, Status.COMPILE_ERROR)
    return [screened(10 + place, 1.0, status=status, timing=None) for place, status in enumerate(statuses)]


def test_losers_go_and_winner_default_and_served_stay(tmp_path: Path) -> None:
    store = Store(tmp_path)
    configs = [sample.config(block, warps) for block in (16, 32, 64) for warps in (2, 4, 8)]
    rows = [trial(place, 100.0 + 10 * place, config=config) for place, config in enumerate(configs)]
    rows[7] = trial(7, 170.0, config=configs[7], is_default=True)
    rows[8] = trial(8, 180.0, config=configs[8], is_served=True, served_rung="default")
    store.append(rows)
    store.append([screened(20 + place, 200.0 + place, config=config) for place, config in enumerate(configs)])
    before = store.winners(sample.NAME)
    (going,) = apply(store, keep=2)
    assert going.winners == ()
    assert of(store) == {0, 1, 7, 8, 20, 21}
    assert store.winners(sample.NAME) == before


RACED = st.builds(
    lambda number, block, warps, median, race, contended, shared: trial(
        number,
        median,
        config=sample.config(block, warps),
        race_id=race,
        conditions=Conditions(contended=contended),
        resources=Resources(shared_bytes=shared),
    ),
    number=st.integers(0, 50),
    block=st.sampled_from((16, 32, 64)),
    warps=st.sampled_from((2, 4, 8)),
    median=st.sampled_from((100.0, 100.4, 100.9, 103.0, 120.0)),
    race=st.sampled_from(("a", "b", "c")),
    contended=st.booleans(),
    shared=st.sampled_from((None, 1, 2)),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(RACED, min_size=1, max_size=12), st.integers(1, 3))
def test_dropping_losers_never_moves_a_winner(rows: list[Trial], keep: int) -> None:
    going = going_rows(rows, Rules(keep=keep))
    assert winners(set(rows) - going.keys()) == winners(rows)


def test_parts_with_rows_of_another_space_stay_whole_unless_these_are_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    store.append([trial(1), trial(2, config=sample.config(64)), trial(3, status=Status.HANG, timing=None)])
    shrink(monkeypatch)
    (going,) = prune(store, Rules(failed=True), raise_damaged, apply=True)
    assert (going.total, len(going.held)) == (0, 1)
    assert of(store) == {1, 3}
    (going,) = prune(store, Rules(failed=True, outside=True), raise_damaged, apply=True)
    assert going.counts == {"failed": 1, "outside": 1}
    assert (of(store), store.outsiders()) == ({1}, [])


def test_a_store_may_be_pruned_to_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.append([trial(1, source_hash="cd" * 32)])
    apply(store, stale=True)
    assert store.trials(sample.NAME) == store.winners(sample.NAME) == []


def test_a_damaged_part_is_reported_and_left(tmp_path: Path) -> None:
    store = Store(tmp_path)
    (part,) = store.append([trial(1)])
    store.append([trial(2, status=Status.HANG, timing=None)])
    part.write_bytes(b"damaged")
    errors: list[Exception] = []
    prune(store, Rules(failed=True), errors.append, apply=True)
    assert part.read_bytes() == b"damaged"
    assert "damaged" in str(errors[0])


def test_compacting_leaves_one_part_and_every_row(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number in range(5):
        store.append([trial(number)])
    store.append([trial(9, device=sample.MI300X, config=sample.config(kpack=1))])
    before = store.trials(sample.NAME)
    found = {shelf.device.name: (parts, after) for shelf, parts, after in compact_store(store, raise_damaged)}
    assert found == {"nvidia_h200": (5, 1), sample.MI300X.slug: (1, 1)}
    assert store.trials(sample.NAME) == before
