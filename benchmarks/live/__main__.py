"""Run the named parts: ``python -m benchmarks.live search ladder --json live.json``."""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import benchmarks.live
from benchmarks.live import machine, peers, processes, searches
from benchmarks.live.report import Findings, Report

PARTS: Final[dict[str, Callable[..., Findings]]] = {
    "search": searches.run_search,
    "overhead": searches.describe_overhead,
    "triton_autotune": peers.run_triton,
    "helion": peers.run_helion,
    "shared_memory": machine.run_shared_memory,
    "contention": machine.run_contention,
    "ladder": searches.run_ladder,
    "repeat": searches.run_repeat,
    "ladder_shipped": partial(searches.run_ladder, shipped=True),
}
AFTER_SEARCH: Final = ("overhead", "triton_autotune", "helion")  # they take the figures of ``search``


def run_part(name: str, work: Path, report: Report) -> bool:
    """Run a part; return True if it ended and met its targets."""
    if name not in AFTER_SEARCH:
        return report.run(name, partial(PARTS[name], work))
    if report.figures("search") is None:
        run_part("search", work, report)

    def compare() -> Findings:
        if (found := report.figures("search")) is None:
            raise RuntimeError("the part `search` failed, and this one compares with it")
        return PARTS[name](work, found)

    return report.run(name, compare)


def main() -> int:
    """Run the command; return 0 if every part ended and met its targets."""
    parser = argparse.ArgumentParser(description=benchmarks.live.__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=(*PARTS, "all"), metavar="PART", help=", ".join((*PARTS, "all")))
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="the findings; added to if it exists")
    arguments = parser.parse_args()
    names = PARTS if "all" in arguments.parts else dict.fromkeys(arguments.parts)
    report = Report(arguments.json)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ.update(processes.cold(Path(folder) / "shared"))  # for what is not measured cold: races, repeat
        met = [run_part(name, Path(folder), report) for name in names]
    print(f"{sum(met)} of {len(met)} parts met their targets; {arguments.json}")
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
