"""A process on two GPUs: eight threads between both, forks meanwhile, a spawned child: ``python -m tests.on_two_gpus``.

Prints, as JSON, what each part found; ``tests/test_two_gpus.py`` judges it. Kernels are warmed on both GPUs and sealed
first, so that a later compile would be an error.
"""

import json
import multiprocessing
import os
import signal
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import torch

import autotune

THREADS, CALLS, FORKS = 8, 400, 20
FORK_SECONDS = 20.0
DENSE = autotune.AttentionShape(batch=2, heads=8, kv_heads=4, seq_q=777, head_dim=128, causal=True)
PAGED = autotune.PagedShape(batch=3, heads=8, kv_heads=4, max_context=512, head_dim=128)
LENGTHS = (512, 17, 300)


class Problem:
    """Inputs on one GPU, and the outputs that torch alone computes of them."""

    def __init__(self, index: int) -> None:
        generator = torch.Generator(f"cuda:{index}").manual_seed(index)
        options: dict[str, Any] = {"device": f"cuda:{index}", "dtype": torch.bfloat16, "generator": generator}
        self.q = torch.randn(DENSE.batch, DENSE.seq_q, DENSE.heads, DENSE.head_dim, **options)
        self.k, self.v = (torch.randn(2, DENSE.seq_kv, DENSE.kv_heads, DENSE.head_dim, **options) for _ in range(2))
        pages = PAGED.max_context // PAGED.page_size
        self.cache = torch.randn(PAGED.batch * pages, PAGED.page_size, PAGED.kv_heads, PAGED.head_dim, **options)
        self.table = torch.arange(PAGED.batch * pages, device=self.q.device, dtype=torch.int32).view(PAGED.batch, pages)
        self.lengths = torch.tensor(LENGTHS, device=self.q.device, dtype=torch.int32)
        self.token = torch.randn(PAGED.batch, 1, PAGED.heads, PAGED.head_dim, **options)
        self.dense = _reference(self.q, self.k, self.v, causal=True)
        rows = [self.cache[row.long()].flatten(0, 1)[None] for row in self.table]
        self.paged = torch.cat(
            [
                _reference(self.token[i : i + 1], keys[:, :length], keys[:, :length], causal=False)
                for i, (keys, length) in enumerate(zip(rows, LENGTHS, strict=True))
            ]
        )

    def error(self) -> float:
        """Compute both operations, and return the largest error of either."""
        dense: Any = autotune.attention(self.q, self.k, self.v, causal=True)
        paged: Any = autotune.paged_decode(self.token, self.cache, self.cache, self.table, self.lengths)
        assert dense.device == paged.device == self.q.device
        pairs = (dense, self.dense), (paged, self.paged)
        return max(float((out.double() - wanted).abs().max()) for out, wanted in pairs)


def _reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    q, k, v = (each.double().transpose(1, 2) for each in (q, k, v))
    k, v = (each.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for each in (k, v))
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if causal:
        scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
    out: torch.Tensor = (scores.softmax(-1) @ v).transpose(1, 2)
    return out


def fork_and_look_up(device: str) -> int:
    """Look both shapes up in a forked child, and return its exit code, or -1 where it did not end in time."""
    child = os.fork()
    if child == 0:  # which may not use CUDA
        try:
            rungs = [autotune.get_kernel(shape, device=device).provenance.rung for shape in (DENSE, PAGED)]
            os._exit(0 if all(rungs) else 1)
        except BaseException:
            traceback.print_exc()
            os._exit(2)
    end = time.monotonic() + FORK_SECONDS
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -1


def compute_elsewhere(index: int) -> float:
    """Compute in this process, another one than the caller's, on one GPU."""
    torch.cuda.set_device(1 - index)
    return Problem(index).error()


def main() -> None:
    problems = [Problem(index) for index in range(2)]
    for index in range(2):
        with torch.cuda.device(index):
            warmed = autotune.warm([DENSE, PAGED])
        assert not any(each.failure for each in warmed), warmed
    for problem in problems:
        problem.error()
    autotune.seal()
    device, before = torch.cuda.get_device_name(0), asdict(autotune.stats())
    with ThreadPoolExecutor(THREADS) as threads:
        errors = [threads.submit(problems[call % 2].error) for call in range(CALLS)]
        forks = [fork_and_look_up(device) for _ in range(FORKS)]
        largest = max(each.result(timeout=120) for each in errors)
    after = asdict(autotune.stats())
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        spawned = pool.map_async(compute_elsewhere, range(2)).get(timeout=300)
    print(json.dumps({"error": largest, "forks": forks, "before": before, "after": after, "spawned": spawned}))


if __name__ == "__main__":
    main()
