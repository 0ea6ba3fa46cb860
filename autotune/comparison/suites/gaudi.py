"""The notebook that profiles attention on Intel Gaudi: fused SDPA, the initial PagedAttention and the flat one, a step
of decoding each; sizes, context lengths and schedule are its own."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import torch

from autotune.comparison.on_gpu import OURS
from autotune.comparison.suites.contenders import (
    Contender,
    Measured,
    judge_inputs,
    make_comparison,
    measure_case,
    of_baseline,
    of_served,
    ratio,
    served_notes,
)
from autotune.comparison.suites.machine import Machine
from autotune.comparison.suites.suite import Column, Row, Suite, Table
from autotune.correctness import check_baseline
from autotune.dispatch import TunedKernel, get_kernel
from autotune.executor import BaselineResult
from autotune.kernels.baselines.gaudi import FlatPaged, InitialPaged
from autotune.kernels.baselines.sdpa import Sdpa
from autotune.kernels.flash_attention.kernel import Inputs as DenseInputs
from autotune.kernels.paged_decode.inputs import Inputs as PagedInputs
from autotune.registry import load_kernel
from autotune.shape import ITEM_BYTES, AttentionShape, PagedShape

OPERATION: Final = "paged_decode"
SEED: Final = 42  # of the context lengths
WARMUPS: Final = 1
ACTIVE: Final = 3
FUSED: Final = "fused SDPA *"
INITIAL: Final = "initial paged"
FLAT: Final = "flat paged"

FRAGMENT_COLUMNS: Final = (
    Column("sequences", "count"),
    Column("tokens", "count"),
    Column("padded blocks", "count"),
    Column("real blocks", "count"),
    Column("saved", "share"),
    Column("padded K and V", "bytes"),
    Column("real K and V", "bytes"),
)
STEP_COLUMNS: Final = (Column("implementation"), Column("step", "count"), Column("time", "time"))
SUMMARY_COLUMNS: Final = (
    Column("implementation"),
    Column("blocks read", "count"),
    Column("time", "time"),
    Column("speed-up over fused", "ratio"),
    Column("extra memory", "bytes"),
    Column("error", "error"),
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


@dataclass(frozen=True, slots=True)
class Setting:
    """What the notebook sets, and its pool of ``pool_blocks`` blocks."""

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
        """Blocks of the longest sequence that there may be."""
        return -(-self.seq // self.page_size)

    @property
    def block_bytes(self) -> int:
        """K and V of a block."""
        return 2 * self.page_size * self.kv_heads * self.head_dim * ITEM_BYTES[self.dtype]

    @property
    def padded_bytes(self) -> int:
        """K and V of a batch whose sequences all have ``columns`` blocks."""
        return self.batch * self.columns * self.block_bytes

    def shape(self, lengths: torch.Tensor) -> PagedShape:
        """The problem with these context lengths."""
        return PagedShape(
            batch=self.batch,
            heads=self.heads,
            kv_heads=self.kv_heads,
            max_context=self.seq,
            mean_context=max(1, round(float(lengths.float().mean()))),
            head_dim=self.head_dim,
            page_size=self.page_size,
            dtype=self.dtype,
        )

    def __str__(self) -> str:
        return (
            f"batch {self.batch}, seq {self.seq}, {self.heads}/{self.kv_heads} heads of {self.head_dim}, "
            f"blocks of {self.page_size}, {self.dtype}"
        )


SETTING: Final = Setting()
CPU_SETTING: Final = Setting(batch=8, pool_blocks=8 * SETTING.columns, dtype="float32")


def draw_lengths(setting: Setting) -> torch.Tensor:
    """Context lengths int32 ``[batch]``, uniform from 1 to ``seq``; of a smaller batch the first of the notebook's."""
    generator = torch.Generator().manual_seed(SEED)
    drawn = torch.randint(1, setting.seq + 1, (max(SETTING.batch, setting.batch),), generator=generator)
    return drawn[: setting.batch].int()


def measure_gaudi(machine: Machine, setting: Setting | None = None) -> Iterator[Table]:
    """What fragmentation costs, every step's time, and the three beside each other."""
    used = setting or (CPU_SETTING if machine.kind == "cpu" else SETTING)
    lengths = draw_lengths(used)
    yield fragmentation(*dict.fromkeys((SETTING, used)))
    shape = used.shape(lengths)
    served = None if machine.kind == "cpu" else get_kernel(shape)

    def contend() -> list[Contender]:
        return _contenders(shape, make_inputs(used, lengths, machine.kind), served)

    names = (FUSED, INITIAL, FLAT) if served is None else (FUSED, INITIAL, FLAT, OURS)
    machine.on_step(f"racing {', '.join(names)}")
    measured = measure_case(machine, names, contend)
    machine.on_step("timing single steps")
    steps = tuple(_step_rows(machine, measured))
    machine.release()
    schedule = f"a step is issued from Python and waited for; {WARMUPS} before, {ACTIVE} counted"
    reduced = (ON_CPU,) if machine.kind == "cpu" else ()
    yield Table(f"steps: {used}", STEP_COLUMNS, steps, (STAND_IN, schedule, *reduced))
    found = {name: _with_padding(used, result) for name, result in measured.results.items()}
    blocks = _blocks_read(used, lengths)
    rows = tuple(_summary(name, result, found[FUSED], blocks[name]) for name, result in found.items())
    paged = {name: result for name, result in found.items() if name != FUSED}  # it computes another problem
    comparison = make_comparison(machine, OPERATION, shape, replace(measured, results=paged), served)
    notes = (STAND_IN, PADDING, *reduced, *served_notes({"": served}), *measured.absent)
    yield Table(f"decoding: {used}", SUMMARY_COLUMNS, rows, notes, measured.failed, (comparison,))


def _step_rows(machine: Machine, measured: Measured) -> Iterator[Row]:
    """Every step of each that is right."""
    for name, call in measured.calls.items():
        times = machine.steps(call, warmups=WARMUPS, active=ACTIVE)
        yield from ((name, step, microseconds) for step, microseconds in enumerate(times, start=1))


def fragmentation(*settings: Setting) -> Table:
    """Blocks that a batch is padded to, and those that hold tokens; a row for each setting."""
    drawn = f"context lengths uniform from 1 to {SETTING.seq}, seed {SEED}"
    title = f"fragmentation: blocks of {SETTING.page_size} tokens"
    return Table(title, FRAGMENT_COLUMNS, tuple(map(_fragmentation_row, settings)), (drawn,))


def _fragmentation_row(setting: Setting) -> Row:
    lengths = draw_lengths(setting)
    padded = setting.batch * setting.columns
    real = int((-(-lengths // setting.page_size)).sum())
    memory = (setting.padded_bytes, real * setting.block_bytes)
    return (setting.batch, int(lengths.sum()), padded, real, 1.0 - real / padded, *memory)


def make_inputs(setting: Setting, lengths: torch.Tensor, device: str) -> PagedInputs:
    """Random queries and a pool whose blocks lie in random order; slots behind a sequence's end hold numbers too."""
    generator = torch.Generator(device=device).manual_seed(SEED)
    dtype = getattr(torch, setting.dtype)
    sizes = (setting.pool_blocks, setting.page_size, setting.kv_heads, setting.head_dim)
    q = torch.empty(setting.batch, 1, setting.heads, setting.head_dim, dtype=dtype, device=device)
    k_cache, v_cache = (torch.empty(sizes, dtype=dtype, device=device) for _ in range(2))
    for tensor in (q, k_cache, v_cache):
        tensor.normal_(generator=generator)
    order = torch.randperm(setting.pool_blocks, generator=generator, device=device)
    table = order[: setting.batch * setting.columns].view(setting.batch, setting.columns).int()
    return PagedInputs(
        q,
        k_cache,
        v_cache,
        table,
        lengths.to(device),
        layout="NHD",
        scale=setting.head_dim**-0.5,
        window=None,
        softcap=None,
        sinks=None,
        alibi_slopes=None,
    )


def _contenders(shape: PagedShape, inputs: PagedInputs, served: TunedKernel | None) -> list[Contender]:
    case = judge_inputs(load_kernel(OPERATION), inputs)

    def check(out: torch.Tensor) -> tuple[float, float]:
        return check_baseline(out, case)

    found = [
        _fused(shape, inputs),
        of_baseline(InitialPaged(), shape, inputs, check, name=INITIAL),
        of_baseline(FlatPaged(), shape, inputs, check, name=FLAT),
    ]
    if served is not None:
        tensors = (inputs.q, inputs.k_cache, inputs.v_cache, inputs.page_table, inputs.seq_lens)
        found.append(of_served(served, tensors, check))
    return found


def _fused(shape: PagedShape, inputs: PagedInputs) -> Contender:
    """torch's SDPA over the padded keys: without a mask, as the notebook calls FusedSDPA."""
    dense = AttentionShape(
        batch=shape.batch,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        seq_q=1,
        seq_kv=shape.max_context,
        head_dim=shape.head_dim,
        dtype=shape.dtype,
    )
    k, v = (cache[inputs.page_table.long()].flatten(1, 2)[:, : shape.max_context] for cache in _caches(inputs))
    joined = DenseInputs(inputs.q, k, v, causal=False, window=None, softcap=None, scale=inputs.scale)
    case = judge_inputs(load_kernel("flash_attention"), joined)

    def check(out: torch.Tensor) -> tuple[float, float]:
        return check_baseline(out, case)

    return of_baseline(Sdpa("flash"), dense, joined, check, name=FUSED)


def _with_padding(setting: Setting, result: BaselineResult) -> BaselineResult:
    """The fused one with what its padded K and V take, which lie ready before it is prepared."""
    if result.name != FUSED or result.extra_bytes is None:
        return result
    return replace(result, extra_bytes=result.extra_bytes + setting.padded_bytes)


def _caches(inputs: PagedInputs) -> tuple[torch.Tensor, torch.Tensor]:
    return inputs.k_cache, inputs.v_cache


def _blocks_read(setting: Setting, lengths: torch.Tensor) -> dict[str, int]:
    counts = -(-lengths // setting.page_size)
    real = int(counts.sum())
    return {
        FUSED: setting.batch * setting.columns,
        INITIAL: setting.batch * int(counts.max()),
        FLAT: real,
        OURS: real,
    }


def _summary(name: str, result: BaselineResult, fused: BaselineResult, blocks: int) -> Row:
    return name, blocks, result.timing, ratio(fused.timing, result.timing), result.extra_bytes, result.error


SUITE: Final = Suite(
    "gaudi",
    "a decoding step by fused SDPA, the initial and the flat PagedAttention, and what padding costs (Intel Gaudi)",
    measure_gaudi,
    has_comparisons=True,
)
