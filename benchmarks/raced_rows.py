"""Carry the shipped tables over to a source that is as fast: ``python -m benchmarks.raced_rows RACES...``; no GPU.

``benchmarks.carry_over`` gives a row today's hash where the binary is the same. A change that alters binaries, such as
a bound on what is read, may still leave all times as they were: ``benchmarks.revision_race --races RACES`` says so by
racing winners that ship, both sources by the same config. Rows of one implementation on one device, winners, sweeps and
grids, get today's hash where its races are at least ``LEAST`` or all of its winners, their geometric mean is within
``MEAN`` of 1, and the farther end of its 95 % interval within ``MEAN_END``. Those of a shape and config whose own race
ended beyond ``FAR`` do not, and are to be recorded again. Exits with 1 where there are some.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, geometric_mean, stdev
from typing import Any, Final

from autotune.device import Device
from autotune.implementation import Implementation
from autotune.registry import get_implementation
from autotune.trial import Trial
from benchmarks.carry_over import ROOT, holds_winners, shipped_tables, write_tables

LEAST: Final = 16
MEAN: Final = 0.01
MEAN_END: Final = 0.02
# Student's t of two sides with 95 % between, by degrees of freedom; of more than these as of the next fewer.
STUDENT: Final = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 7: 2.365, 10: 2.228, 15: 2.131, 30: 2.042}
FAR: Final = 0.05  # races of some microseconds scatter by nearly as much


def device_text(device: Device) -> str:
    """Return what tells devices apart whose times differ."""
    return f"{device.name}, {device.sm_count} SMs, {device.memory_mib} MiB, {device.power_cap_watts} W"


@dataclass(frozen=True, slots=True)
class RacedSource:
    """Two sources of an implementation on one device, and ratios of today's time to the earlier one, by candidate."""

    operation: str
    implementation: str
    device: str  # name, SMs, memory and power cap, as ``device_text`` writes them
    before: str
    now: str
    ratios: Mapping[tuple[str, str], float]  # by shape and config, as they print

    @property
    def mean(self) -> float:
        """The geometric mean."""
        return math.exp(fmean(map(math.log, self.ratios.values())))

    @property
    def mean_end(self) -> float:
        """The end of the mean's 95 % interval that is farther from 1; one race has none but its own ratio."""
        logs = list(map(math.log, self.ratios.values()))
        free = max((each for each in STUDENT if each < len(logs)), default=0)
        half = STUDENT[free] * stdev(logs) / math.sqrt(len(logs)) if free else 0.0
        return math.exp(fmean(logs) + math.copysign(half, fmean(logs)))

    def why_not(self, winners: int, source_hash: str) -> str:
        """Return why rows cannot be carried over, of an implementation with so many winners and this hash; "" else."""
        if self.now != source_hash:
            return f"its races were of the source {self.now[:12]}, and today's is {source_hash[:12]}"
        if len(self.ratios) < min(LEAST, winners):
            return f"{len(self.ratios)} races of {winners} winners; wanted are {min(LEAST, winners)}"
        if abs(math.log(self.mean)) > math.log1p(MEAN):
            return f"today's source takes {self.mean:.4f} of the time, beyond {MEAN:.0%}"
        if abs(math.log(self.mean_end)) > math.log1p(MEAN_END):
            repair = "race more" if len(self.ratios) < winners else "all were raced"
            return f"today's source takes {self.mean:.4f} of the time, and may take {self.mean_end:.4f}: {repair}"
        return ""

    def is_carried(self, row: Trial) -> bool:
        """Return True for a row of the earlier source on the raced device, but for those whose own race was far off."""
        if (row.source_hash, device_text(row.device)) != (self.before, self.device):
            return False
        ratio = self.ratios.get((str(row.shape), str(row.config)), 1.0)
        return abs(math.log(ratio)) <= math.log1p(FAR)


def read_races(races: Iterable[Mapping[str, Any]]) -> list[RacedSource]:
    """Group races, as ``benchmarks.revision_race`` keeps them, by implementation, device and sources; of one candidate
    that was raced several times, the geometric mean counts."""
    found: dict[tuple[str, str, str, str, str], dict[tuple[str, str], list[float]]] = {}
    for race in races:
        key = (race["operation"], race["implementation"], race["device"], race["before"], race["now"])
        found.setdefault(key, {}).setdefault((race["shape"], race["config"]), []).append(race["ratio"])
    means = ((key, {each: geometric_mean(every) for each, every in ratios.items()}) for key, ratios in found.items())
    return [RacedSource(*key, ratios=ratios) for key, ratios in means]


def carried(rows: Iterable[Trial], raced: RacedSource) -> list[Trial]:
    """Return the rows, those that are carried over as today's."""
    return [replace(row, source_hash=raced.now) if raced.is_carried(row) else row for row in rows]


def carry(implementation: Implementation[Any], raced: RacedSource, results: Path) -> bool:
    """Write back what the races carry over; print what they do not, and return True if that is nothing."""
    tables = shipped_tables(implementation, results)
    of_device = [
        row
        for path, rows in tables.items()
        if holds_winners(path)
        for row in rows
        if device_text(row.device) == raced.device
    ]
    title = f"{implementation.title} on {raced.device}"
    if why := raced.why_not(len(of_device), implementation.source_hash):
        print(f"{title}: record again: {why}", flush=True)
        return False
    rows = [row for table in tables.values() for row in table]
    found = carried(rows, raced)
    write_tables(tables, found, results)
    changed = sum(row.source_hash != was.source_hash for row, was in zip(found, rows, strict=True))
    races = f"{raced.mean:.4f} of the time in {len(raced.ratios)} races ({raced.mean_end:.4f} at the interval's end)"
    print(f"{title}: {changed} rows are of today's source, which takes {races}", flush=True)
    stale = [row for row in found if (row.source_hash, device_text(row.device)) == (raced.before, raced.device)]
    for shape in dict.fromkeys(str(row.shape) for row in stale):
        print(f"  record again: {shape}", flush=True)
    return not stale


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.raced_rows", description=__doc__)
    parser.add_argument("races", metavar="RACES", nargs="+", type=Path, help="what benchmarks.revision_race kept")
    parser.add_argument("--results", type=Path, default=ROOT / "results", help="the tables [default: results/]")
    given = parser.parse_args(arguments)
    races = [race for path in given.races for race in json.loads(path.read_text(encoding="utf-8"))]
    done = [
        carry(get_implementation(raced.operation, raced.implementation), raced, given.results)
        for raced in read_races(races)
    ]
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
