"""Counters that are 0 whenever no kernel runs: how many programs have left their part of a result.

A kernel that counts with them sets them back to 0, so they are zeroed once, not at every launch. Launches of one stream
run one after another and share a block. A launch that is captured into a CUDA graph may be replayed beside anything,
on any stream, and gets a block that no other launch ever has, while the pool lasts; then, zeros that its graph writes.
"""

import threading
from typing import Final

import torch

POOL_SIZE: Final = 2**20  # counters zeroed at once, 4 MB
BLOCK_SIZE: Final = 4096  # of a stream, at least
ALIGNMENT: Final = 32  # counters; Triton has other binaries for addresses that are no multiples of 16 bytes

_lock: Final = threading.Lock()
_streams: Final[dict[tuple[torch.device, int], torch.Tensor]] = {}
_pools: Final[dict[torch.device, torch.Tensor]] = {}  # what no captured launch has taken yet


def take_counters(count: int, device: torch.device) -> torch.Tensor:
    """Take so many int32 zeros for one launch on the current stream; of the same memory as the stream's last launch."""
    if device.type != "cuda":
        return torch.zeros(count, dtype=torch.int32, device=device)
    if torch.cuda.is_current_stream_capturing():
        return _take_for_ever(count, device)
    with _lock:
        key = (device, torch.cuda.current_stream(device).cuda_stream)
        block = _streams.get(key)
        if block is None or block.numel() < count:
            block = _streams[key] = torch.zeros(max(count, BLOCK_SIZE), dtype=torch.int32, device=device)
        if device not in _pools:  # a launch outside a graph precedes every capture: it compiles
            _pools[device] = torch.zeros(POOL_SIZE, dtype=torch.int32, device=device)
            torch.cuda.current_stream(device).synchronize()  # a graph may be replayed on another stream
        return block[:count]


def _take_for_ever(count: int, device: torch.device) -> torch.Tensor:
    """Take them from the pool; where that is used up, zeros that the graph itself writes at every replay."""
    with _lock:
        pool = _pools.get(device)
        if pool is None or pool.numel() < count:
            return torch.zeros(count, dtype=torch.int32, device=device)
        _pools[device] = pool[-(-count // ALIGNMENT) * ALIGNMENT :]
        return pool[:count]
