"""Estimates of schedules against a program that goes through tiles as the kernel does, and against recorded times."""

import math
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest

from autotune.device import NVIDIA_H200
from autotune.search_spaces.flash_attention import makespan
from autotune.search_spaces.flash_attention.gluon_hopper import IMPLEMENTATION
from autotune.search_spaces.flash_attention.gluon_hopper_default import schedule_of, usual_schedule
from autotune.search_spaces.flash_attention.makespan import TIMES, ScheduleTimes, TileSchedule, estimate
from autotune.search_spaces.flash_attention.tile_times import LONGEST, TileTimes, class_of
from autotune.shape import MAX_LENGTH, AttentionShape
from autotune.space import Config
from autotune.table import Sweep, shipped_sweeps
from autotune.trial import Status

SHAPE = AttentionShape(batch=3, heads=10, kv_heads=2, seq_q=300, head_dim=128, causal=True)
TIMES_OF_ALL = ScheduleTimes(TileTimes(block=1.0, edge=0.25, tile=0.5), program=2.0, launch=3.0)


def locate(number: int, shape: AttentionShape, schedule: TileSchedule) -> int:
    """Return the first row of a tile, as ``gluon_hopper``'s ``locate_tile`` computes it."""
    blocks = math.ceil(shape.seq_q / schedule.rows)
    section = schedule.section
    first = number // (section * blocks) * section
    heads = min(section, shape.batch * shape.heads - first)
    inside = number - first * blocks
    head, block = first + inside % heads, inside // heads
    flips = {"natural": 0, "reversed": 3, "alternating": 1}[schedule.row_order]
    return (blocks - 1 - block if flips >> (head % 2) & 1 else block) * schedule.rows


def is_visible(behind: int, shape: AttentionShape) -> bool:
    """Return True if a row sees a key so many places behind its own."""
    inside = shape.window is None or abs(behind) < shape.window
    return inside and not (shape.causal and behind < 0)


def tile_time(first: int, shape: AttentionShape, schedule: TileSchedule, times: ScheduleTimes) -> float:
    """Look at every row and key of a tile."""
    rows = range(first, min(first + schedule.rows, shape.seq_q))
    diagonal = shape.seq_kv - shape.seq_q
    seen, edges = 0, 0
    for low in range(0, shape.seq_kv, schedule.block_k):
        keys = range(low, min(low + schedule.block_k, shape.seq_kv))
        visible = [is_visible(row + diagonal - key, shape) for row in rows for key in keys]
        seen += any(visible)
        edges += any(visible) and not (all(visible) and len(keys) == schedule.block_k)
    blocks = max(1, seen)  # one is masked where no row sees any key
    block, edge, tile = times.of_tile
    return tile + blocks * block + max(edges, blocks - seen) * edge


def walk(shape: AttentionShape, schedule: TileSchedule, times: ScheduleTimes, multiprocessors: int) -> float:
    """Let programs take their tiles one by one, each on the multiprocessor that is free first."""
    count = shape.batch * shape.heads * math.ceil(shape.seq_q / schedule.rows)
    workers = min(count, schedule.workers or count)
    free = [0.0] * multiprocessors
    for program in range(workers):
        numbers = range(program, count, workers)
        taken = times.program + sum(
            tile_time(locate(each, shape, schedule), shape, schedule, times) for each in numbers
        )
        free[free.index(min(free))] += taken
    return times.launch + max(free)


@pytest.mark.parametrize("workers", [None, 5, 7, 9])
@pytest.mark.parametrize(
    ("section", "order"), [(1, "natural"), (1, "alternating"), (4, "reversed"), (16, "alternating")]
)
@pytest.mark.parametrize(
    "shape",
    [
        SHAPE,
        replace(SHAPE, causal=False),
        replace(SHAPE, seq_kv=410),
        replace(SHAPE, seq_kv=130),
        replace(SHAPE, seq_q=1, seq_kv=64),
        replace(SHAPE, window=100),
        replace(SHAPE, window=100, seq_kv=410),
        replace(SHAPE, window=70, causal=False),
        replace(SHAPE, window=200, causal=False, seq_kv=410),
    ],
    ids=str,
)
def test_an_estimate_is_the_time_of_who_is_done_last(
    shape: AttentionShape, section: int, order: str, workers: int | None
) -> None:
    schedule = TileSchedule(1, 64, workers, section, order)
    assert estimate(shape, schedule, TIMES_OF_ALL, 6) == pytest.approx(walk(shape, schedule, TIMES_OF_ALL, 6))


@pytest.mark.parametrize(("section", "order"), [(1, "natural"), (1, "alternating"), (16, "reversed")])
@pytest.mark.parametrize("workers", [132, 264, None])
def test_of_many_tiles_some_heads_stand_for_all(
    section: int, order: str, workers: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = AttentionShape(batch=64, heads=128, seq_q=1386, head_dim=128, causal=True)
    schedule = TileSchedule(2, 128, workers, section, order)
    estimated = estimate(shape, schedule, TIMES_OF_ALL, 132)
    monkeypatch.setattr(makespan, "MOST_TILES", 10**6)
    monkeypatch.setattr(makespan, "MOST_PROGRAMS", 10**6)
    assert estimated == pytest.approx(estimate(shape, schedule, TIMES_OF_ALL, 132), rel=0.01)


@pytest.mark.parametrize(
    "sweep",
    shipped_sweeps("flash_attention", implementation="gluon_hopper"),
    ids=lambda sweep: str(sweep.trials()[0].shape),
)
def test_estimates_are_near_what_a_gpu_recorded(sweep: Sweep) -> None:
    """Of each tile and order of tiles the best of what else differs."""
    trials, least = sweep.trials(), dict[TileSchedule, float]()
    for trial in trials:
        if trial.status is Status.OK and trial.timing is not None:
            schedule = schedule_of(trial.config, trial.device)
            least[schedule] = min(trial.timing.median_us, least.get(schedule, math.inf))
    shape = trials[0].shape
    assert isinstance(shape, AttentionShape)
    known = TIMES[class_of(shape)]
    ratios = [
        estimate(shape, schedule, known[tile], NVIDIA_H200.sm_count) / time
        for schedule, time in least.items()
        if (tile := (schedule.consumers, schedule.block_k)) in known and time < 1.6 * min(least.values())
    ]
    assert len(ratios) >= 5
    assert fmean(abs(math.log(ratio)) for ratio in ratios) < 0.08


# What it is for: the default


def default(**fields: object) -> Config:
    shape = AttentionShape(head_dim=128, **fields)  # type: ignore[arg-type]
    return IMPLEMENTATION.space.default(shape, NVIDIA_H200)


def test_short_sequences_do_not_leave_most_rows_of_their_tiles_empty() -> None:
    """The usual one took 2.1 times as long (NVIDIA H200, 2026-11-27)."""
    found = default(batch=31, heads=64, kv_heads=8, seq_q=129, causal=True)
    assert (found["consumers"], found["BLOCK_K"]) == (3, 64)
    assert default(batch=1, heads=24, seq_q=158)["consumers"] == 1


def test_no_program_has_all_the_long_tiles() -> None:
    """132 programs over 12 heads of 11 tiles each: every program has the same rows of each head it comes to."""
    shape = AttentionShape(batch=5, heads=24, kv_heads=8, seq_q=1386, head_dim=128, causal=True)
    usual, found = usual_schedule(shape, NVIDIA_H200), IMPLEMENTATION.space.default(shape, NVIDIA_H200)
    assert (usual["workers"], usual["row_order"]) == ("sm", "alternating")
    assert found != usual
    assert {**found, "workers": "sm", "section": 1, "row_order": "alternating"} == dict(usual)


def test_no_program_has_all_the_long_tiles_of_a_window() -> None:
    """The usual order took 1.16 times as long (NVIDIA H200, 2026-11-28; ``python -m benchmarks.prefill windows``)."""
    found = default(batch=1, heads=32, kv_heads=8, seq_q=8192, causal=True, window=4096)
    assert (found["workers"], found["section"], found["row_order"]) == ("sm", 16, "reversed")


@pytest.mark.parametrize("seq_q", [LONGEST + 1, MAX_LENGTH])
def test_very_long_sequences_take_the_usual_schedule(seq_q: int) -> None:
    """Estimates take time in proportion to the length: minutes, of the longest."""
    shape = AttentionShape(batch=1, heads=32, kv_heads=8, seq_q=seq_q, head_dim=128, causal=True)
    found = IMPLEMENTATION.space.default(shape, NVIDIA_H200)
    assert found == usual_schedule(shape, NVIDIA_H200)
    assert IMPLEMENTATION.space.estimate is not None
    assert IMPLEMENTATION.space.estimate(found, shape, NVIDIA_H200) is None


def test_with_softcap_estimates_count_where_a_row_sees_more_than_few_keys() -> None:
    """The usual order took 1.15 and 1.62 times as long (NVIDIA H200, 2026-11-27 and 2026-11-28)."""
    sizes: dict[str, Any] = {"softcap": True, "causal": True}
    wide = AttentionShape(batch=14, heads=16, kv_heads=8, seq_q=1130, head_dim=256, **sizes)
    found = IMPLEMENTATION.space.default(wide, NVIDIA_H200)
    assert (found["workers"], found["section"], found["row_order"]) == ("2sm", 16, "reversed")
    assert default(batch=5, heads=32, kv_heads=16, seq_q=720, **sizes)["row_order"] == "reversed"
    few = AttentionShape(batch=4, heads=48, kv_heads=8, seq_q=512, head_dim=128, **sizes)
    assert IMPLEMENTATION.space.default(few, NVIDIA_H200) == usual_schedule(few, NVIDIA_H200)


def test_of_equal_estimates_the_surer_order_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Natural order by 131 workers took 1.19 times as long (NVIDIA H200, 2026-11-28; ``benchmarks.served_regret``)."""
    shape = AttentionShape(batch=10, heads=64, kv_heads=8, seq_q=324, head_dim=128, causal=True)
    times = TIMES[class_of(shape)]
    slow = times[2, 64]._replace(of_tile=TileTimes(block=0.8, edge=0.0, tile=9.0))  # the other is sooner
    monkeypatch.setattr(makespan, "TIMES", {class_of(shape): {(2, 64): slow, (3, 64): times[3, 64]}})
    found = IMPLEMENTATION.space.default.__wrapped__(shape, NVIDIA_H200)  # type: ignore[attr-defined]  # not cached
    assert (found["consumers"], found["BLOCK_K"]) == (3, 64)
    assert (found["workers"], found["section"], found["row_order"]) == ("sm", 4, "reversed")


@pytest.mark.parametrize(
    "fields",
    [{"window": 128}, {"window": 100, "seq_q": 900}, {"softcap": True}, {"head_dim": 64, "head_dim_v": 128}],
    ids=str,
)
def test_where_estimates_err_or_nothing_is_recorded_the_usual_schedule_stays(fields: dict[str, Any]) -> None:
    sizes: dict[str, Any] = {"batch": 31, "heads": 48, "kv_heads": 8, "seq_q": 129, "head_dim": 128, **fields}
    shape = AttentionShape(**sizes, causal=True)
    assert IMPLEMENTATION.space.default(shape, NVIDIA_H200) == usual_schedule(shape, NVIDIA_H200)


def test_another_tile_is_tried_with_results_of_their_own() -> None:
    """Those of the usual one leave through the queries, which a smaller one has no reason for."""
    shape = AttentionShape(batch=8, heads=2, seq_q=1697, seq_kv=265, head_dim=192, head_dim_v=128, causal=True)
    assert usual_schedule(shape, NVIDIA_H200)["results"] == "queries"
    found = IMPLEMENTATION.space.default(shape, NVIDIA_H200)
    assert (found["BLOCK_K"], found["results"]) == (64, "own")


@pytest.mark.parametrize("count", [1, 2, 3, 16])
def test_a_few_multiprocessors_have_a_default(count: int) -> None:
    """As a part of a GPU may."""
    shape = AttentionShape(batch=15, heads=6, kv_heads=2, seq_q=129, seq_kv=43, head_dim=128, causal=True)
    device = replace(NVIDIA_H200, sm_count=count)
    assert IMPLEMENTATION.space.why_invalid(IMPLEMENTATION.space.default(shape, device), shape, device) is None
