"""Merging is a union: any order, any number of times, and what is refused is named."""

import dataclasses
import itertools
import shutil
from pathlib import Path

import pyarrow as pa

from autotune.table import Merged, Store, merge, write_shipped
from autotune.table.comparisons import VERSION, VERSION_KEY
from autotune.table.parquet import to_parquet
from tests.table import sample


def _store(root: Path, *numbers: int) -> Store:
    store = Store(root)
    store.append(sample.trial(number) for number in numbers)
    return store


def test_folders_and_files_are_added_once(tmp_path: Path) -> None:
    store = _store(tmp_path / "mine", 1, 2)
    other = _store(tmp_path / "other", 2, 3)
    other.append([sample.trial(4, device=sample.MI300X, config=sample.config(kpack=1))])
    (part,) = _store(tmp_path / "third", 5).append([sample.trial(6)])
    assert merge([other.root, part], store) == Merged(files=3, rows=4, added=3, refused=())
    assert {trial.number for trial in store.trials(sample.NAME)} == {1, 2, 3, 4, 6}
    before = sorted(store.root.rglob("*"))
    assert merge([other.root, part, store.root], store).added == 0
    assert sorted(store.root.rglob("*")) == before


def test_order_and_grouping_do_not_matter(tmp_path: Path) -> None:
    sources = [
        _store(tmp_path / name, *numbers).root for name, numbers in {"a": (1, 2), "b": (2, 3), "c": (1, 4)}.items()
    ]
    found = set()
    for number, order in enumerate(itertools.permutations(sources)):
        at_once, one_by_one = Store(tmp_path / f"x{number}"), Store(tmp_path / f"y{number}")
        merge(order, at_once)
        for source in order:
            merge([source], one_by_one)
        found |= {tuple(at_once.trials(sample.NAME)), tuple(one_by_one.trials(sample.NAME))}
    assert len(found) == 1


def test_rows_that_differ_in_anything_are_kept_side_by_side(tmp_path: Path) -> None:
    one = sample.trial(1)
    others = [
        dataclasses.replace(one, source_hash="cd" * 32),
        dataclasses.replace(one, toolchain=dataclasses.replace(one.toolchain, triton="3.9.0")),
        dataclasses.replace(one, toolchain=dataclasses.replace(one.toolchain, driver="580")),
        dataclasses.replace(one, device=sample.CAPPED_H200),
    ]
    store = Store(tmp_path / "mine")
    for number, trial in enumerate([one, *others]):
        source = Store(tmp_path / str(number))
        source.append([trial])
        merge([source.root], store)
    assert set(store.trials(sample.NAME)) == {one, *others}


def test_results_are_vouched_for_by_their_list(tmp_path: Path) -> None:
    results, store = tmp_path / "results", Store(tmp_path / "mine")
    winners, sweep = (Path(f"nvidia_h200/{sample.NAME}/{name}.parquet") for name in ("triton", "sweeps/triton_prefill"))
    write_shipped(winners, [sample.trial(1)], results=results)
    write_shipped(sweep, [sample.trial(2)], results=results)
    assert merge([results / sweep], store) == Merged(1, 1, 1, ())
    assert merge([results], store) == Merged(1, 1, 1, (), recordings=1)  # whose rows would be served from a store
    shutil.copy(results / winners, results / "nvidia_h200" / sample.NAME / "unlisted.parquet")
    (refused,) = merge([results], store).refused
    assert "unlisted.parquet: not listed" in refused


def test_refused_files_are_named_and_the_others_merged(tmp_path: Path) -> None:
    store, source = Store(tmp_path / "mine"), _store(tmp_path / "source", 1)
    (damaged,) = source.append([sample.trial(2)])
    damaged.write_bytes(damaged.read_bytes()[:-1])
    nameless = tmp_path / "table.parquet"
    shutil.copy(_store(tmp_path / "other", 3).append([sample.trial(3)])[0], nameless)
    absent = tmp_path / "absent.parquet"
    result = merge([source.root, nameless, absent], store)
    assert (result.files, result.rows, result.added) == (1, 1, 1)
    reasons = {str(damaged): "damaged", str(nameless): "nothing vouches", str(absent): "No such file"}
    assert len(result.refused) == 3
    for (path, reason), refused in zip(reasons.items(), result.refused, strict=True):
        assert refused.startswith(f"{path}: ")
        assert reason in refused


def test_a_damaged_part_of_the_store_is_healed_by_its_backup_and_else_reported(tmp_path: Path) -> None:
    store = Store(tmp_path / "mine")
    (part,) = store.append([sample.trial(1)])
    shutil.copytree(store.root, tmp_path / "backup")
    part.write_bytes(b"damaged")
    result = merge([tmp_path / "backup"], store)
    assert (result.added, result.refused, result.repaired) == (1, (), 1)
    part.write_bytes(b"damaged")
    assert "damaged" in merge([_store(tmp_path / "other", 2).root], store).refused[0]  # no source has it whole
    merge([tmp_path / "backup"], store)
    assert store.trials(sample.NAME) == [sample.trial(1), sample.trial(2)]


def test_comparisons_that_lie_beside_tables_are_no_fault(tmp_path: Path) -> None:
    results = tmp_path / "results"
    write_shipped(Path(f"nvidia_h200/{sample.NAME}/triton.parquet"), [sample.trial(1)], results=results)
    table = pa.table({"name": ["sdpa"]})
    (results / "nvidia_h200" / "bench").mkdir()
    (results / "nvidia_h200" / "bench" / "any.parquet").write_bytes(to_parquet(table, {VERSION_KEY: VERSION}))
    assert merge([results], Store(tmp_path / "mine")) == Merged(files=1, rows=1, added=1, refused=())
