"""Compare what is served for prefill with its peers on the GPU here: ``python -m benchmarks.prefill [PART...]``.

Parts: ``cells``, the 16 of FlashAttention's benchmark (head_dim 64 and 128, causal or not, four lengths; batch x seq =
16,384, heads x head_dim = 2048, bf16); ``wide``, head_dim 256, and 192 over 128, from 1,024 tokens on; ``windows`` of
128 to 4,096 at 8,192 and 32,768 tokens; ``drawn``, model shapes by ``--seed`` (``autotune.tuning.draw_shapes``). What
the user tuned counts for nothing; with ``--tune 30`` each shape is searched for so many seconds first, but what a
``--store`` has a race of: there searches are kept, also those of ``benchmarks.served_regret --drawn``. A table in
Markdown is printed; each row is one interleaved race, so its ratios were taken in one run; a shape that no peer
computes has a row, too. Each part says what is wanted of the geometric mean of SDPA cuDNN's time, or the fastest
peer's, over ours, and of single rows; exits with 1 below.
"""

import argparse
import itertools
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Final

from autotune.dispatch import get_kernel
from autotune.errors import AutotuneError
from autotune.executor import Executor
from autotune.operation import Operation
from autotune.registry import get_operation
from autotune.roofline import rates
from autotune.shape import AttentionShape, Shape
from autotune.table import Store
from autotune.trial import Stage
from autotune.tuning import draw_shapes, tune
from benchmarks.console import open_gpu, parse_count, parse_duration, print_head, print_row, require_gpu
from benchmarks.drawn_regret import stored_rows
from benchmarks.shipped_problems import OPERATION, TOKENS, WIDTH, benchmark_shape
from benchmarks.user_tables import tables_in

SECONDS: Final = 4.0
CUDNN: Final = "sdpa cudnn"
PEERS: Final = ("sdpa flash", "sdpa efficient", CUDNN, "cudnn", "flash_attn_3", "flex")
MEMORY_MIB: Final = 81559  # of an H100 80GB HBM3: all GPUs are asked for the same drawn shapes
DRAWN: Final = 24


@dataclass(frozen=True, slots=True)
class PeerComparison:
    """Shapes, what they are compared with, "" for the fastest peer, and the least ratios wanted: mean and single."""

    shapes: Sequence[Shape]
    against: str
    mean: float
    least: float = 0.0


def parts(seed: int, count: int, *, is_tuned: bool) -> dict[str, PeerComparison]:
    """Return the parts of the comparison by name."""
    cells = [
        benchmark_shape(head_dim, causal, seq)
        for head_dim, causal, seq in itertools.product((64, 128), (False, True), (512, 1024, 4096, 16384))
    ]
    wide = [
        benchmark_shape(256, causal, seq) for causal, seq in itertools.product((False, True), (1024, 2048, 4096, 16384))
    ]
    latent = AttentionShape(batch=4, heads=WIDTH // 128, seq_q=TOKENS // 4, head_dim=192, head_dim_v=128, causal=True)
    wide += [replace(latent, batch=TOKENS // seq, seq_q=seq, seq_kv=seq) for seq in (1024, 4096, 16384)]
    windows: list[Shape] = [
        AttentionShape(batch=1, heads=32, kv_heads=8, seq_q=seq, head_dim=128, causal=True, window=window)
        for seq, window in itertools.product((8192, 32768), (128, 512, 1024, 4096))
    ]
    drawn = draw_shapes(get_operation(OPERATION), count, seed, memory_mib=MEMORY_MIB)
    return {
        "cells": PeerComparison(cells, CUDNN, 1.03, 0.97),
        "wide": PeerComparison(wide, CUDNN, 1.0),
        "windows": PeerComparison(windows, "", 1.1),
        "drawn": PeerComparison(drawn, "", 1.03 if is_tuned else 1.0),
    }


def compare(operation: Operation[Any], shape: Shape, executor: Executor, against: str) -> float:
    """Race what is served for a shape with its peers, print the row, and return the peer's time over ours."""
    kernel = get_kernel(shape, device=executor.device.name, operation=operation.name)
    executor.open(operation, shape)
    race = executor.race([kernel.candidate], seconds=SECONDS, baselines=PEERS)
    ours = race.outcomes[0].timing
    if ours is None:
        print_row(shape, *[""] * len(PEERS), race.outcomes[0].message, "", "", kernel.candidate)
        return 0.0
    times = {found.name: found.timing.median_us for found in race.baselines if found.timing}
    peer = times.get(against, math.inf) if against else min(times.values(), default=math.inf)
    speeds = [rates(operation.cost(shape), time)[0] if time else None for time in map(times.get, PEERS)]
    ratios = [
        time / ours.median_us if time else math.nan for time in (times.get(CUDNN), min(times.values(), default=0))
    ]
    print_row(
        shape,
        *("" if speed is None else f"{speed:.0f}" for speed in speeds),
        f"{rates(operation.cost(shape), ours.median_us)[0]:.0f}",
        *("" if math.isnan(ratio) else f"{ratio:.3f}" for ratio in ratios),
        f"{kernel.provenance.rung}: {kernel.candidate}",
    )
    return peer / ours.median_us


def search(shapes: Sequence[Shape], store: Store, seconds: float) -> None:
    """Search each shape for so many seconds; not again what the store has a race of, measured as it would be here."""
    with open_gpu("prefill") as executor:
        left = unraced(shapes, executor, store)
    if left:
        try:
            tune(left, budget=seconds, store=store, must_measure=True)
        except AutotuneError as error:  # of the only one that was left
            print(f"not searched: {error}")


def unraced(shapes: Sequence[Shape], executor: Executor, store: Store) -> list[Shape]:
    """Return the shapes that a store has no race of that was measured as this executor measures."""
    rows = stored_rows(get_operation(OPERATION), executor, store)
    raced = {row.shape for row in rows if row.stage is Stage.RACE}
    return [shape for shape in shapes if shape not in raced]


def run_part(name: str, part: PeerComparison, executor: Executor) -> bool:
    """Print a part's table and its means; return True if it is as wanted."""
    operation = get_operation(OPERATION)
    print()
    print_head(name, *PEERS, "autotune", "of sdpa cudnn", "of the fastest", "served")
    ratios = []
    for shape in part.shapes:
        try:
            ratios.append(compare(operation, shape, executor, part.against))
        except AutotuneError as error:
            print_row(shape, str(error))
            ratios.append(0.0)
    if not part.against:  # where no peer computes a shape there is no fastest
        ratios = [ratio for ratio in ratios if ratio < math.inf]
    known = [ratio for ratio in ratios if 0.0 < ratio < math.inf]
    mean, least = (geometric_mean(known), min(known)) if known else (math.nan, math.nan)
    wanted = f"wanted {part.mean:g}" + (f" and {part.least:g}" if part.least else "")
    over = f"{part.against or 'the fastest peer'}'s time over ours"
    print(f"\n{name}: {over} {mean:.3f} in the geometric mean of {len(known)}, {least:.3f} at worst; {wanted}")
    return len(known) == len(ratios) and mean >= part.mean and least >= part.least


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts that are named, ``cells`` by default; return 1 if one is not as wanted."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prefill", description=__doc__)
    names = list(parts(0, 1, is_tuned=False))
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(names)} [default: cells]")
    parser.add_argument("--seed", type=int, default=0, help="of the drawn shapes [default: 0]")
    parser.add_argument("--drawn", type=parse_count, default=DRAWN, help=f"so many shapes are drawn [default: {DRAWN}]")
    parser.add_argument("--tune", type=parse_duration, metavar="SECONDS", help="search each shape first")
    parser.add_argument("--store", type=Path, metavar="FOLDER", help="keep the searches here, and continue from them")
    given = parser.parse_args(arguments)
    if given.store is not None and given.tune is None:
        parser.error("--store keeps searches, which --tune makes")
    if strange := [name for name in given.parts if name not in names]:
        parser.error(f"{strange[0]!r} is unknown; allowed: {', '.join(names)}")
    chosen = parts(given.seed, given.drawn, is_tuned=given.tune is not None)
    wanted = {name: chosen[name] for name in given.parts or ["cells"]}
    require_gpu("prefill")
    with tables_in(given.store) as folder:
        if given.tune is not None:
            search([shape for part in wanted.values() for shape in part.shapes], Store(folder), given.tune)
        with open_gpu("prefill") as executor:
            met = [run_part(name, part, executor) for name, part in wanted.items()]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
