"""Records what ships in ``results/`` on the GPU here: ``python -m benchmarks.record winners`` or ``sweeps``.

The grid is FlashAttention's benchmark: batch x seq = 16,384 and heads x head_dim = 2048, bf16, forward. A recording may
be split over several runs with ``--head-dim``; tables that are already there are merged with.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from autotune.cli.progress import Progress
from autotune.dispatch import neighbour_configs
from autotune.executor.gpu import GpuExecutor
from autotune.registry import get_operation
from autotune.report.summary import winner_lines
from autotune.search import DEFAULT_SAMPLER, Limits, Sampler, SearchResult, search
from autotune.search.sweeps import ship_sweep
from autotune.shape import AttentionShape
from autotune.table import Store, shipped_winners, winners, write_shipped

RESULTS = Path(__file__).resolve().parent.parent / "results"
OPERATION = "flash_attention"
TOKENS, WIDTH = 16384, 2048
HEAD_DIMS = (64, 128, 256)
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
WINNER_SECONDS = 20.0
SWEEPS = tuple(  # head_dim, causal, seq: a short and a long one of each kind
    (head_dim, causal, seq)
    for head_dim, causal, lengths in (
        (64, False, (1024, 16384)),
        (64, True, (512, 4096)),
        (128, False, (1024, 8192)),
        (128, True, (1024, 4096)),
        (256, False, (1024, 16384)),
        (256, True, (512, 4096)),
    )
    for seq in lengths
)


def grid_shape(head_dim: int, causal: bool, seq: int) -> AttentionShape:
    """One cell of the grid."""
    return AttentionShape(
        batch=TOKENS // seq, heads=WIDTH // head_dim, seq_q=seq, head_dim=head_dim, dtype="bfloat16", causal=causal
    )


def record_winners(executor: GpuExecutor, store: Store, head_dims: list[int], results: Path) -> None:
    """Search every cell of the grid and merge its winner into the shipped table."""
    for head_dim in head_dims:
        for causal in (False, True):
            for seq in LENGTHS:
                run(executor, store, grid_shape(head_dim, causal, seq), Limits(seconds=WINNER_SECONDS))
    found = winners([*shipped_winners(OPERATION, results=results), *store.trials(OPERATION, executor.device)])
    here = [trial for trial in found if trial.device == executor.device]
    write_shipped(Path(executor.device.slug) / f"{OPERATION}.parquet", here, results=results)


def record_sweeps(executor: GpuExecutor, store: Store, head_dims: list[int], results: Path) -> None:
    """Measure every valid config of the sweeps' shapes."""
    for head_dim, causal, seq in SWEEPS:
        if head_dim in head_dims:
            result = run(executor, store, grid_shape(head_dim, causal, seq), Limits(), sampler="exhaustive")
            ship_sweep(result, results)


def run(
    executor: GpuExecutor, store: Store, shape: AttentionShape, limits: Limits, *, sampler: Sampler = DEFAULT_SAMPLER
) -> SearchResult:
    """One study, its result printed."""
    operation = get_operation(OPERATION)
    console = Console(soft_wrap=True, highlight=False)
    with Progress(Console(file=sys.stderr, quiet=True), limits) as progress:
        neighbours = neighbour_configs(operation, shape, executor.device)
        result = search(
            operation,
            shape,
            executor,
            store,
            limits=limits,
            neighbours=neighbours,
            sampler=sampler,
            observer=progress,
        )
    assert result.winner is not None
    console.print(
        f"{shape}: {result.measured} configs in {result.seconds:.0f} s", *winner_lines(result.winner), sep="\n  "
    )
    return result


def main() -> None:
    """Entry of the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("winners", "sweeps"))
    parser.add_argument("--head-dim", type=int, action="append", choices=HEAD_DIMS, help="only these")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    executor = GpuExecutor(early_stop=arguments.what == "winners")
    with tempfile.TemporaryDirectory() as folder:
        record = record_winners if arguments.what == "winners" else record_sweeps
        try:
            record(executor, Store(Path(folder)), arguments.head_dim or list(HEAD_DIMS), arguments.results)
        finally:
            executor.close()


if __name__ == "__main__":
    main()
