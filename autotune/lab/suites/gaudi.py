"""The notebook that profiles attention on Intel Gaudi: fused SDPA, the initial PagedAttention and the flat one.

Sizes, context lengths and schedule are its own: single steps of decoding, one race, and the blocks that padding costs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from autotune import sheets
from autotune.dispatch import TunedKernel, get_kernel
from autotune.dtypes import ITEM_BYTES
from autotune.executor import BaselineResult
from autotune.kernels.baselines.gaudi import FlatPaged, InitialPaged
from autotune.kernels.baselines.sdpa import Sdpa
from autotune.kernels.flash_attention.definition import Inputs as DenseInputs
from autotune.kernels.paged_decode.inputs import Inputs as PagedInputs
from autotune.lab.bench.comparison import OURS
from autotune.lab.bench.entrants import (
    Entrant,
    checker,
    make_comparison,
    measure_case,
    of_baseline,
    of_served,
    ratio,
    served_notes,
)
from autotune.lab.bench.machines import Machine
from autotune.lab.suites.suite import Suite, SuiteSheet
from autotune.registry import load_definition
from autotune.shape import AttentionShape, PagedShape

FRAGMENT_COLUMNS: Final = (
    *map(sheets.number, ("sequences", "tokens", "padded blocks", "real blocks")),
    sheets.percent("saved"),
    *map(sheets.size, ("padded K and V", "real K and V")),
)
STEP_COLUMNS: Final = (sheets.text("implementation"), sheets.number("step"), sheets.time())
SUMMARY_COLUMNS: Final = (
    sheets.text("implementation"),
    sheets.number("blocks read"),
    sheets.timing(),
    sheets.ratio("speed-up over fused"),
    sheets.size("extra memory"),
    sheets.number("error", ".1e"),
)
STAND_IN: Final = (
    "* no Gaudi is used: torch's SDPA stands for FusedSDPA, over all positions of every sequence as there, so that its "
    "result is another; the paged two are plain torch, never run on a Gaudi"
)
PADDING: Final = "extra memory: the fused one's padded K and V are part of it, which lie ready beside the pool"
ON_CPU: Final = (
    "reduced: the first 8 of the 32 sequences, float32 instead of bfloat16, whose products few processors have fast, "
    "and a pool of the batch's blocks alone, not of 1024"
)

SEED: Final = 42  # of the context lengths


@dataclass(frozen=True, slots=True)
class GaudiSetting:
    """The notebook's sizes, and its pool of ``pool_blocks`` blocks."""

    batch: int = 32
    heads: int = 32
    kv_heads: int = 32
    seq: int = 1024
    head_dim: int = 128
    page_size: int = 128
    pool_blocks: int = 1024
    dtype: str = "bfloat16"

    @property
    def columns(self) -> int:
        return -(-self.seq // self.page_size)

    @property
    def block_bytes(self) -> int:
        return 2 * self.page_size * self.kv_heads * self.head_dim * ITEM_BYTES[self.dtype]

    @property
    def padded_bytes(self) -> int:
        return self.batch * self.columns * self.block_bytes

    def shape(self, lengths: torch.Tensor) -> PagedShape:
        alike = ("batch", "heads", "kv_heads", "head_dim", "page_size", "dtype")
        mean = max(1, round(float(lengths.float().mean())))
        return PagedShape(max_context=self.seq, mean_context=mean, **{name: getattr(self, name) for name in alike})

    def __str__(self) -> str:
        return (
            f"batch {self.batch}, seq {self.seq}, {self.heads}/{self.kv_heads} heads of {self.head_dim}, "
            f"blocks of {self.page_size}, {self.dtype}"
        )


SETTING: Final = GaudiSetting()
CPU_SETTING: Final = GaudiSetting(batch=8, pool_blocks=8 * SETTING.columns, dtype="float32")


def draw_lengths(setting: GaudiSetting) -> torch.Tensor:
    """Draw context lengths int32 ``[batch]`` from 1 to ``seq``; a smaller batch has the first of the notebook's."""
    generator = torch.Generator().manual_seed(SEED)
    drawn = torch.randint(1, setting.seq + 1, (max(SETTING.batch, setting.batch),), generator=generator)
    return drawn[: setting.batch].int()


def make_inputs(setting: GaudiSetting, lengths: torch.Tensor, device: str) -> PagedInputs:
    """Make random queries and a pool whose blocks lie in random order, filled behind the end of sequences too."""
    generator = torch.Generator(device=device).manual_seed(SEED)
    dtype = getattr(torch, setting.dtype)
    sizes = (setting.pool_blocks, setting.page_size, setting.kv_heads, setting.head_dim)
    q = torch.empty(setting.batch, 1, setting.heads, setting.head_dim, dtype=dtype, device=device)
    k_cache, v_cache = (torch.empty(sizes, dtype=dtype, device=device) for _ in range(2))
    for tensor in (q, k_cache, v_cache):
        tensor.normal_(generator=generator)
    order = torch.randperm(setting.pool_blocks, generator=generator, device=device)
    table = order[: setting.batch * setting.columns].view(setting.batch, setting.columns).int()
    scale = setting.head_dim**-0.5
    return PagedInputs(q, k_cache, v_cache, table, lengths.to(device), layout="NHD", scale=scale)


OPERATION: Final = "paged_decode"
WARMUPS: Final = 1
ACTIVE: Final = 3
FUSED: Final = "fused SDPA *"
INITIAL: Final = "initial paged"
FLAT: Final = "flat paged"


def measure_gaudi(machine: Machine, setting: GaudiSetting | None = None) -> Iterator[SuiteSheet]:
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
    steps = tuple(
        (name, step, microseconds)
        for name, call in measured.calls.items()
        for step, microseconds in enumerate(machine.steps(call, warmups=WARMUPS, active=ACTIVE), start=1)
    )
    machine.release()
    schedule = f"a step is issued from Python and waited for; {WARMUPS} before, {ACTIVE} counted"
    reduced = (ON_CPU,) if is_cpu else ()
    yield SuiteSheet(f"steps: {used}", STEP_COLUMNS, steps, (STAND_IN, schedule, *reduced))
    found = {name: _with_padding(used, result) for name, result in measured.results.items()}
    blocks = _blocks_read(used, lengths)
    rows = tuple(
        (name, blocks[name], each.timing, ratio(found[FUSED].timing, each.timing), each.extra_bytes, each.error)
        for name, each in found.items()
    )
    paged = {name: result for name, result in found.items() if name != FUSED}  # it computes another problem
    comparison = make_comparison(machine, OPERATION, shape, replace(measured, results=paged), served)
    notes = (STAND_IN, PADDING, *reduced, *served_notes({"": served}), *measured.absent)
    yield SuiteSheet(f"decoding: {used}", SUMMARY_COLUMNS, rows, notes, measured.failed, (comparison,))


def fragmentation(*settings: GaudiSetting) -> SuiteSheet:
    """Count the blocks that a batch is padded to, and those that hold tokens; a row for each setting."""
    drawn = f"context lengths uniform from 1 to {SETTING.seq}, seed {SEED}"
    title = f"fragmentation: blocks of {SETTING.page_size} tokens"
    return SuiteSheet(title, FRAGMENT_COLUMNS, tuple(map(_fragmentation_row, settings)), (drawn,))


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
    alike = {name: getattr(shape, name) for name in ("batch", "heads", "kv_heads", "head_dim", "dtype")}
    dense = AttentionShape(seq_q=1, seq_kv=shape.max_context, **alike)
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
    padded, longest, real = setting.batch * setting.columns, setting.batch * int(counts.max()), int(counts.sum())
    return {FUSED: padded, INITIAL: longest, FLAT: real, OURS: real}


SUITE: Final = Suite(
    "gaudi",
    "a decoding step by fused SDPA, the initial and the flat PagedAttention, and what padding costs (Intel Gaudi)",
    measure_gaudi,
    has_comparisons=True,
)
