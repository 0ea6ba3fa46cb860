"""The model of the memory behind the L2, against a cache that is simulated line by line."""

from collections import OrderedDict
from collections.abc import Iterator

import pytest

from autotune.dtypes import ITEM_BYTES
from autotune.lab.formulas import fused_movements, naive_movements, total_bytes
from autotune.lab.roofline.dram import Dram, batch_past_l2, fused_dram, keys_in_flight, naive_dram
from autotune.shape import AttentionShape

LINE = 128  # bytes
SHAPE = AttentionShape(batch=2, heads=4, seq_q=64, head_dim=64, dtype="float32")

Access = tuple[str, int, bool]  # tensor, line, whether it is written


class Cache:
    """Least recently used, write-back; a line that is written whole is not fetched."""

    def __init__(self, size: int) -> None:
        self.lines: OrderedDict[tuple[str, int], bool] = OrderedDict()
        self.room = size // LINE
        self.read = self.written = 0

    def touch(self, tensor: str, line: int, is_written: bool) -> None:
        key = (tensor, line)
        if key not in self.lines:
            self.read += 0 if is_written else LINE
            self.lines[key] = False
        self.lines[key] |= is_written
        self.lines.move_to_end(key)
        if len(self.lines) > self.room:
            _, is_dirty = self.lines.popitem(last=False)
            self.written += LINE if is_dirty else 0


def lines_of(shape: AttentionShape, width: int) -> int:
    """Lines that a head's rows of that width fill."""
    return shape.seq_q * width * ITEM_BYTES[shape.dtype] // LINE


def rows_of(shape: AttentionShape, tensor: str, head: int, first: int, count: int, width: int) -> list[tuple[str, int]]:
    """The lines of some rows of a head."""
    row = lines_of(shape, width) // shape.seq_q
    start = head * lines_of(shape, width) + first * row
    return [(tensor, line) for line in range(start, start + count * row)]


def run_naive(shape: AttentionShape, kernel: str) -> Iterator[Access]:
    """Head after head, a row of scores at a time."""
    for head in range(shape.batch * shape.heads):
        for row in range(shape.seq_q):
            scores = rows_of(shape, "scores", head, row, 1, shape.seq_kv)
            if kernel == "attention_scores":
                yield from ((*line, False) for line in rows_of(shape, "q", head, row, 1, shape.head_dim))
                yield from ((*line, False) for line in rows_of(shape, "k", head, 0, shape.seq_kv, shape.head_dim))
                yield from ((*line, True) for line in scores)
            elif kernel == "softmax_rows":
                for is_written in (False, False, True):  # twice over the row, then in its place
                    yield from ((*line, is_written) for line in scores)
            else:
                yield from ((*line, False) for line in scores)
                yield from ((*line, False) for line in rows_of(shape, "v", head, 0, shape.seq_kv, shape.head_dim_v))
                yield from ((*line, True) for line in rows_of(shape, "out", head, row, 1, shape.head_dim_v))


@pytest.mark.parametrize("size", [32 * 2**10, 64 * 2**10])
def test_naive_kernels_move_what_a_simulated_cache_moves(size: int) -> None:
    for dram in naive_dram(SHAPE, size):
        cache = Cache(size)
        for access in run_naive(SHAPE, dram.kernel):
            cache.touch(*access)
        assert dram.read == cache.read, dram.kernel
        # Which lines are the last depends on the order; what the cache holds at the end bounds the difference.
        assert dram.write == pytest.approx(cache.written, abs=size / 4), dram.kernel


def test_the_fused_kernel_moves_what_a_simulated_cache_moves() -> None:
    size, block_q = 64 * 2**10, 16
    cache = Cache(size)
    for head in range(SHAPE.batch * SHAPE.heads):
        for first in range(0, SHAPE.seq_q, block_q):
            for tensor, start, count in (("q", first, block_q), ("k", 0, SHAPE.seq_kv), ("v", 0, SHAPE.seq_kv)):
                for line in rows_of(SHAPE, tensor, head, start, count, SHAPE.head_dim):
                    cache.touch(*line, False)
            for line in rows_of(SHAPE, "out", head, first, block_q, SHAPE.head_dim):
                cache.touch(*line, True)
    found = fused_dram(SHAPE, block_q, 16, size)
    assert found.read == cache.read
    assert found.write == pytest.approx(cache.written, abs=size / 4)
    assert found.most == 8 * (4 * 16384 * 2 + 2 * 16384)  # K and V four times, Q and the output once


def test_what_fits_the_l2_is_never_written() -> None:
    assert [dram.write for dram in naive_dram(SHAPE, 2**30)] == [0, 0, 0]
    assert fused_dram(SHAPE, 16, 16, 2**30) == Dram(
        "flash_attention_forward", 3 * 8 * 16384, 0, fused_dram(SHAPE, 16, 16, 1).most
    )


def test_without_an_l2_all_is_written() -> None:
    found = naive_dram(SHAPE, 0)
    assert sum(dram.total for dram in found) == total_bytes(naive_movements(SHAPE))
    assert [dram.kernel for dram in found] == ["attention_scores", "softmax_rows", "weighted_sum"]


def test_the_batch_makes_everything_eight_times_the_l2() -> None:
    l2_bytes = 60 * 2**20
    for seq in (1024, 4096):
        shape = AttentionShape(batch=1, heads=16, seq_q=seq, head_dim=128)
        batch = batch_past_l2(shape, l2_bytes)

        def least(count: int, seq: int = seq) -> int:
            large = AttentionShape(batch=count, heads=16, seq_q=seq, head_dim=128)
            return min(total_bytes(fused_movements(large)), 2 * count * 16 * seq * seq)

        assert least(batch) >= 8 * l2_bytes > least(batch - 1)
    assert batch_past_l2(AttentionShape(batch=5, heads=16, seq_q=1024, head_dim=128), l2_bytes) == 30


def test_keys_in_flight_are_those_of_the_heads_that_run() -> None:
    """132 SMs of 2 programs are 264: 8 of a head at S 1024 with tiles of 128 make 33 heads and one begun."""
    shape = AttentionShape(batch=16, heads=16, seq_q=1024, head_dim=128)
    assert keys_in_flight(shape, 128, 132) == 34 * 2 * 1024 * 128 * 2
    grouped = AttentionShape(batch=16, heads=32, kv_heads=8, seq_q=1024, head_dim=128)
    assert keys_in_flight(grouped, 128, 132) == 10 * 2 * 1024 * 128 * 2
    assert keys_in_flight(AttentionShape(batch=1, heads=2, seq_q=128, head_dim=64), 128, 132) == 2 * 2 * 128 * 64 * 2
