"""Every process picks the same, and threads are served while tables change."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final

import pytest

from autotune import table
from autotune.device import NVIDIA_H200
from autotune.dispatch import get_kernel
from autotune.dispatch.ladder import climb
from autotune.table import Served, Store
from tests import sample
from tests.dispatch.tables import H200, SLOWER, THIRD, Tables, in_fresh_process

PRINT_PICKS: Final = """
from autotune import AttentionShape, get_kernel
for seq, batch in [(1024, 16), (1500, 10), (1024, 15), (64, 1)]:
    shape = AttentionShape(batch=batch, heads=16, seq_q=seq, head_dim=128, causal=True)
    kernel = get_kernel(shape, device="NVIDIA H200")
    print(kernel.config, kernel.provenance)
"""


def test_every_process_picks_the_same(tables: Tables) -> None:
    configs = (sample.FAST, SLOWER, THIRD, sample.config(num_stages=3))
    shapes = [sample.shape(batch=batch) for batch in (14, 16, 18)] + [sample.shape(2048)]
    for number, (shape, config) in enumerate(zip(shapes, configs, strict=True)):
        tables.tune(sample.trial(shape, config, race_id=f"race-{number}"))
    picks = {in_fresh_process(PRINT_PICKS, tables.home, PYTHONHASHSEED=seed) for seed in ("0", "77")}
    assert len(picks) == 1
    assert picks.pop().count("tuned for") == 3


def test_threads_look_up_while_tables_change(tables: Tables) -> None:
    other = sample.trial(sample.shape(4096), THIRD)
    tables.ship(sample.trial(), other)

    is_over = threading.Event()

    def look_up() -> None:
        while not is_over.is_set():
            for batch in (14, 15, 16):
                assert get_kernel(sample.shape(batch=batch), device=H200).config in (sample.FAST, SLOWER)
            assert get_kernel(sample.shape(4096), device=H200).config == THIRD
            time.sleep(0.001)  # lets the writer have its turns

    with ThreadPoolExecutor(8) as pool:
        done = [pool.submit(look_up) for _ in range(8)]
        try:
            for turn in range(12):
                chosen = (SLOWER, sample.FAST)[turn % 2]
                tables.ship(sample.trial(chosen=chosen), other)
                assert get_kernel(sample.shape(), device=H200).config == chosen
        finally:
            is_over.set()
        for future in done:
            future.result()


@pytest.mark.parametrize("device", [H200, None])
def test_a_pick_begun_before_a_reload_is_not_served_after_it(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, device: str | None
) -> None:
    tables.ship(sample.trial())
    shape = sample.shape()
    has_read, may_end = threading.Event(), threading.Event()

    def climb_late(*arguments: Any, **options: Any) -> Any:
        has_read.set()
        assert may_end.wait(10)
        return climb(*arguments, **options)

    monkeypatch.setattr("autotune.dispatch.alternatives.climb", climb_late)
    late = threading.Thread(target=get_kernel, args=(shape,), kwargs={"device": device})
    late.start()
    assert has_read.wait(10)
    monkeypatch.setattr("autotune.dispatch.alternatives.climb", climb)
    tables.ship(sample.trial(chosen=SLOWER))
    may_end.set()
    late.join()
    for asked in (shape, sample.shape()):
        assert get_kernel(asked, device=device).config == SLOWER


@pytest.mark.slow
def test_100000_lookups_by_32_threads_meet_no_error_and_no_mixed_table(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's and the shipped table are replaced, and read again, 1,000 times meanwhile."""
    versions = {sample.FAST: 200.0, SLOWER: 210.0, THIRD: 220.0}  # all rows of a table are of one version
    shapes = [sample.shape(1024 * 2**power, batch=1) for power in range(3)]
    mixed: list[object] = []
    stored_winners = table.stored_winners

    def watch(*names: Any, **options: Any) -> list[Served]:
        rows = stored_winners(*names, **options)
        shipped = {row.trial.config for row in rows if row.origin == "shipped"}
        if len(shipped) != 1 or len(rows) != len(shapes) + 1:
            mixed.append(rows)
        return rows

    def ship(count: int) -> None:
        config = list(versions)[count % 3]
        tables.ship(*[sample.trial(shape, config, timing=sample.timing(versions[config])) for shape in shapes])

    def look_up() -> int:
        count = 0
        while count < 3125 or not is_over.is_set():
            for shape in [sample.shape(512), *map(replace, shapes)]:
                kernel = get_kernel(shape, device=H200)
                row = kernel.provenance.row
                assert row is not None
                assert row.timing is not None
                assert row.timing.median_us == versions[kernel.config]
                assert row.shape == shape
                assert kernel.provenance.origin == ("user" if shape.seq_q == 512 else "shipped")
            count += 4
            time.sleep(0.05)  # spreads the look-ups over all 1,000 tables; 32 busy threads starve who writes them
        return count

    is_over = threading.Event()
    own = sample.trial(sample.shape(512), timing=sample.timing(versions[sample.FAST]))
    tables.tune(own)
    ship(0)
    monkeypatch.setattr(table, "stored_winners", watch)
    with ThreadPoolExecutor(32) as pool:
        done = [pool.submit(look_up) for _ in range(32)]
        for count in range(1, 1001):
            ship(count)
            if count % 10 == 0:
                Store(tables.home).compact("flash_attention", NVIDIA_H200)
        is_over.set()
        assert sum(future.result() for future in done) >= 100_000
    assert mixed == []
