"""Fitted times of schedules: known ones are found again, and those that ship are what ships says."""

import itertools
from dataclasses import replace

import pytest

from autotune.device import NVIDIA_H200
from autotune.search_spaces.flash_attention.makespan import TIMES, ScheduleTimes, TileSchedule, estimate
from autotune.search_spaces.flash_attention.tile_times import TileTimes
from autotune.shape import AttentionShape
from benchmarks import schedule_times

KNOWN = {
    (1, 64): ScheduleTimes(TileTimes(0.5, 0.1, 1.2), 2.5, 3.0),
    (2, 64): ScheduleTimes(TileTimes(1.0, 0.1, 1.2), 2.5, 3.0),
    (2, 128): ScheduleTimes(TileTimes(1.6, 0.4, 1.2), 2.5, 3.0),
}


def numbers(times: ScheduleTimes) -> list[float]:
    return [*times.of_tile, times.program, times.launch]


def observed(tile: tuple[int, int], batch: int, seq: int, workers: int | None) -> schedule_times.Observed:
    shape = AttentionShape(batch=batch, heads=16, seq_q=seq, head_dim=128, causal=True)
    schedule = TileSchedule(*tile, workers, 1, "reversed")
    return schedule_times.Observed(shape, NVIDIA_H200, schedule, estimate(shape, schedule, KNOWN[tile], 132))


def test_known_times_are_found_again() -> None:
    """Also beside one time that is four times what it should be."""
    products = itertools.product(KNOWN, (1, 3, 8), (100, 300, 1000), (132, 264, None))
    every = [observed(*each) for each in products]
    found, error = schedule_times.fit([*every, every[0]._replace(time=4.0 * every[0].time)])
    assert error == pytest.approx(0.017, abs=0.002)  # of the one: ln 4 over 82
    assert found.keys() == KNOWN.keys()
    for tile, times in found.items():
        assert numbers(times) == pytest.approx(numbers(KNOWN[tile]), abs=0.02), tile


def test_a_fit_does_not_depend_on_the_order_of_recordings() -> None:
    """Full masks over whole blocks have no edges, and one program's tiles no time of their own."""
    every = [observed((2, 64), batch, 1024, 132) for batch in (1, 2, 4)]
    every = [each._replace(shape=replace(each.shape, causal=False)) for each in every]
    found, _ = schedule_times.fit(every)
    for order in itertools.permutations(every):
        assert numbers(schedule_times.fit(order)[0][2, 64]) == pytest.approx(numbers(found[2, 64]), abs=1e-3)


def test_tiles_of_few_recordings_are_not_fitted() -> None:
    every = [observed((2, 64), batch, 1024, 132) for batch in range(1, 1 + schedule_times.LEAST)]
    assert schedule_times.often_observed([*every, observed((2, 128), 1, 1024, 132)]) == every
    alone = [observed((1, 64), batch, 1024, 132) for batch in range(1, schedule_times.LEAST)]
    assert schedule_times.often_observed(alone) == []
    found, _ = schedule_times.fit(schedule_times.often_observed([*alone, every[0]]))  # one block of two counts as half
    assert found[1, 64].of_tile.block == found[2, 64].of_tile.block / 2


@pytest.mark.slow
def test_the_times_that_ship_are_those_that_are_fitted(capsys: pytest.CaptureFixture[str]) -> None:
    schedule_times.main([])
    printed = capsys.readouterr().out
    fitted = printed.split("\n\n")[0]
    assert fitted.count("TileTimes(") == sum(map(len, TIMES.values()))
    for kind, tiles in TIMES.items():
        assert f"    {kind}: {{" in printed
        for tile, times in tiles.items():
            block, edge, own, program, launch = (f"{value:.2f}" for value in numbers(times))
            assert f"        {tile}: ScheduleTimes(TileTimes({block}, {edge}, {own}), {program}, {launch})," in printed
