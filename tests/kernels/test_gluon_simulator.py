# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""The simulator of Gluon sees what a GPU would: reads before a wait, slots handed back too early, phases that hang."""

from typing import Any

import numpy as np
import pytest
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from autotune.kernels.flash_attention.gluon_hopper.rings import begin_ring, fill, hand_back, take
from autotune.kernels.gluon import (
    barrier_arrive,
    barrier_sync,
    copy_out,
    wait_copies_out,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from tests.kernels.gluon_simulator import simulate
from tests.kernels.simulated_memory import Descriptor
from tests.kernels.simulated_threads import HangError, Threads
from tests.kernels.strided_descriptor import StridedDescriptor

SLOTS = gl.constexpr(2)
TILES = gl.constexpr(6)


@gluon.jit
def _produce(source, ring, FIRST: gl.constexpr):
    for turn in range(TILES):
        fill(ring, source, 0, turn * 16, 0, turn + FIRST, 1, SLOTS)


@gluon.jit
def _consume(source, ring, out, out_tile, EARLY: gl.constexpr, LEFT: gl.constexpr):
    accumulator = gl.zeros([16, 16], gl.float32, None)
    for turn in range(TILES):
        (tile,) = take(ring, turn, 1, SLOTS)
        product = warpgroup_mma(tile, tile.permute((1, 0)), accumulator, is_async=True)
        if EARLY:
            hand_back(ring, turn, SLOTS)
        accumulator = warpgroup_mma_wait(LEFT, deps=[product])
        if not EARLY:
            hand_back(ring, turn, SLOTS)
    out_tile.reshape([16, 16]).store(accumulator)
    copy_out(out, [0, 0, 0, 0], out_tile)
    wait_copies_out(0)


@gluon.jit
def _kernel(source, out, FIRST: gl.constexpr, EARLY: gl.constexpr, LEFT: gl.constexpr):
    ring = begin_ring(source, 1, SLOTS, 1)
    out_tile = gl.allocate_shared_memory(gl.float32, [1, 16, 1, 16], None)
    gl.warp_specialize(
        [(_consume, (source, ring, out, out_tile, EARLY, LEFT)), (_produce, (source, ring, FIRST))], [1], [24]
    )


@gluon.jit
def _meet(ROUNDS: gl.constexpr):
    for _ in gl.static_range(ROUNDS):
        barrier_sync(9, 160)
        barrier_arrive(10, 160)


@gluon.jit
def _come(ROUNDS: gl.constexpr):
    for _ in gl.static_range(ROUNDS):
        barrier_arrive(9, 160)
        barrier_sync(10, 160)  # or it might come to the next round before the others came to this one


@gluon.jit
def _meeting(SYNCS: gl.constexpr, ARRIVALS: gl.constexpr):
    gl.warp_specialize([(_meet, (SYNCS,)), (_come, (ARRIVALS,))], [1], [24])


def run(first: int = 0, early: bool = False, left: int = 0, seed: int = 0) -> tuple[Any, Any]:
    source = np.random.default_rng(0).standard_normal((1, 96, 1, 16)).astype(np.float16)
    out = np.zeros((1, 16, 1, 16), np.float32)
    simulate(_kernel, 1, Descriptor(source, 16), Descriptor(out, 16), first, early, left, seed=seed)
    rows = source[0, :, 0].astype(np.float64).reshape(6, 16, 16)
    return out[0, :, 0], (rows @ rows.transpose(0, 2, 1)).sum(0)


def test_a_sound_kernel_is_right() -> None:
    out, expected = run()
    np.testing.assert_allclose(out, expected, atol=1e-3)


def test_a_descriptor_ends_at_its_sizes_and_adds_addresses_modulo_2_64() -> None:
    memory = np.arange(1.0, 61.0, dtype=np.float16)  # rows of 4
    # 2**30 of the first stride are 2**63 elements, which are all bits of an address, less 2**30 rows.
    ragged = StridedDescriptor(memory, [2**31 - 1, 9, 2**30, 4], [2**33 - 4, 4, 4, 1], [1, 1, 3, 4])
    found = ragged.read([2**30, 7, 2**30 - 2, 0])  # rows 5 and 6, the last of a sequence
    np.testing.assert_array_equal(found[0, 0], [[21, 22, 23, 24], [25, 26, 27, 28], [0, 0, 0, 0]])
    ragged.write([2**30, 7, 2**30 - 1, 0], np.zeros((1, 1, 3, 4)))
    assert memory[24:28].tolist() == [0] * 4
    assert memory[28] == 29
    assert np.isnan(ragged.read([2**30, 8, 0, 0])).all()  # within the sizes, and not of this tensor
    with pytest.raises(AssertionError, match="outside of the tensor"):
        ragged.write([2**30, 8, 0, 0], np.zeros((1, 1, 3, 4)))


@pytest.mark.parametrize("seed", range(8))
def test_a_slot_that_is_handed_back_too_early_gives_wrong_numbers(seed: int) -> None:
    out, expected = run(early=True, seed=seed)
    assert not np.allclose(out, expected, atol=1e-3)


def test_a_product_that_may_still_run_is_not_used() -> None:
    with pytest.raises(AssertionError, match="may still run"):
        run(left=1)


def test_a_wait_for_the_phase_before_hangs() -> None:
    with pytest.raises(HangError, match="a barrier of 1 stays in its phase 0"):
        run(first=1)


def test_a_named_barrier_that_nobody_else_comes_to_hangs() -> None:
    with pytest.raises(HangError, match="128 of 160 threads came"):
        simulate(_meeting, 1, 3, 2)


def order_of(seed: str) -> list[str]:
    """Return in which order steps of two threads and copies ran."""
    threads, steps = Threads(seed), []

    def work(name: str) -> None:
        for step in range(3):
            steps.append(f"{name}{step}")
            threads.complete_later(lambda: steps.append(f"copy of {name}"))
            threads.pause()
        threads.pause_long()
        steps.append(f"{name} ends")

    threads.run([lambda: work("a"), lambda: work("b")])
    return steps


def test_a_seed_gives_one_order_of_threads() -> None:
    orders = [order_of(str(seed)) for seed in range(20)]
    assert orders == [order_of(str(seed)) for seed in range(20)]
    assert len({tuple(order) for order in orders}) > 10


def test_a_long_pause_lasts_until_others_have_ended_half_of_the_time() -> None:
    def is_last(seed: int) -> bool:
        threads, ended = Threads(str(seed)), []

        def wait() -> None:
            threads.pause_long()
            ended.append("late")

        def work() -> None:
            for _ in range(20):
                threads.complete_later(lambda: None)
                threads.pause()
            ended.append("other")

        threads.run([wait, work])
        return ended[-1] == "late"

    assert 20 <= sum(map(is_last, range(60))) <= 40


def test_an_error_of_one_thread_ends_all() -> None:
    threads = Threads("0")

    def fail() -> None:
        threads.pause()
        raise RuntimeError("one fails")

    def wait() -> None:
        threads.pause_until(lambda: False, lambda: "waits")

    with pytest.raises(RuntimeError, match="one fails"):
        threads.run([wait, fail, wait])


def test_threads_that_go_on_count_at_a_named_barrier() -> None:
    simulate(_meeting, 1, 3, 3)
