"""Unevenness of lengths decides a decode's schedule: even batches and ragged ones are not served each other's config.

The truth is what ships: winners, and a sweep that timed every config of a ragged batch.
"""

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Final

import pytest

from autotune.dispatch import MAX_DISTANCE, get_kernel, neighbour_configs
from autotune.search_spaces.paged_decode.triton import IMPLEMENTATION
from autotune.shape import PagedShape
from autotune.table import shipped_sweeps, shipped_winners
from autotune.trial import Stage, Trial
from tests.dispatch.tables import H200, Tables

RESULTS: Final = Path(__file__).resolve().parents[2] / "results"
EVEN: Final = PagedShape(batch=64, heads=8, kv_heads=1, max_context=4096, head_dim=128)
RAGGED: Final = replace(EVEN, max_context=8192, mean_context=4096)  # lengths drawn uniformly
GROUPED: Final = PagedShape(batch=64, heads=32, kv_heads=8, max_context=8192, head_dim=128)
ALONE: Final = PagedShape(batch=1, heads=32, kv_heads=8, max_context=8192, head_dim=128)


# Named, so that what is recorded later is no nearer to what is asked than these.
KEPT: Final = [
    *(replace(GROUPED, max_context=most, mean_context=mean) for most, mean in ((2048, 2048), (4096, 4096))),
    *(replace(GROUPED, max_context=most, mean_context=mean) for most, mean in ((8192, 4096), (65536, 1500))),
    *(replace(ALONE, max_context=context, mean_context=context) for context in (4096, 8192)),
]


def recorded() -> dict[PagedShape, Trial]:
    """The shipped winners of the H200."""
    found = [trial for trial in shipped_winners("paged_decode", results=RESULTS) if trial.device.name == H200]
    return {trial.shape: trial for trial in found if isinstance(trial.shape, PagedShape)}


def swept(shape: PagedShape) -> list[Trial]:
    """Every config that was timed for a shape, as it was screened."""
    sweeps = [sweep.trials() for sweep in shipped_sweeps("paged_decode", results=RESULTS)]
    return [
        trial
        for trials in sweeps
        for trial in trials
        if trial.shape == shape and trial.stage is Stage.SCREEN and trial.timing is not None
    ]


def test_recorded_shapes_would_not_be_served_anothers_schedule() -> None:
    pairs = combinations(recorded().values(), 2)
    near = [(one, other) for one, other in pairs if one.shape.distance(other.shape) <= MAX_DISTANCE]
    assert near
    apart = [(str(a.shape), str(b.shape)) for a, b in near if a.config["schedule"] != b.config["schedule"]]
    assert len(apart) <= 0.1 * len(near), apart  # none of 16 (NVIDIA H200, 2026-11-29); schedules may tie


def test_what_a_ragged_batch_is_served_beside_an_even_winner_is_near_the_best_of_its_sweep(tables: Tables) -> None:
    times = {trial.config: trial.timing.median_us for trial in swept(RAGGED) if trial.timing is not None}
    best = min(times.values())
    even = recorded()[EVEN]
    assert times[even.config] > 1.15 * best  # what the mistake costs
    tables.tune(even)
    assert times[get_kernel(RAGGED, device=H200).config] < 1.03 * best


@pytest.mark.parametrize(
    ("shape", "schedule"),
    [
        (replace(GROUPED, max_context=4096, mean_context=2048), "flat"),
        (GROUPED, "split"),
        (replace(GROUPED, max_context=65536, mean_context=2000), "flat"),
        (replace(GROUPED, max_context=131072, mean_context=1500), "flat"),
        (replace(GROUPED, mean_context=3072), "flat"),
        (replace(GROUPED, mean_context=7680), "split"),  # of 8192 that a table of 7700 is rounded up to
        (replace(ALONE, mean_context=4096), "split"),
        (replace(ALONE, max_context=131072, mean_context=8192), "split"),
    ],
    ids=str,
)
def test_a_batch_is_served_a_row_as_uneven_as_itself(tables: Tables, shape: PagedShape, schedule: str) -> None:
    rows = recorded()
    tables.tune(*(rows[each] for each in KEPT))
    kernel = get_kernel(shape, device=H200)
    assert (kernel.provenance.rung, kernel.config["schedule"]) == ("nearest", schedule)


def test_halfway_between_an_even_batch_and_a_ragged_one_neither_is_near(tables: Tables) -> None:
    rows = recorded()
    tables.tune(*(rows[each] for each in KEPT))
    kernel = get_kernel(replace(GROUPED, max_context=4096, mean_context=3072), device=H200)
    # hypot(4 x 1/4, log2(4 / 3)), of the winner of 4096 tokens as of the ragged one
    assert kernel.provenance.reason.endswith(" is 1.08 away: the space's default")
    assert kernel.provenance.rung == "default"


def test_a_search_begins_at_winners_as_uneven_as_the_shape(tables: Tables) -> None:
    rows = recorded()
    tables.tune(rows[EVEN], rows[RAGGED])
    near, far = rows[RAGGED].config, rows[EVEN].config
    asked = replace(RAGGED, max_context=4096, mean_context=2048)
    assert neighbour_configs(IMPLEMENTATION, asked, rows[EVEN].device) == [near, far]
    assert neighbour_configs(IMPLEMENTATION, replace(asked, mean_context=4096), rows[EVEN].device) == [far, near]
    assert asked.distance(EVEN) > MAX_DISTANCE >= asked.distance(RAGGED)
