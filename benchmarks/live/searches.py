"""The parts that run our own searches: ``search``, ``overhead``, ``ladder``, ``repeat``."""

import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from autotune.errors import AutotuneError
from autotune.executor.gpu import GpuExecutor
from autotune.search import search
from autotune.shape import AttentionShape
from autotune.space import Config
from autotune.table import Store
from autotune.trial import median_us
from autotune.units import timing_text
from benchmarks.live import processes
from benchmarks.live.problem import ATTENTION, LIMITS, MAIN, from_plain, optimum, race, race_main, to_plain
from benchmarks.live.report import Findings, Goal
from benchmarks.shipped_problems import benchmark_shape

LENGTHS: Final = "128,...,16384"
SEEDS: Final = (1, 2)
REPEAT_RACE_SECONDS: Final = 3.0
SAME: Final = 0.02
NEEDED: Final = 9  # of the ten shapes
CELLS: Final = (  # head_dim, causal, seq
    *((64, False, 512), (64, True, 2048), (64, False, 8192), (64, True, 16384)),
    *((128, True, 1024), (128, False, 2048), (128, True, 4096), (128, False, 16384)),
    *((256, True, 512), (256, False, 4096)),
)


def run_search(work: Path) -> Findings:
    """Search the main shape cold, and race the winner against the sweep's optimum."""
    started = time.monotonic()
    finished = processes.run(
        "benchmarks.live.cold_search", repr(started), seconds=180, environment=processes.cold(work / "search")
    )
    found = finished.require().answer()
    winner, best = from_plain(found["winner"]), optimum().config
    timings = {} if winner == best else race_main([winner, best])
    ratio = timings[winner].median_us / timings[best].median_us if timings else 1.0
    wall = found["times"]["stored"]
    return Findings(
        {
            **found,
            "seconds": wall,
            "optimum": dict(best),
            "optimum_recorded_us": median_us(optimum()),
            "race": to_plain(timings),
            "ratio": ratio,
        },
        (
            Goal("search, wall time", wall, 60.0, " s"),
            Goal("search, winner / optimum of the sweep", ratio, 1.03),
        ),
        (
            f"{MAIN}: {found['measured']} configs, {found['ending']}, {found['contended']} rows contended",
            f"winner   {winner}, {found['timing']['median_us']:.1f} us in its own race",
            f"optimum  {best}",
            *(f"raced    {config}: {timing_text(timing)}" for config, timing in timings.items()),
        ),
    )


def describe_overhead(work: Path, found: dict[str, Any]) -> Findings:
    """Divide the time of a search, from the notes of its process."""
    times, costs = found["times"], found["costs"]
    screening = times["race"] - times["ready"]
    busy = sum(costs["compile_seconds"]) / (costs["jobs"] * screening)
    judged = costs["judge_seconds"]
    figures = {
        "start_up_seconds": times["ready"],
        "first_trial_seconds": times["first_trial"],
        "screening_seconds": screening,
        "race_seconds": times["stored"] - times["race"],
        "gpu_seconds_a_trial": sum(judged) / max(1, len(judged)),
        "gpu_busy_share": sum(judged) / screening,
        "compilers": costs["jobs"],
        "compilers_busy_share": busy,
    }
    return Findings(figures, lines=tuple(f"{name:22} {value:.3g}" for name, value in figures.items()))


def run_ladder(work: Path, *, shipped: bool = False) -> Findings:
    """Run the command over eight lengths, cold, with or without the shipped winners to begin from."""
    name = "ladder_shipped" if shipped else "ladder"
    module = "autotune" if shipped else "benchmarks.live.untuned"
    finished = processes.run(
        module, "search", "--seq", LENGTHS, "--json", seconds=500, environment=processes.cold(work / name)
    )
    results = json.loads(finished.require().output)
    rows = [
        {
            "seq": result["shape"]["seq_q"],
            "seconds": result["seconds"],
            "measured": result["measured"],
            "ending": result["ending"],
            "winner": result["winner"]["config"],
            "median_us": result["winner"]["timing"]["median_us"],
        }
        for result in results
    ]
    return Findings(
        {"seconds": finished.seconds, "rows": rows},
        (Goal(f"{name}, wall time of {len(rows)} lengths", finished.seconds, 150.0, " s"),),
        tuple("{seq:6} {seconds:5.1f} s {measured:4} configs, {ending}; {winner}".format(**row) for row in rows),
    )


def run_repeat(work: Path) -> Findings:
    """Search every shape twice with different seeds, and race the two winners."""
    rows = []
    with closing(GpuExecutor()) as executor:
        for cell in CELLS:
            started = time.monotonic()
            row: dict[str, Any] = {"cell": cell, "difference": None}
            try:
                row |= _search_twice(executor, benchmark_shape(*cell), work / "repeat" / "_".join(map(str, cell)))
            except (AutotuneError, RuntimeError) as error:
                row["error"] = str(error)
            rows.append({**row, "seconds": time.monotonic() - started})
            print(_repeat_line(rows[-1]), flush=True)
    alike = sum(row["difference"] is not None and row["difference"] <= SAME for row in rows)
    return Findings({"rows": rows}, (Goal(f"repeat, shapes within {SAME:.0%}", alike, NEEDED, at_least=True),))


def _search_twice(executor: GpuExecutor, shape: AttentionShape, folder: Path) -> dict[str, Any]:
    winners: list[Config] = []
    for seed in SEEDS:
        result = search(ATTENTION, shape, executor, Store(folder / str(seed)), limits=LIMITS, seed=seed)
        if result.winner is None:
            raise RuntimeError(f"seed {seed}: no winner, {result.ending}")
        winners.append(result.winner.config)
    found: dict[str, Any] = {"winners": [dict(config) for config in winners]}
    if winners[0] == winners[1]:
        return found | {"difference": 0.0}
    timings = race(executor, winners, seconds=REPEAT_RACE_SECONDS)  # the shape is still open
    difference = apart(*(timings[config].median_us for config in winners))
    return found | {"race": to_plain(timings), "difference": difference}


def apart(first: float, second: float) -> float:
    """Return by which part the slower one is slower.

    Example:
        >>> apart(102.0, 100.0)
        0.02
    """
    return max(first, second) / min(first, second) - 1.0


def _repeat_line(row: dict[str, Any]) -> str:
    if row["difference"] is None:
        return f"{row['cell']}: {row['error']}"
    first, second = (from_plain(winner) for winner in row["winners"])
    return f"{row['cell']}: {row['difference']:.2%} apart, {row['seconds']:.0f} s; {first} | {second}"
