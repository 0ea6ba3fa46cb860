"""Parts that run other tuners over the same space and kernel: ``triton_autotune`` and ``helion``."""

import ast
import csv
import importlib.metadata
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from autotune.trial import Timing
from autotune.units import timing_text
from benchmarks.live import processes
from benchmarks.live.problem import (
    IMPLEMENTATION,
    MAIN,
    from_plain,
    optimum,
    race_main,
    to_plain,
    valid_configs,
    write_configs,
)
from benchmarks.live.report import Findings, Goal
from benchmarks.live.triton_tuner import choose

SPEED_UP: Final = 8.0
GRACE_SECONDS: Final = 60.0  # beyond Helion's budget: imports, and what it had begun
# Helion 1.5.1 holds a quarter of a budget back for a final selection; 1.4.0 does not, and has a third more than we.
SEARCH_SHARE: Final = 0.75


class Scaled(NamedTuple):
    """An estimate of the seconds of a whole by a part of it, and its standard error."""

    seconds: float
    error: float


def scale(each: Sequence[float], seconds: float, total: int) -> Scaled:
    """Scale the seconds of a random part to the whole by count; the error is by the spread of the single configs."""
    factor = total / len(each)
    spread = statistics.stdev(each) if len(each) > 1 else math.nan
    rest = math.sqrt(max(0.0, 1.0 - len(each) / total))  # the drawn ones are known
    return Scaled(seconds * factor, total * spread / math.sqrt(len(each)) * rest)


def run_triton(work: Path, ours: dict[str, Any]) -> Findings:
    """Time ``triton.autotune`` over a tenth of the valid configs, scaled to all of them."""
    valid = valid_configs()
    chosen = choose(valid)
    listing = write_configs(work / "tenth.json", chosen)
    environment = processes.cold(work / "triton_autotune")
    finished = processes.run("benchmarks.live.triton_tuner", str(listing), seconds=300, environment=environment)
    found = finished.require().answer()
    scaled = scale(found["each"], found["seconds"], len(valid))
    timed = [row for row in found["rows"] if row["median_us"] is not None]
    best = min(timed, key=lambda row: row["median_us"])
    ratio = scaled.seconds / ours["seconds"]
    return Findings(
        {
            **found,
            "chosen": len(chosen),
            "valid": len(valid),
            "scaled_seconds": scaled.seconds,
            "scaled_seconds_error": scaled.error,
            "our_seconds": ours["seconds"],
            "ratio": ratio,
            "best": best,
        },
        (Goal("triton.autotune, times our wall time", ratio, SPEED_UP, "x", at_least=True),),
        (
            f"{len(chosen)} of {len(valid)} configs in {found['seconds']:.1f} s, {len(chosen) - len(timed)} failed",
            f"all of them: {scaled.seconds:.0f} s, give or take {scaled.error:.0f} s; ours: {ours['seconds']:.1f} s",
            f"best of the tenth: {from_plain(best['config'])}, {best['median_us']:.1f} us by do_bench",
        ),
    )


def run_helion(work: Path, ours: dict[str, Any]) -> Findings:
    """Run Helion's external tuner for as long as our whole search took, and race the two results."""
    budget, log = math.ceil(ours["seconds"] / SEARCH_SHARE), work / "helion"
    finished = processes.run(
        "benchmarks.live.helion_tuner",
        str(budget),
        str(log),
        seconds=budget + GRACE_SECONDS,
        environment=processes.cold(work / "helion_caches"),
    )
    measured = read_log(log.with_suffix(".csv"))
    if finished.code == 0:
        found = finished.answer()
    elif measured:
        found = {"ended_with": finished.code, "last_words": finished.tail(), "best": best_of(measured)}
    else:
        found = finished.require().answer()  # raises
    if "unavailable" in found:
        return Findings(found, lines=(f"target helion: not measured, it cannot be imported: {found['unavailable']}",))
    version = importlib.metadata.version("helion")
    winner, theirs = from_plain(ours["winner"]), from_plain(found["best"])
    timings = race_main([winner, theirs])
    level = no_slower(timings[winner], timings[theirs])
    ratio = timings[winner].median_us / timings[theirs].median_us
    timed = sum(row["median_us"] is not None for row in measured)
    return Findings(
        {
            **found,
            "version": version,
            "budget_seconds": budget,
            "process_seconds": finished.seconds,
            "log": measured,
            "race": to_plain(timings),
            "ratio": ratio,
        },
        (Goal("helion, our winner at least as fast (1: yes)", float(level), 1.0, at_least=True),),
        (
            f"Helion {version}: {len(measured)} configs, {timed} with a time; process {finished.seconds:.0f} s, "
            f"budget {budget} s, ours {ours['seconds']:.0f} s"
            f"{'' if finished.code == 0 else '; it did not end by itself: best so far'}",
            f"ours    {winner}: {timing_text(timings[winner])}",
            f"theirs  {theirs}: {timing_text(timings[theirs])}; ours / theirs {ratio:.4f}",
        ),
    )


def no_slower(ours: Timing, theirs: Timing) -> bool:
    return ours.median_us <= theirs.median_us or ours.overlaps(theirs)


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the verdicts of Helion's log: each config's values, status, median and second."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [
            {
                "config": _values(row["config"]),
                "status": row["status"],
                "median_us": 1000.0 * float(row["perf_ms"]) if row["perf_ms"] else None,
                "at_seconds": float(row["timestamp_s"] or "nan"),
            }
            for row in csv.DictReader(file)
            if row["status"] != "started"
        ]


def best_of(measured: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the fastest config of a log, as ours; raise RuntimeError if none has a time."""
    timed = [row for row in measured if row["median_us"] is not None]
    if not timed:
        raise RuntimeError(f"Helion measured none of {len(measured)} configs before it ended")
    values = min(timed, key=lambda row: row["median_us"])["config"]
    return {**IMPLEMENTATION.space.default(MAIN, optimum().device), **values}


def _values(text: str) -> dict[str, Any]:
    """Return the keywords of ``helion.Config(BLOCK_Q=64, ...)``."""
    call = ast.parse(text.strip(), mode="eval").body
    assert isinstance(call, ast.Call)
    return {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
