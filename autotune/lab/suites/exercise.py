"""The exercise of AMD's training material on flash attention in Triton: its sizes, with causal masks as its kernel has.

Flash against standard attention, by itself and in a module with projections: times, peaks and errors.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import torch
from torch.nn.functional import linear, scaled_dot_product_attention

from autotune import sheets
from autotune.correctness import Case, check_baseline, error_limit
from autotune.dispatch import TunedKernel, get_kernel
from autotune.dtypes import ITEM_BYTES
from autotune.executor import BaselineResult
from autotune.kernels.baselines.eager import make_attention
from autotune.kernels.baselines.sdpa import OneBackend
from autotune.lab.bench.comparison import Comparison
from autotune.lab.bench.entrants import Check, Entrant, checker, make_comparison, measure_case, ratio, served_notes
from autotune.lab.bench.machines import Machine
from autotune.lab.suites.suite import Suite, SuiteSheet
from autotune.registry import load_definition
from autotune.shape import AttentionShape

FLASH: Final = "flash"
STANDARD: Final = "standard"
BOTH: Final = (FLASH, STANDARD)

COLUMNS: Final = (
    sheets.text("B, H, S, D"),
    *map(sheets.timing, BOTH),
    sheets.ratio("speed-up"),
    *(sheets.size(f"{name} peak") for name in BOTH),
    sheets.ratio("memory ratio"),
    *(sheets.number(f"{name} tokens/s", ",.0f") for name in BOTH),
    *(sheets.number(f"{name} error", ".1e") for name in BOTH),
)
PEAK: Final = "peak: the most that a call holds beside inputs and weights, its output included"
ON_CPU: Final = "flash is torch's SDPA by its flash backend, since no Triton kernel runs on a CPU; float32 alone"
ON_GPU: Final = "flash is the kernel that get_kernel serves"
ERROR_ALONE: Final = "error: the largest one against fp64"
ERROR_PROJECTED: Final = f"{ERROR_ALONE}, of the first sequence; both have the same weights"

OPERATION: Final = "flash_attention"
CASES: Final = ((1, 8, 128, 64), (2, 16, 256, 64), (4, 32, 512, 64), (2, 16, 1024, 64), (1, 8, 2048, 64))  # B, H, S, D
DTYPES: Final = {"cpu": ("float32",), "cuda": ("float32", "float16")}  # a module's default, and what GPUs are for
SEED: Final = 0

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]  # over [B, S, H, D]
Way = Callable[[], Attend]  # makes ready what it keeps between calls


def measure_exercise(machine: Machine, cases: tuple[tuple[int, int, int, int], ...] = CASES) -> Iterator[SuiteSheet]:
    where = ON_CPU if machine.kind == "cpu" else ON_GPU
    for dtype in DTYPES[machine.kind]:
        shapes = [
            AttentionShape(batch=batch, heads=heads, seq_q=seq, head_dim=width, dtype=dtype, causal=True)
            for batch, heads, seq, width in cases
        ]
        notes = (where, PEAK, ERROR_ALONE)
        yield _sheet(machine, f"attention, {dtype}", shapes, _by_itself, notes)
        notes = (where, PEAK, ERROR_PROJECTED)
        yield _sheet(machine, f"with projections, {dtype}", shapes, _projected, notes)


def _sheet(
    machine: Machine,
    title: str,
    shapes: list[AttentionShape],
    enter: Callable[[AttentionShape, dict[str, Way], str], list[Entrant]],
    notes: tuple[str, ...],
) -> SuiteSheet:
    rows = []
    failures: list[str] = []
    comparisons: list[Comparison] = []
    ours: dict[str, TunedKernel | None] = {}
    for shape in shapes:
        sizes = _sizes(shape)
        machine.on_step(f"{title}: {sizes}")
        served, ways = _ways(machine, shape)
        ours[sizes] = served
        found = measure_case(machine, (FLASH, STANDARD), functools.partial(enter, shape, ways, machine.kind))
        rows.append(_row(shape, found.results))
        failures += [f"{title}: {sizes}: {failure}" for failure in (*found.absent, *found.failed)]
        comparison = make_comparison(machine, OPERATION, shape, found, served, ours=FLASH)
        if enter is _projected:  # the operation's cost leaves the projections out
            entries = tuple(replace(entry, tflops=None, gbps=None) for entry in comparison.entries)
            comparison = replace(comparison, entries=entries)
        comparisons.append(comparison)
        machine.release()
    notes = (*notes, *served_notes(ours))
    return SuiteSheet(title, COLUMNS, tuple(rows), notes, tuple(failures), tuple(comparisons))


def _ways(machine: Machine, shape: AttentionShape) -> tuple[TunedKernel | None, dict[str, Way]]:
    """Return the kernel of ours that is flash on a GPU, and what makes both attentions ready."""
    standard = functools.partial(_standard, shape, machine.kind)
    if machine.kind == "cpu":
        return None, {FLASH: lambda: _sdpa_flash, STANDARD: standard}
    served = get_kernel(shape)
    return served, {FLASH: lambda: served, STANDARD: standard}


def _sdpa_flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    with OneBackend("flash"):
        return scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def _standard(shape: AttentionShape, device: str) -> Attend:
    heads_first = make_attention(
        shape.seq_q, shape.seq_kv, device=device, causal=shape.causal, scale=shape.head_dim**-0.5
    )

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return heads_first(*(tensor.transpose(1, 2) for tensor in (q, k, v))).transpose(1, 2)

    return attend


def _by_itself(shape: AttentionShape, ways: dict[str, Way], device: str) -> list[Entrant]:
    definition = load_definition(OPERATION)
    inputs = definition.make_inputs(shape, seed=SEED, device=device)
    check = checker(definition, inputs)

    def run(attend: Attend) -> torch.Tensor:
        return attend(inputs.q, inputs.k, inputs.v)

    return [_entrant(name, way, run, check) for name, way in ways.items()]


def _projected(shape: AttentionShape, ways: dict[str, Way], device: str) -> list[Entrant]:
    """Enter attention between projections of ``hidden [B, S, H * D]``: three before it, one behind it."""
    generator = torch.Generator(device=device).manual_seed(SEED)
    dtype, width = getattr(torch, shape.dtype), shape.heads * shape.head_dim
    hidden = torch.randn(shape.batch, shape.seq_q, width, generator=generator, device=device).to(dtype)
    weights = [
        (torch.randn(width, width, generator=generator, device=device) * width**-0.5).to(dtype) for _ in range(4)
    ]

    def run(attend: Attend, hidden: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
        sizes = (*hidden.shape[:2], shape.heads, shape.head_dim)
        q, k, v = (linear(hidden, weight).view(sizes) for weight in weights[:3])
        return linear(attend(q, k, v).flatten(2), weights[3])

    standard = _standard(shape, device)
    reference = run(standard, hidden[:1].double(), [weight.double() for weight in weights])
    limit = error_limit(reference, run(standard, hidden[:1], weights), dtype)
    case = Case("projected", load_definition(OPERATION), hidden, (reference,), (limit,))

    def run_all(attend: Attend) -> torch.Tensor:
        return run(attend, hidden, weights)

    return [_entrant(name, way, run_all, lambda out: check_baseline(out[:1], case)) for name, way in ways.items()]


def _entrant(name: str, way: Way, run: Callable[[Attend], torch.Tensor], check: Check) -> Entrant:
    """Enter ``run`` with an attention that is made ready with it, so that what the attention keeps is counted."""
    return Entrant(name, lambda: functools.partial(run, way()), check)


def _row(shape: AttentionShape, found: Mapping[str, BaselineResult]) -> tuple[Any, ...]:
    flash, standard = found[FLASH], found[STANDARD]
    peaks = [_peak(shape, result) for result in (flash, standard)]
    rates = [
        None if result.timing is None else shape.batch * shape.seq_q / result.timing.median_us * 1e6
        for result in (flash, standard)
    ]
    saved = None if peaks[0] is None or peaks[1] is None else peaks[1] / peaks[0]
    times = (flash.timing, standard.timing, ratio(standard.timing, flash.timing))
    return (_sizes(shape), *times, *peaks, saved, *rates, flash.error, standard.error)


def _peak(shape: AttentionShape, result: BaselineResult) -> int | None:
    if result.extra_bytes is None:
        return None
    return result.extra_bytes + shape.batch * shape.seq_q * shape.heads * shape.head_dim * ITEM_BYTES[shape.dtype]


def _sizes(shape: AttentionShape) -> str:
    return f"{shape.batch}, {shape.heads}, {shape.seq_q}, {shape.head_dim}"


SUITE: Final = Suite(
    "exercise",
    "flash against standard attention, alone and between projections (AMD's exercise in Triton)",
    measure_exercise,
    has_comparisons=True,
)
