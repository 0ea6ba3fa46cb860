"""Decoding with a contiguous cache of keys and values, and without one, by recomputing them at each step."""

import functools
from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch.nn.functional import linear, scaled_dot_product_attention

from autotune.comparison.suites.contenders import ratio
from autotune.comparison.suites.machine import Machine
from autotune.comparison.suites.suite import Column, Row, Table
from autotune.comparison.suites.threads import thread_counts, torch_threads
from autotune.correctness import TOLERATED, error_limit, largest_error
from autotune.kernels.baselines.eager import make_attention
from autotune.kernels.baselines.kv_cache import GrowingCache, KVCache, StaticCache
from autotune.trial import Timing

KV_GRID: Final = ((4, 16), (8, 32), (10, 64), (12, 128))  # sequence, hidden
HEADS: Final = 4  # which the article leaves open
RUNS: Final = 100
RECOMPUTED: Final = "recomputed"
GROWING: Final = "growing cache"
STATIC: Final = "static cache"

COLUMNS: Final = (
    Column("sequence", "count"),
    Column("hidden", "count"),
    Column("threads", "count"),
    Column(RECOMPUTED, "time"),
    Column(GROWING, "time"),
    Column("gain", "ratio"),
    Column(STATIC, "time"),
    Column("gain of static", "ratio"),
    Column("error", "error"),
)
WHAT: Final = (
    f"a run decodes the whole sequence, position by position: projections to query, key and value and attention of "
    f"{HEADS} heads, batch 1, float32, {RUNS} runs; error: the largest of the three against fp64"
)

Run = Callable[[], torch.Tensor]


def kv_table(machine: Machine, grid: tuple[tuple[int, int], ...] = KV_GRID, runs: int = RUNS) -> Table:
    """Each size with each number of threads."""
    rows: list[Row] = []
    failures: list[str] = []
    for sequence, hidden in grid:
        machine.on_step(f"a cache of keys and values: sequence {sequence}, hidden {hidden}")
        calls = kv_calls(sequence, hidden, machine.kind)
        exact = _exact(sequence, hidden, machine.kind)
        eager = _exact(sequence, hidden, machine.kind, torch.float32)
        limit = TOLERATED * error_limit(exact, eager, torch.float32)
        errors = {name: largest_error(call(), exact) for name, call in calls.items()}
        right = {name: call for name, call in calls.items() if errors[name] <= limit}
        failures += [
            f"sequence {sequence}, hidden {hidden}: {name}: largest error {error:.3g} exceeds {limit:.3g}"
            for name, error in errors.items()
            if name not in right
        ]
        for threads in thread_counts(machine):
            with torch_threads(threads):
                times = machine.time(right, rounds=runs)
            rows.append((sequence, hidden, threads, *_times(times), max(errors.values())))
    return Table("a cache of keys and values against recomputation", COLUMNS, tuple(rows), (WHAT,), tuple(failures))


def _times(times: Mapping[str, Timing]) -> Row:
    """The three times, and behind each of the caches what it gains; nothing of a call that has no time."""
    again, growing, static = (times.get(name) for name in (RECOMPUTED, GROWING, STATIC))
    return again, growing, ratio(again, growing), static, ratio(again, static)


def kv_calls(sequence: int, hidden: int, device: str) -> dict[str, Run]:
    """Decoding of a sequence in each way; every call returns the outputs of all positions, ``[1, S, H, D]``."""
    states, weights = _tensors(sequence, hidden, device)
    static = StaticCache(batch=1, capacity=sequence, kv_heads=HEADS, head_dim=hidden // HEADS, device=device)
    return {
        RECOMPUTED: functools.partial(_recompute, states, weights),
        GROWING: functools.partial(_decode, states, weights, GrowingCache()),
        STATIC: functools.partial(_decode, states, weights, static),
    }


def _tensors(sequence: int, hidden: int, device: str) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Hidden states ``[1, S, hidden]`` and the weights of three projections."""
    generator = torch.Generator(device=device).manual_seed(0)
    states = torch.randn(1, sequence, hidden, generator=generator, device=device)
    return states, [torch.randn(hidden, hidden, generator=generator, device=device) * hidden**-0.5 for _ in range(3)]


def _project(states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return linear(states, weight).view(*states.shape[:2], HEADS, -1)


def _recompute(states: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    outputs = []
    for end in range(1, states.shape[1] + 1):
        q = _project(states[:, end - 1 : end], weights[0])
        k, v = (_project(states[:, :end], weight) for weight in weights[1:])
        q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
        outputs.append(scaled_dot_product_attention(q, k, v).transpose(1, 2))
    return torch.cat(outputs, 1)


def _decode(states: torch.Tensor, weights: list[torch.Tensor], cache: KVCache) -> torch.Tensor:
    outputs = []
    for position in range(states.shape[1]):
        q, k, v = (_project(states[:, position : position + 1], weight) for weight in weights)
        cache.append(k, v)
        outputs.append(cache.attend(q))
    cache.reset()
    return torch.cat(outputs, 1)


def _exact(sequence: int, hidden: int, device: str, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """All positions at once, causal, in fp64 or another type."""
    states, weights = _tensors(sequence, hidden, device)
    q, k, v = (_project(states.to(dtype), weight.to(dtype)).transpose(1, 2) for weight in weights)
    attend = make_attention(sequence, sequence, device=device, causal=True, scale=q.shape[3] ** -0.5)
    return attend(q, k, v).transpose(1, 2)
