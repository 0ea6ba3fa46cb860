"""The exercise's search for block sizes: six pairs at three lengths, and the best of them for each length.

There the sizes never reached the kernel; here they are BLOCK_Q and BLOCK_K of ours. On a CPU, where no time of a GPU's
blocks can be had, the recorded sweeps answer.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from autotune.comparison.suites.machine import Machine
from autotune.comparison.suites.suite import Column, Row, Suite, Table
from autotune.device import Device
from autotune.errors import MissingDependencyError
from autotune.registry import get_operation
from autotune.search_spaces.flash_attention import ROWS_PER_WARP
from autotune.shape import AttentionShape
from autotune.space import Config
from autotune.table import shipped_sweeps
from autotune.trial import Policy, Stage, Status, Timing

OPERATION: Final = "flash_attention"
PAIRS: Final = ((32, 32), (64, 64), (128, 128), (64, 32), (32, 64), (128, 64))  # BLOCK_Q, BLOCK_K
LENGTHS: Final = (256, 512, 1024)
BATCH: Final = 2
HEADS: Final = 16
HEAD_DIM: Final = 64
SECONDS: Final = 10.0  # a race of six configs

BLOCKS: Final = Column("BLOCK_Q x BLOCK_K")
MEASURED_COLUMNS: Final = (Column("S", "count"), BLOCKS, Column("time", "time"), Column("config"), Column("result"))
RECORDED_COLUMNS: Final = (
    Column("S", "count"),
    Column("recorded problem"),
    Column("not as asked"),
    BLOCKS,
    Column("time", "time"),
    Column("with other parameters at their best", "time"),
)
BEST_COLUMNS: Final = (Column("S", "count"), Column("best pair"), Column("time", "time"), Column("not told apart"))
RECORDED_BEST_COLUMNS: Final = (Column("S", "count"), Column("recorded problem"), *BEST_COLUMNS[1:])
OTHERS: Final = (
    f"other parameters are the default's, but no more warps than BLOCK_Q has {ROWS_PER_WARP} rows for; "
    "pairs longer than S are left out"
)
RECORDED: Final = (
    "reduced: nothing is measured, as a CPU has no such blocks: times are those of the recorded sweep on an {device} "
    "with the same mask, where there is one, whose length is nearest, and of those the nearest in batch and heads; "
    "what is not as asked stands beside it; `autotune bench --suite blocks` on a GPU measures the exercise's problem"
)
NOT_RECORDED: Final = "not recorded"
BEST_RECORDED: Final = (
    "the best of a length that is recorded with the same mask, in the batch and heads recorded: with the exercise's "
    "another may be the best; of other lengths none is named"
)


def measure_blocks(machine: Machine) -> Iterator[Table]:
    """Each pair's time, and the best pair of each length."""
    yield from _look_up() if machine.kind == "cpu" else _race(machine)


def problem(seq: int) -> AttentionShape:
    """The exercise's problem at that length, in bf16, the dtype of the recorded sweeps."""
    return AttentionShape(batch=BATCH, heads=HEADS, seq_q=seq, head_dim=HEAD_DIM, dtype="bfloat16", causal=True)


def pair_configs(shape: AttentionShape, device: Device) -> dict[tuple[int, int], Config]:
    """A config for each pair that is no longer than the lengths: the default with these blocks."""
    default = get_operation(OPERATION).space.default(shape, device)
    found = {}
    for block_q, block_k in PAIRS:
        if block_q <= shape.seq_q and block_k <= shape.seq_kv:
            warps = max(1, min(default.integer("num_warps"), block_q // ROWS_PER_WARP))
            found[block_q, block_k] = Config({**default, "BLOCK_Q": block_q, "BLOCK_K": block_k, "num_warps": warps})
    return found


def nearest(shape: AttentionShape, recorded: Sequence[AttentionShape]) -> AttentionShape:
    """Of the recorded problems with this dtype and head dimension the one nearest in length, then in all sizes.

    One with another mask is taken only where there is none with this.

    Raises:
        MissingDependencyError: there is none.
    """
    alike = [other for other in recorded if (other.dtype, other.head_dim) == (shape.dtype, shape.head_dim)]
    if not alike:
        raise MissingDependencyError(f"no sweep with head_dim {shape.head_dim} in {shape.dtype} is recorded")

    def far(other: AttentionShape) -> tuple[bool, float, float]:
        lengths = abs(math.log2(other.seq_q / shape.seq_q))
        return other.causal != shape.causal, lengths, shape.distance(replace(other, causal=shape.causal))

    return min(alike, key=far)


def mismatches(shape: AttentionShape, recorded: AttentionShape) -> str:
    """What is not as asked, with the value that is asked for.

    Example:
        >>> mismatches(problem(256), replace(problem(512), batch=32))
        'batch (2 asked), seq (256 asked)'
    """
    pairs = {
        "batch": (shape.batch, recorded.batch),
        "heads": (shape.heads, recorded.heads),
        "seq": (shape.seq_q, recorded.seq_q),
        "mask": tuple("causal" if each.causal else "full" for each in (shape, recorded)),
    }
    return ", ".join(f"{name} ({asked} asked)" for name, (asked, found) in pairs.items() if asked != found)


def _race(machine: Machine) -> Iterator[Table]:
    operation = get_operation(OPERATION)
    rows: list[Row] = []
    best: list[Row] = []
    failures: list[str] = []
    executor = machine.open_executor()
    try:
        for seq in LENGTHS:
            shape = problem(seq)
            configs = pair_configs(shape, executor.device)
            machine.on_step(f"racing {len(configs)} pairs at S {seq}")
            executor.open(operation, shape)
            outcomes = executor.race(list(configs.values()), seconds=SECONDS, baselines="none").outcomes
            raced = dict(zip(configs, outcomes, strict=True))
            for pair, outcome in raced.items():
                rows.append((seq, _name(pair), outcome.timing, str(outcome.config), str(outcome.status)))
                if outcome.timing is None:
                    failures.append(f"S {seq}: {_name(pair)} is {outcome.status}: {outcome.message}")
            best.append(_best(seq, {pair: outcome.timing for pair, outcome in raced.items()}))
    finally:
        executor.close()
    title = f"block pairs: batch {BATCH}, {HEADS} heads of {HEAD_DIM}, bfloat16, causal"
    how = "times are of one interleaved race a length, of a CUDA graph's replay over inputs that no cache holds"
    yield Table(title, MEASURED_COLUMNS, tuple(rows), (OTHERS, how), tuple(failures))
    yield Table("the best pair", BEST_COLUMNS, tuple(best))


def _look_up() -> Iterator[Table]:
    sweeps = [sweep.trials() for sweep in shipped_sweeps(OPERATION)]
    recorded = {shape: trials for trials in sweeps if isinstance(shape := trials[0].shape, AttentionShape)}
    rows: list[Row] = []
    best: list[Row] = []
    devices: set[str] = set()
    for seq in LENGTHS:
        source = nearest(problem(seq), list(recorded))
        differs = mismatches(problem(seq), source)
        device = recorded[source][0].device
        devices.add(device.name)
        screened = {
            trial.config: trial.timing
            for trial in recorded[source]
            if trial.stage is Stage.SCREEN and trial.status in (Status.OK, Status.SLOW)
        }
        configs = {pair: config for pair, config in pair_configs(source, device).items() if max(pair) <= seq}
        times = {pair: screened.get(config) for pair, config in configs.items()}
        for pair, timing in times.items():
            rows.append((seq, str(source), differs, _name(pair), timing, _fastest(screened, pair)))
        best.append(_best_recorded(seq, source, times))
    note = RECORDED.format(device=" and an ".join(sorted(devices)))
    yield Table("block pairs, as recorded", RECORDED_COLUMNS, tuple(rows), (note, OTHERS))
    yield Table("the best pair, as recorded", RECORDED_BEST_COLUMNS, tuple(best), (BEST_RECORDED,))


def _fastest(screened: Mapping[Config, Timing | None], pair: tuple[int, int]) -> Timing | None:
    """The least time of all configs with these blocks."""
    timings = [
        timing
        for config, timing in screened.items()
        if timing is not None and (config.integer("BLOCK_Q"), config.integer("BLOCK_K")) == pair
    ]
    return min(timings, key=lambda timing: timing.median_us, default=None)


def _best(seq: int, times: Mapping[tuple[int, int], Timing | None]) -> Row:
    """The pair with the least median, and those whose intervals overlap its own."""
    timed = {pair: timing for pair, timing in times.items() if timing is not None}
    if not timed:
        return seq, None, None, None
    pair = min(timed, key=lambda pair: timed[pair].median_us)
    level = [_name(other) for other, timing in timed.items() if other != pair and timing.overlaps(timed[pair])]
    return seq, _name(pair), timed[pair], ", ".join(level) or "none"


def _best_recorded(seq: int, source: AttentionShape, times: Mapping[tuple[int, int], Timing | None]) -> Row:
    """``_best`` with the problem that it is of; nothing of another length or mask than was asked for."""
    if (source.seq_q, source.causal) != (seq, problem(seq).causal):
        return seq, NOT_RECORDED, None, None, None
    _, *best = _best(seq, times)
    return seq, str(source), *best


def _name(pair: tuple[int, int]) -> str:
    return f"{pair[0]}x{pair[1]}"


SUITE: Final = Suite(
    "blocks",
    "six pairs of block sizes at three lengths, and the best of them (AMD's exercise in Triton)",
    measure_blocks,
    policy_on=lambda machine: None if machine.kind == "cpu" else Policy(),
)
