"""Estimates of schedules against a program that goes through tiles as the kernel does, and against recorded times."""

import math
from dataclasses import replace
from statistics import fmean

import pytest

from autotune.device import NVIDIA_H200
from autotune.search_spaces.flash_attention import makespan
from autotune.search_spaces.flash_attention.makespan import LAUNCH, PROGRAM, TileSchedule, estimate, schedule_of
from autotune.search_spaces.flash_attention.tile_work import rough_times
from autotune.shape import AttentionShape
from autotune.table import Sweep, shipped_sweeps
from autotune.trial import Status

SHAPE = AttentionShape(batch=3, heads=10, kv_heads=2, seq_q=300, head_dim=128, causal=True)


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


def tile_time(first: int, shape: AttentionShape, schedule: TileSchedule) -> float:
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
    block, edge, tile = rough_times(shape, schedule.rows, schedule.block_k)
    return tile + blocks * block + max(edges, blocks - seen) * edge


def walk(shape: AttentionShape, schedule: TileSchedule, multiprocessors: int) -> float:
    """Let programs take their tiles one by one, each on the multiprocessor that is free first."""
    count = shape.batch * shape.heads * math.ceil(shape.seq_q / schedule.rows)
    workers = min(count, schedule.workers or count)
    free = [0.0] * multiprocessors
    for program in range(workers):
        numbers = range(program, count, workers)
        taken = PROGRAM + sum(tile_time(locate(each, shape, schedule), shape, schedule) for each in numbers)
        free[free.index(min(free))] += taken
    return LAUNCH + max(free)


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
    assert estimate(shape, schedule, 6) == pytest.approx(walk(shape, schedule, 6))


@pytest.mark.parametrize(("section", "order"), [(1, "natural"), (1, "alternating"), (16, "reversed")])
@pytest.mark.parametrize("workers", [132, 264, None])
def test_of_many_tiles_some_heads_stand_for_all(
    section: int, order: str, workers: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = AttentionShape(batch=64, heads=128, seq_q=1386, head_dim=128, causal=True)
    schedule = TileSchedule(2, 128, workers, section, order)
    estimated = estimate(shape, schedule, 132)
    monkeypatch.setattr(makespan, "MOST_TILES", 10**6)
    monkeypatch.setattr(makespan, "MOST_PROGRAMS", 10**6)
    assert estimated == pytest.approx(estimate(shape, schedule, 132), rel=0.01)


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
    ratios = [
        math.log(estimate(shape, schedule, NVIDIA_H200.sm_count) / time)
        for schedule, time in least.items()
        if time < 1.6 * min(least.values())
    ]
    assert len(ratios) >= 5
    usual = fmean(ratios)  # rough times of tiles are of no heads in particular
    assert abs(usual) < 0.15
    assert fmean(abs(ratio - usual) for ratio in ratios) < 0.05
