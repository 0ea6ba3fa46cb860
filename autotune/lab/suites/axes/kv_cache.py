"""Decoding with a contiguous cache of keys and values, and without one, by recomputing them at each step."""

import functools
from typing import Any, Final

import torch
from torch.nn.functional import linear, scaled_dot_product_attention

from autotune import sheets
from autotune.correctness import TOLERATED, error_limit, largest_error
from autotune.kernels.baselines.eager import make_attention
from autotune.kernels.baselines.kv_cache import GrowingCache, KVCache, StaticCache
from autotune.lab.bench.entrants import Run, ratio
from autotune.lab.bench.machines import Machine
from autotune.lab.suites.suite import SuiteSheet
from autotune.lab.suites.threads import time_by_threads

KV_GRID: Final = ((4, 16), (8, 32), (10, 64), (12, 128))  # sequence, hidden
HEADS: Final = 4  # which the article leaves open
RUNS: Final = 100
RECOMPUTED: Final = "recomputed"
GROWING: Final = "growing cache"
STATIC: Final = "static cache"

SIZE_COLUMNS: Final = (sheets.number("sequence", "d"), sheets.number("hidden", "d"), sheets.number("threads"))
COLUMNS: Final = (
    *SIZE_COLUMNS,
    sheets.timing(RECOMPUTED),
    sheets.timing(GROWING),
    sheets.ratio("gain"),
    sheets.timing(STATIC),
    sheets.ratio("gain of static"),
    sheets.number("error", ".1e"),
)
SETUP: Final = (
    f"a run decodes the whole sequence, position by position: projections to query, key and value and attention of "
    f"{HEADS} heads, batch 1, float32, {RUNS} runs; error: the largest of the three against fp64"
)


def kv_sheet(machine: Machine, grid: tuple[tuple[int, int], ...] = KV_GRID, runs: int = RUNS) -> SuiteSheet:
    rows: list[tuple[Any, ...]] = []
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
        for threads, times in time_by_threads(machine, right, runs):
            again, growing, static = (times.get(name) for name in (RECOMPUTED, GROWING, STATIC))
            taken = (again, growing, ratio(again, growing), static, ratio(again, static))
            rows.append((sequence, hidden, threads, *taken, max(errors.values())))
    return SuiteSheet(
        "a cache of keys and values against recomputation", COLUMNS, tuple(rows), (SETUP,), tuple(failures)
    )


def kv_calls(sequence: int, hidden: int, device: str) -> dict[str, Run]:
    """Make the calls that decode a sequence; each returns the outputs of all positions, ``[1, S, H, D]``."""
    states, weights = _tensors(sequence, hidden, device)
    static = StaticCache(batch=1, capacity=sequence, kv_heads=HEADS, head_dim=hidden // HEADS, device=device)
    return {
        RECOMPUTED: functools.partial(_recompute, states, weights),
        GROWING: functools.partial(_decode, states, weights, GrowingCache()),
        STATIC: functools.partial(_decode, states, weights, static),
    }


def _tensors(sequence: int, hidden: int, device: str) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Make hidden states ``[1, S, hidden]`` and the weights of three projections."""
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
    """Compute all positions at once, causal, in fp64 or another type."""
    states, weights = _tensors(sequence, hidden, device)
    q, k, v = (_project(states.to(dtype), weight.to(dtype)).transpose(1, 2) for weight in weights)
    attend = make_attention(sequence, sequence, device=device, causal=True, scale=q.shape[3] ** -0.5)
    return attend(q, k, v).transpose(1, 2)
