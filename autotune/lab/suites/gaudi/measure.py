"""Times of the three attentions, step by step and in one race, and the blocks that padding costs."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import torch

from autotune.dispatch import TunedKernel, get_kernel
from autotune.executor import BaselineResult
from autotune.kernels.baselines.gaudi import FlatPaged, InitialPaged
from autotune.kernels.baselines.sdpa import Sdpa
from autotune.kernels.flash_attention.definition import Inputs as DenseInputs
from autotune.kernels.paged_decode.inputs import Inputs as PagedInputs
from autotune.lab.bench.comparison import OURS
from autotune.lab.bench.entrants import (
    Entrant,
    Measured,
    checker,
    make_comparison,
    measure_case,
    of_baseline,
    of_served,
    ratio,
    served_notes,
)
from autotune.lab.bench.machines import Machine
from autotune.lab.suites.gaudi import words
from autotune.lab.suites.gaudi.inputs import CPU_SETTING, SEED, SETTING, GaudiSetting, draw_lengths, make_inputs
from autotune.lab.suites.suite import Suite, SuiteSheet
from autotune.registry import load_definition
from autotune.shape import AttentionShape, PagedShape

OPERATION: Final = "paged_decode"
WARMUPS: Final = 1
ACTIVE: Final = 3
FUSED: Final = "fused SDPA *"
INITIAL: Final = "initial paged"
FLAT: Final = "flat paged"


def measure_gaudi(machine: Machine, setting: GaudiSetting | None = None) -> Iterator[SuiteSheet]:
    """Count what fragmentation costs, time every step, and race the three."""
    is_cpu = machine.kind == "cpu"
    used = setting or (CPU_SETTING if is_cpu else SETTING)
    lengths = draw_lengths(used)
    yield fragmentation(*dict.fromkeys((SETTING, used)))
    shape = used.shape(lengths)
    served = None if is_cpu else get_kernel(shape)

    def enter() -> list[Entrant]:
        return _entrants(shape, make_inputs(used, lengths, machine.kind), served)

    names = (FUSED, INITIAL, FLAT) if served is None else (FUSED, INITIAL, FLAT, OURS)
    machine.on_step(f"racing {', '.join(names)}")
    measured = measure_case(machine, names, enter)
    machine.on_step("timing single steps")
    steps = tuple(_step_rows(machine, measured))
    machine.release()
    schedule = f"a step is issued from Python and waited for; {WARMUPS} before, {ACTIVE} counted"
    reduced = (words.ON_CPU,) if is_cpu else ()
    yield SuiteSheet(f"steps: {used}", words.STEP_COLUMNS, steps, (words.STAND_IN, schedule, *reduced))
    found = {name: _with_padding(used, result) for name, result in measured.results.items()}
    blocks = _blocks_read(used, lengths)
    rows = tuple(
        (name, blocks[name], each.timing, ratio(found[FUSED].timing, each.timing), each.extra_bytes, each.error)
        for name, each in found.items()
    )
    paged = {name: result for name, result in found.items() if name != FUSED}  # it computes another problem
    comparison = make_comparison(machine, OPERATION, shape, replace(measured, results=paged), served)
    notes = (words.STAND_IN, words.PADDING, *reduced, *served_notes({"": served}), *measured.absent)
    yield SuiteSheet(f"decoding: {used}", words.SUMMARY_COLUMNS, rows, notes, measured.failed, (comparison,))


def _step_rows(machine: Machine, measured: Measured) -> Iterator[tuple[Any, ...]]:
    """Time every step of each that is right."""
    for name, call in measured.calls.items():
        times = machine.steps(call, warmups=WARMUPS, active=ACTIVE)
        yield from ((name, step, microseconds) for step, microseconds in enumerate(times, start=1))


def fragmentation(*settings: GaudiSetting) -> SuiteSheet:
    """Count the blocks that a batch is padded to, and those that hold tokens; a row for each setting."""
    drawn = f"context lengths uniform from 1 to {SETTING.seq}, seed {SEED}"
    title = f"fragmentation: blocks of {SETTING.page_size} tokens"
    return SuiteSheet(title, words.FRAGMENT_COLUMNS, tuple(map(_fragmentation_row, settings)), (drawn,))


def _fragmentation_row(setting: GaudiSetting) -> tuple[Any, ...]:
    lengths = draw_lengths(setting)
    padded = setting.batch * setting.columns
    real = int((-(-lengths // setting.page_size)).sum())
    memory = (setting.padded_bytes, real * setting.block_bytes)
    return (setting.batch, int(lengths.sum()), padded, real, 1.0 - real / padded, *memory)


def _entrants(shape: PagedShape, inputs: PagedInputs, served: TunedKernel | None) -> list[Entrant]:
    check = checker(load_definition(OPERATION), inputs)
    found = [
        _fused(shape, inputs),
        of_baseline(InitialPaged(), shape, inputs, check, name=INITIAL),
        of_baseline(FlatPaged(), shape, inputs, check, name=FLAT),
    ]
    if served is not None:
        tensors = (inputs.q, inputs.k_cache, inputs.v_cache, inputs.page_table, inputs.seq_lens)
        found.append(of_served(served, tensors, check))
    return found


def _fused(shape: PagedShape, inputs: PagedInputs) -> Entrant:
    """Enter torch's SDPA over the padded keys, without a mask, as the notebook calls FusedSDPA."""
    dense = AttentionShape(
        batch=shape.batch,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        seq_q=1,
        seq_kv=shape.max_context,
        head_dim=shape.head_dim,
        dtype=shape.dtype,
    )
    caches: tuple[torch.Tensor, torch.Tensor] = (inputs.k_cache, inputs.v_cache)
    k, v = (cache[inputs.page_table.long()].flatten(1, 2)[:, : shape.max_context] for cache in caches)
    joined = DenseInputs(inputs.q, k, v, causal=False, window=None, softcap=None, scale=inputs.scale)
    return of_baseline(Sdpa("flash"), dense, joined, checker(load_definition("flash_attention"), joined), name=FUSED)


def _with_padding(setting: GaudiSetting, result: BaselineResult) -> BaselineResult:
    """Add the padded K and V of the fused one, which lie ready before it is prepared."""
    if result.name != FUSED or result.extra_bytes is None:
        return result
    return replace(result, extra_bytes=result.extra_bytes + setting.padded_bytes)


def _blocks_read(setting: GaudiSetting, lengths: torch.Tensor) -> dict[str, int]:
    counts = -(-lengths // setting.page_size)
    real = int(counts.sum())
    return {
        FUSED: setting.batch * setting.columns,
        INITIAL: setting.batch * int(counts.max()),
        FLAT: real,
        OURS: real,
    }


SUITE: Final = Suite(
    "gaudi",
    "a decoding step by fused SDPA, the initial and the flat PagedAttention, and what padding costs (Intel Gaudi)",
    measure_gaudi,
    has_comparisons=True,
)
