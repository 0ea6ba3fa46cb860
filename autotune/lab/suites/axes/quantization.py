"""Attention between projections in fp32, and with the projections in dynamic int8, on the CPU."""

import copy
import functools
from collections.abc import Callable
from typing import Any, Final, TypeVar

import torch

from autotune import sheets
from autotune.correctness import TOLERATED, error_limit, largest_error
from autotune.kernels.baselines.int8_linear import (
    ProjectedAttention,
    output_error,
    projected_attention,
    projection_error_bound,
)
from autotune.lab.bench.entrants import Run, ratio
from autotune.lab.bench.machines import Machine
from autotune.lab.suites.axes.kv_cache import HEADS, KV_GRID, RUNS, SIZE_COLUMNS
from autotune.lab.suites.suite import SuiteSheet
from autotune.lab.suites.threads import time_by_threads

ModuleT = TypeVar("ModuleT", bound=torch.nn.Module)

FLOAT: Final = "float32"
INT8: Final = "int8"
COLUMNS: Final = (
    *SIZE_COLUMNS,
    *map(sheets.timing, (FLOAT, INT8)),
    sheets.ratio("gain"),
    *(sheets.size(f"{name} weights") for name in (FLOAT, INT8)),
    sheets.percent("relative error"),
)
PROJECTIONS: Final = ("q_proj", "k_proj", "v_proj", "o_proj")
SETUP: Final = (
    f"four projections and SDPA of {HEADS} heads, batch 1, on the CPU, {RUNS} runs; int8 weights are quantized once, "
    "inputs at each call; relative error: root mean square, against fp64"
)
JUDGED: Final = (
    "each int8 projection must be as near to the exact one of its inputs as rounding these and its weights leaves it"
)


def quantization_sheet(machine: Machine, grid: tuple[tuple[int, int], ...] = KV_GRID, runs: int = RUNS) -> SuiteSheet:
    """Measure each size with each number of threads; the machine is a processor."""
    rows: list[tuple[Any, ...]] = []
    failures: list[str] = []
    for sequence, hidden in grid:
        machine.on_step(f"quantization: sequence {sequence}, hidden {hidden}")
        exact, int8, states = _modules(sequence, hidden)
        wrong = faults(exact, int8, states)
        failures += [f"sequence {sequence}, hidden {hidden}: {name}: {fault}" for name, fault in wrong.items()]
        calls = {name: call for name, call in _calls(exact, int8, states).items() if name not in wrong}
        relative = output_error(int8, exact, states).relative
        sizes = (_weight_bytes(exact), _weight_bytes(int8))
        for threads, times in time_by_threads(machine, calls, runs):
            before, after = times.get(FLOAT), times.get(INT8)
            rows.append((sequence, hidden, threads, before, after, ratio(before, after), *sizes, relative))
    return SuiteSheet("dynamic int8 projections against float", COLUMNS, tuple(rows), (SETUP, JUDGED), tuple(failures))


def quantization_calls(sequence: int, hidden: int) -> dict[str, Run]:
    """Make calls of the module in both precisions, over the same states ``[1, S, hidden]``."""
    return _calls(*_modules(sequence, hidden))


def _calls(exact: ProjectedAttention, int8: ProjectedAttention, states: torch.Tensor) -> dict[str, Run]:
    return {FLOAT: functools.partial(exact, states), INT8: functools.partial(int8, states)}


def faults(exact: ProjectedAttention, int8: ProjectedAttention, states: torch.Tensor) -> dict[str, str]:
    """Judge the two modules over ``states [1, S, hidden]``; return a fault by the name of its call.

    In int8 each projection is judged over the inputs that it has there, by ``projection_error_bound``, and the
    attention between them as in float: by fp64 over the same inputs.
    """
    found = {}
    truth, eager = (_by_formula(*pair) for pair in ((_in_fp64(exact), states.double()), (exact, states)))
    if fault := _too_far(exact(states), truth, eager):
        found[FLOAT] = fault
    seen = _watch(int8, states)
    for name in PROJECTIONS:
        inputs, out = seen[name]
        linear = getattr(exact, name)
        error = (out.double() - _in_fp64(linear)(inputs.double())).abs()
        excess = error - projection_error_bound(inputs, linear)
        if not bool((excess <= 0.0).all()):
            found[INT8] = f"{name}: largest error {error.max().item():.3g}, {excess.max().item():.3g} above its bound"
            return found
    q, k, v = (_heads(seen[name][1]) for name in PROJECTIONS[:3])
    truth, eager = (_attention(q.to(dtype), k.to(dtype), v.to(dtype)) for dtype in (torch.float64, torch.float32))
    if fault := _too_far(seen["o_proj"][0], truth, eager):
        found[INT8] = f"attention: {fault}"
    return found


def _too_far(out: torch.Tensor, truth: torch.Tensor, eager: torch.Tensor) -> str:
    error, limit = largest_error(out, truth), TOLERATED * error_limit(truth, eager, torch.float32)
    return "" if error <= limit else f"largest error {error:.3g} exceeds {limit:.3g}"


def _watch(module: ProjectedAttention, states: torch.Tensor) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Run the module; return inputs and output of each projection."""
    seen: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def note(name: str) -> Callable[..., None]:
        return lambda _, inputs, out: seen.update({name: (inputs[0], out)})

    handles = [getattr(module, name).register_forward_hook(note(name)) for name in PROJECTIONS]
    module(states)
    for handle in handles:
        handle.remove()
    return seen


def _by_formula(module: ProjectedAttention, states: torch.Tensor) -> torch.Tensor:
    q, k, v = (_heads(getattr(module, name)(states)) for name in PROJECTIONS[:3])
    out: torch.Tensor = module.o_proj(_attention(q, k, v))
    return out


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Compute ``[1, S, hidden]`` from ``[1, H, S, D]``."""
    return (torch.softmax(q @ k.mT * q.shape[3] ** -0.5, -1) @ v).transpose(1, 2).flatten(2)


def _heads(projected: torch.Tensor) -> torch.Tensor:
    return projected.view(*projected.shape[:2], HEADS, -1).transpose(1, 2)


def _in_fp64(module: ModuleT) -> ModuleT:
    return copy.deepcopy(module).double()


def _modules(sequence: int, hidden: int) -> tuple[ProjectedAttention, ProjectedAttention, torch.Tensor]:
    exact, int8 = (projected_attention(hidden, HEADS, quantized=quantized) for quantized in (False, True))
    return exact, int8, torch.randn(1, sequence, hidden, generator=torch.Generator().manual_seed(0))


def _weight_bytes(module: torch.nn.Module) -> int:
    return sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))
