"""Counters: whose memory they are, that they are 0, and that launches which may meet never share any."""

import math
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autotune.correctness import error_limit
from autotune.kernels.paged_decode.definition import DEFINITION
from autotune.kernels.paged_decode.inputs import CheckShape
from autotune.kernels.paged_decode.triton import KERNEL, counters
from tests.contract.implementations.paged_decode_triton import config_of
from tests.kernels.numerics import compare

GPU = torch.device("cuda", 0)
BYTES = 4  # of a counter


@dataclass
class FakeGpu:
    """The part of torch that counters ask for, in the memory of the CPU."""

    stream: int = 0
    is_capturing: bool = False
    waits: int = 0

    def as_torch(self) -> SimpleNamespace:
        cuda = SimpleNamespace(
            current_stream=self.current_stream, is_current_stream_capturing=lambda: self.is_capturing
        )
        return SimpleNamespace(zeros=self.zeros, int32=torch.int32, cuda=cuda)

    def zeros(self, count: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        assert device.type in ("cuda", "cpu")
        return torch.zeros(count, dtype=dtype)

    def current_stream(self, device: torch.device) -> SimpleNamespace:
        assert device == GPU
        return SimpleNamespace(cuda_stream=self.stream, synchronize=self.synchronize)

    def synchronize(self) -> None:
        self.waits += 1

    def capture(self, count: int) -> torch.Tensor:
        self.is_capturing = True
        taken = counters.take_counters(count, GPU)
        self.is_capturing = False
        return taken


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """A GPU that no launch has used yet."""
    fake = FakeGpu()
    monkeypatch.setattr(counters, "torch", fake.as_torch())
    monkeypatch.setattr(counters, "_streams", {})
    monkeypatch.setattr(counters, "_pools", {})
    return fake


def share_memory(*blocks: torch.Tensor) -> bool:
    """True if a counter lies in two of them."""
    places = [range(block.data_ptr(), block.data_ptr() + block.numel() * BYTES) for block in blocks]
    ordered = sorted(places, key=lambda place: place.start)
    return any(place.stop > following.start for place, following in pairwise(ordered))


def all_zero(*blocks: torch.Tensor) -> bool:
    return all(block.dtype == torch.int32 and not block.any() for block in blocks)


def test_captured_launches_have_blocks_of_their_own_until_the_pool_is_used_up(gpu: FakeGpu) -> None:
    pool = torch.zeros(320, dtype=torch.int32)
    counters._pools[GPU] = pool
    counts = (1, 32, 33, 100, 31)  # with what aligns them 32 + 32 + 64 + 128 + 32, of 320
    taken = [gpu.capture(count) for count in counts]
    assert [block.numel() for block in taken] == [*counts]
    offsets = [(block.data_ptr() - pool.data_ptr()) // BYTES for block in taken]
    assert offsets == [0, 32, 64, 128, 256]
    assert all(offset % counters.ALIGNMENT == 0 for offset in offsets)
    assert not share_memory(*taken)
    fresh = [gpu.capture(33) for _ in range(2)]  # 32 are left
    assert not share_memory(pool, *fresh)
    last = gpu.capture(32)
    assert (last.data_ptr() - pool.data_ptr()) // BYTES == 288
    assert not share_memory(pool, gpu.capture(1))
    assert all_zero(*taken, *fresh, last)


@pytest.mark.parametrize("size", [40, 64])
def test_a_block_at_the_end_of_the_pool_may_leave_nothing(size: int, gpu: FakeGpu) -> None:
    pool = torch.zeros(size, dtype=torch.int32)
    counters._pools[GPU] = pool
    assert gpu.capture(40).data_ptr() == pool.data_ptr()
    assert not share_memory(pool, gpu.capture(1))


def test_a_graph_before_every_launch_has_zeros_of_its_own(gpu: FakeGpu) -> None:
    taken = [gpu.capture(5) for _ in range(2)]
    assert not share_memory(*taken)
    assert all_zero(*taken)


def test_launches_of_a_stream_share_a_block_and_streams_do_not(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "POOL_SIZE", 1024)
    first, again = counters.take_counters(7, GPU), counters.take_counters(90, GPU)
    gpu.stream = 1
    other = counters.take_counters(90, GPU)
    captured = gpu.capture(90)
    assert (first.numel(), again.numel()) == (7, 90)
    assert first.data_ptr() == again.data_ptr()
    assert not share_memory(again, other, captured)
    assert counters._pools[GPU].numel() == 1024 - 96
    assert gpu.waits == 1  # for the pool alone, which other streams will use
    gpu.stream = 0
    assert counters.take_counters(1, GPU).data_ptr() == first.data_ptr()


def test_a_block_grows_and_stays_large(gpu: FakeGpu) -> None:
    small = counters.take_counters(counters.BLOCK_SIZE, GPU)
    large = counters.take_counters(counters.BLOCK_SIZE + 1, GPU)
    assert large.numel() == counters.BLOCK_SIZE + 1
    assert not share_memory(small, large)
    assert all_zero(large)
    assert counters.take_counters(3, GPU).data_ptr() == large.data_ptr()
    assert len(counters._streams) == 1


def test_the_cpu_has_no_streams(gpu: FakeGpu) -> None:
    taken = [counters.take_counters(9, torch.device("cpu")) for _ in range(2)]
    assert not share_memory(*taken)
    assert all_zero(*taken)
    assert not counters._streams
    assert not counters._pools


@pytest.mark.gpu
def test_gpu_launches_on_two_streams_do_not_disturb_each_other() -> None:
    """As ``streams_failure``, without graphs: each stream counts in its own block, launch after launch."""
    sizes: dict[str, Any] = {"batch": 6, "heads": 8, "kv_heads": 2, "max_context": 20000, "head_dim": 64}
    shape = CheckShape(**sizes, dtype="float16", lengths=(20000, 0, 33, 6400, 1, 7000))
    config = config_of("split", work=2, combine="last")
    problems = [DEFINITION.make_inputs(shape, seed=seed, device="cuda") for seed in (0, 1)]
    outputs = [DEFINITION.empty_outputs(problem)[0] for problem in problems]
    streams: list[Any] = [torch.cuda.Stream() for _ in problems]  # type: ignore[no-untyped-call]
    truths = [DEFINITION.reference(problem)[0] for problem in problems]
    rounded = [DEFINITION.reference(problem, dtype=torch.float16)[0] for problem in problems]
    for _ in range(10):
        for out in outputs:
            out.fill_(math.nan)
        torch.cuda.synchronize()
        for _ in range(20):  # enough that both streams have some waiting
            for problem, out, stream in zip(problems, outputs, streams, strict=True):
                with torch.cuda.stream(stream):
                    KERNEL.launch(config, problem, (out,))
        torch.cuda.synchronize()
        for out, truth, eager in zip(outputs, truths, rounded, strict=True):
            assert compare(out, truth, error_limit(truth, eager, torch.float16)) is None
