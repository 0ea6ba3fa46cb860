"""Attention between projections in fp32, and with the projections in dynamic int8, on the CPU."""

import functools
from collections.abc import Callable
from typing import Final

import torch

from autotune.comparison.suites.kv_axis import HEADS, KV_GRID, RUNS
from autotune.comparison.suites.machine import Machine
from autotune.comparison.suites.suite import Column, Row, Table
from autotune.comparison.suites.threads import thread_counts, torch_threads
from autotune.kernels.baselines.int8_linear import ProjectedAttention, output_error, projected_attention

FLOAT: Final = "float32"
INT8: Final = "int8"
COLUMNS: Final = (
    Column("sequence", "count"),
    Column("hidden", "count"),
    Column("threads", "count"),
    Column(FLOAT, "time"),
    Column(INT8, "time"),
    Column("gain", "ratio"),
    Column(f"{FLOAT} weights", "bytes"),
    Column(f"{INT8} weights", "bytes"),
    Column("relative error", "share"),
)
WHAT: Final = (
    f"four projections and SDPA of {HEADS} heads, batch 1, on the CPU, {RUNS} runs; int8 weights are quantized once, "
    "inputs at each call; relative error: root mean square, against fp64"
)


def quantization_table(machine: Machine, grid: tuple[tuple[int, int], ...] = KV_GRID, runs: int = RUNS) -> Table:
    """Each size with each number of threads; the machine is a processor."""
    rows: list[Row] = []
    for sequence, hidden in grid:
        exact, int8, states = _modules(sequence, hidden)
        calls = quantization_calls(sequence, hidden)
        relative = output_error(int8, exact, states).relative
        sizes = (_weight_bytes(exact), _weight_bytes(int8))
        for threads in thread_counts(machine):
            with torch_threads(threads):
                times = machine.time(calls, rounds=runs)
            gain = times[FLOAT].median_us / times[INT8].median_us
            rows.append((sequence, hidden, threads, times[FLOAT], times[INT8], gain, *sizes, relative))
    return Table("dynamic int8 projections against float", COLUMNS, tuple(rows), (WHAT,))


def quantization_calls(sequence: int, hidden: int) -> dict[str, Callable[[], torch.Tensor]]:
    """The module in both precisions, over the same states ``[1, S, hidden]``."""
    exact, int8, states = _modules(sequence, hidden)
    return {FLOAT: functools.partial(exact, states), INT8: functools.partial(int8, states)}


def _modules(sequence: int, hidden: int) -> tuple[ProjectedAttention, ProjectedAttention, torch.Tensor]:
    exact, int8 = (projected_attention(hidden, HEADS, quantized=quantized) for quantized in (False, True))
    return exact, int8, torch.randn(1, sequence, hidden, generator=torch.Generator().manual_seed(0))


def _weight_bytes(module: torch.nn.Module) -> int:
    return sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))
