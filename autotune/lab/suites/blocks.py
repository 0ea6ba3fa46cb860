"""The exercise's search for block sizes: six pairs at three lengths, and the best of them for each length.

There the sizes never reached the kernel; here they are BLOCK_Q and BLOCK_K of ours. They are raced on a GPU; on a CPU,
where no time of a GPU's blocks can be measured, the recorded sweeps answer.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from autotune import sheets
from autotune.device import Device
from autotune.errors import MissingDependencyError
from autotune.lab.bench.machines import Machine
from autotune.lab.suites.suite import Suite, SuiteSheet
from autotune.registry import get_implementation, get_operation
from autotune.search_spaces.flash_attention.triton import ROWS_PER_WARP
from autotune.shape import AttentionShape
from autotune.space import Config
from autotune.table import shipped_sweeps
from autotune.trial import Candidate, Policy, Stage, Status, Timing

SEQ: Final = sheets.number("S", "d")
BLOCKS: Final = sheets.text("BLOCK_Q x BLOCK_K")
SOURCE: Final = sheets.text("recorded problem")
MEASURED_COLUMNS: Final = (SEQ, BLOCKS, sheets.timing(), sheets.text("config"), sheets.text("result"))
OTHERS_BEST: Final = sheets.timing("with other parameters at their best")
RECORDED_COLUMNS: Final = (SEQ, SOURCE, sheets.text("not as asked"), BLOCKS, sheets.timing(), OTHERS_BEST)
BEST_COLUMNS: Final = (SEQ, sheets.text("best pair"), sheets.timing(), sheets.text("not distinguished"))
RECORDED_BEST_COLUMNS: Final = (SEQ, SOURCE, *BEST_COLUMNS[1:])
OTHERS: Final = (
    f"other parameters are the default's, but no more warps than BLOCK_Q has {ROWS_PER_WARP} rows for; "
    "pairs longer than S are left out"
)
RACED: Final = "times are of one interleaved race a length, of a CUDA graph's replay over inputs that no cache holds"
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

OPERATION: Final = "flash_attention"
IMPLEMENTATION: Final = "triton"  # whose blocks these are
PAIRS: Final = ((32, 32), (64, 64), (128, 128), (64, 32), (32, 64), (128, 64))  # BLOCK_Q, BLOCK_K
LENGTHS: Final = (256, 512, 1024)
BATCH: Final = 2
HEADS: Final = 16
HEAD_DIM: Final = 64
SECONDS: Final = 10.0  # a race of six configs


Row = tuple[Any, ...]
Pair = tuple[int, int]


def measure_blocks(machine: Machine) -> Iterator[SuiteSheet]:
    yield from _recorded() if machine.kind == "cpu" else _measured(machine)


def shape_of(seq: int) -> AttentionShape:
    """Return the exercise's problem at a length, in bf16, the dtype of the recorded sweeps."""
    return AttentionShape(batch=BATCH, heads=HEADS, seq_q=seq, head_dim=HEAD_DIM, dtype="bfloat16", causal=True)


def pair_configs(shape: AttentionShape, device: Device) -> dict[Pair, Config]:
    """Make a config of each pair that is no longer than the lengths: the default with these blocks."""
    default = get_implementation(OPERATION, IMPLEMENTATION).space.default(shape, device)
    found = {}
    for block_q, block_k in PAIRS:
        if block_q <= shape.seq_q and block_k <= shape.seq_kv:
            warps = max(1, min(default.integer("num_warps"), block_q // ROWS_PER_WARP))
            found[block_q, block_k] = Config({**default, "BLOCK_Q": block_q, "BLOCK_K": block_k, "num_warps": warps})
    return found


def nearest(shape: AttentionShape, recorded: Sequence[AttentionShape]) -> AttentionShape:
    """Find the recorded problem with this dtype and head dimension that is nearest in length, then in all sizes.

    One with another mask is taken only if there is none with this; MissingDependencyError where there is none.
    """
    alike = [other for other in recorded if (other.dtype, other.head_dim) == (shape.dtype, shape.head_dim)]
    if not alike:
        raise MissingDependencyError(f"no sweep with head_dim {shape.head_dim} in {shape.dtype} is recorded")

    def far(other: AttentionShape) -> tuple[bool, float, float]:
        lengths = abs(math.log2(other.seq_q / shape.seq_q))
        return other.causal != shape.causal, lengths, shape.distance(replace(other, causal=shape.causal))

    return min(alike, key=far)


def mismatches(shape: AttentionShape, recorded: AttentionShape) -> str:
    """Name what is not as asked, with the value that is asked for.

    Example:
        >>> mismatches(shape_of(256), replace(shape_of(512), batch=32))
        'batch (2 asked), seq (256 asked)'
    """
    pairs = {
        "batch": (shape.batch, recorded.batch),
        "heads": (shape.heads, recorded.heads),
        "seq": (shape.seq_q, recorded.seq_q),
        "mask": tuple("causal" if each.causal else "full" for each in (shape, recorded)),
    }
    return ", ".join(f"{name} ({asked} asked)" for name, (asked, found) in pairs.items() if asked != found)


def _measured(machine: Machine) -> Iterator[SuiteSheet]:
    operation = get_operation(OPERATION)
    rows: list[Row] = []
    best: list[Row] = []
    failures: list[str] = []
    executor = machine.open_executor()
    try:
        for seq in LENGTHS:
            shape = shape_of(seq)
            configs = pair_configs(shape, executor.device)
            machine.on_step(f"racing {len(configs)} pairs at S {seq}")
            executor.open(operation, shape)
            candidates = [Candidate(IMPLEMENTATION, config) for config in configs.values()]
            outcomes = executor.race(candidates, seconds=SECONDS, baselines="none").outcomes
            raced = dict(zip(configs, outcomes, strict=True))
            for pair, outcome in raced.items():
                rows.append((seq, _name(pair), outcome.timing, str(outcome.config), str(outcome.status)))
                if outcome.timing is None:
                    failures.append(f"S {seq}: {_name(pair)} is {outcome.status}: {outcome.message}")
            best.append(_best(seq, {pair: outcome.timing for pair, outcome in raced.items()}))
    finally:
        executor.close()
    title = f"block pairs: batch {BATCH}, {HEADS} heads of {HEAD_DIM}, bfloat16, causal"
    yield SuiteSheet(title, MEASURED_COLUMNS, tuple(rows), (OTHERS, RACED), tuple(failures))
    yield SuiteSheet("the best pair", BEST_COLUMNS, tuple(best))


def _recorded() -> Iterator[SuiteSheet]:
    sweeps = [sweep.trials() for sweep in shipped_sweeps(OPERATION, implementation=IMPLEMENTATION)]
    recorded = {shape: trials for trials in sweeps if isinstance(shape := trials[0].shape, AttentionShape)}
    rows: list[Row] = []
    best: list[Row] = []
    devices: set[str] = set()
    for seq in LENGTHS:
        source = nearest(shape_of(seq), list(recorded))
        differs = mismatches(shape_of(seq), source)
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
    yield SuiteSheet("block pairs, as recorded", RECORDED_COLUMNS, tuple(rows), (note, OTHERS))
    yield SuiteSheet("the best pair, as recorded", RECORDED_BEST_COLUMNS, tuple(best), (BEST_RECORDED,))


def _fastest(screened: Mapping[Config, Timing | None], pair: Pair) -> Timing | None:
    timings = [
        timing
        for config, timing in screened.items()
        if timing is not None and (config.integer("BLOCK_Q"), config.integer("BLOCK_K")) == pair
    ]
    return min(timings, key=lambda timing: timing.median_us, default=None)


def _best(seq: int, times: Mapping[Pair, Timing | None]) -> Row:
    """Find the pair with the least median, and those whose intervals overlap its own."""
    timed = {pair: timing for pair, timing in times.items() if timing is not None}
    if not timed:
        return seq, None, None, None
    pair = min(timed, key=lambda pair: timed[pair].median_us)
    level = [_name(other) for other, timing in timed.items() if other != pair and timing.overlaps(timed[pair])]
    return seq, _name(pair), timed[pair], ", ".join(level) or "none"


def _best_recorded(seq: int, source: AttentionShape, times: Mapping[Pair, Timing | None]) -> Row:
    """Find the best pair with its problem; nothing for another length or mask than was asked for."""
    if (source.seq_q, source.causal) != (seq, shape_of(seq).causal):
        return seq, NOT_RECORDED, None, None, None
    _, *best = _best(seq, times)
    return seq, str(source), *best


def _name(pair: Pair) -> str:
    return f"{pair[0]}x{pair[1]}"


SUITE: Final = Suite(
    "blocks",
    "six pairs of block sizes at three lengths, and the best of them (AMD's exercise in Triton)",
    measure_blocks,
    policy_on=lambda machine: None if machine.kind == "cpu" else Policy(),
)
