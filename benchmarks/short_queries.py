"""Compare few queries on many keys with torch's SDPA backends on the GPU here: ``python -m benchmarks.short_queries``.

Each of six problems (1, 16 and 64 queries on 32,768 keys, batch 1 and 4, 32/8 heads of 128, bf16, no mask) is searched
for so many seconds, with an empty store; then one interleaved race holds what the search found and every SDPA backend,
over buffers that rotate past the L2. A tuned kernel that only reads as many bytes as the keys and values have
(``benchmarks.stream_read``) says in the same run what the memory gives: *of reading* is the time of that over ours.

Wanted of 16 queries, batch 1: 0.9 of reading; exits with 1 below. The output is Markdown.
"""

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from autotune.dtypes import ITEM_BYTES
from autotune.errors import AutotuneError
from autotune.executor.gpu import GpuExecutor
from autotune.registry import get_operation
from autotune.shape import AttentionShape
from autotune.table import Store
from autotune.trial import Candidate
from benchmarks.console import open_gpu, print_head, print_row, require_gpu
from benchmarks.shipped_problems import FEW_QUERIES, FEW_SEQUENCES, OPERATION, short_queries
from benchmarks.user_tables import tables_in

SEARCH_SECONDS: Final = 60.0
RACE_SECONDS: Final = 4.0
WANTED: Final = 0.9
PEERS: Final = ("sdpa flash", "sdpa efficient", "sdpa cudnn", "sdpa math")


class RacedShape(NamedTuple):
    """Microseconds of one race, of ours and of SDPA's backends by name, and those of reading keys and values."""

    shape: AttentionShape
    candidate: Candidate
    ours_us: float
    peers_us: Mapping[str, float]
    reading_us: float

    @property
    def of_reading(self) -> float:
        """The bandwidth of keys and values as a part of the one that was measured."""
        return self.reading_us / self.ours_us

    @property
    def of_best(self) -> float:
        """The time of the fastest backend over ours; NaN where none can."""
        return min(self.peers_us.values(), default=math.nan) / self.ours_us


def key_bytes(shape: AttentionShape) -> int:
    """Return the bytes of all keys and values, each read once."""
    widths = shape.head_dim + shape.head_dim_v
    return shape.batch * shape.kv_heads * shape.seq_kv * widths * ITEM_BYTES[shape.dtype]


def search(shape: AttentionShape, seconds: float) -> Candidate:
    """Search a shape with an empty store; return the winner of all implementations of ours."""
    from autotune.tuning import tune

    with tables_in() as folder:
        tuned = tune(shape, budget=seconds, trials=None, store=Store(folder), must_measure=True)
    if (winner := tuned.results[0].winner) is None:
        raise AutotuneError(f"nothing was found for {shape}: {tuned.results[0].failure}")
    return winner.candidate


def race(executor: GpuExecutor, shape: AttentionShape, candidate: Candidate) -> RacedShape:
    """Race a candidate beside SDPA's backends, and time reading as many bytes as there are keys and values."""
    from benchmarks.stream_read import fastest_read

    executor.open(get_operation(OPERATION), shape)
    found = executor.race([candidate], seconds=RACE_SECONDS, baselines=PEERS)
    ours = found.outcomes[0].timing
    if ours is None:
        raise AutotuneError(f"{candidate} has no time: {found.outcomes[0].message}")
    times = {each.name: each.timing.median_us for each in found.baselines if each.timing}
    reading_us, _ = fastest_read(key_bytes(shape) / 1e6)
    return RacedShape(shape, candidate, ours.median_us, times, reading_us)


def cells_of(found: RacedShape) -> tuple[object, ...]:
    """Return the cells of a problem's row."""
    size = key_bytes(found.shape)
    return (
        found.shape.batch,
        found.shape.seq_q,
        f"{size / 1e6:.0f}",
        f"{size / found.reading_us / 1e6:.2f}",
        f"{found.ours_us:.1f}",
        f"{size / found.ours_us / 1e6:.2f}",
        f"{found.of_reading:.3f}",
        *(f"{found.peers_us[name]:.1f}" if name in found.peers_us else "" for name in PEERS),
        "" if math.isnan(found.of_best) else f"{found.of_best:.3f}",
        found.candidate,
    )


def is_wanted(found: Sequence[RacedShape]) -> bool:
    """Return False where 16 queries of one sequence were raced, and are slower than wanted."""
    return all(each.of_reading >= WANTED for each in found if (each.shape.batch, each.shape.seq_q) == (1, 16))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.short_queries", description=__doc__)
    parser.add_argument("--seconds", type=float, default=SEARCH_SECONDS, help="of each search [default: %(default)s]")
    parser.add_argument("--queries", type=int, nargs="+", choices=FEW_QUERIES, default=FEW_QUERIES)
    parser.add_argument("--batch", type=int, nargs="+", choices=FEW_SEQUENCES, default=FEW_SEQUENCES)
    chosen = parser.parse_args(arguments)
    require_gpu("short_queries")
    shapes = [short_queries(batch, queries) for batch in chosen.batch for queries in chosen.queries]
    candidates = {shape: search(shape, chosen.seconds) for shape in shapes}
    found = []
    with open_gpu("short_queries") as executor:
        print()
        rates = ("MB", "read TB/s", "us", "TB/s", "of reading")
        print_head("batch", "queries", *rates, *PEERS, "best over ours", "found")
        for shape, candidate in candidates.items():
            found.append(race(executor, shape, candidate))
            print_row(*cells_of(found[-1]))
    return 0 if is_wanted(found) else 1


if __name__ == "__main__":
    sys.exit(main())
