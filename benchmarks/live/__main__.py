"""Runs the parts that were named: ``python -m benchmarks.live search ladder --json live.json``."""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import benchmarks.live
from benchmarks.live import machine, peers, processes, searches
from benchmarks.live.report import Findings, Report

PARTS = (
    "search",
    "overhead",
    "triton_autotune",
    "helion",
    "shared_memory",
    "contention",
    "ladder",
    "repeat",
    "ladder_shipped",
)


class Run:
    """The parts by name, and what one needs of another."""

    def __init__(self, report: Report, work: Path) -> None:
        self._report, self._work = report, work

    def parts(self) -> dict[str, Callable[[], Findings]]:
        work = self._work
        return {
            "search": lambda: searches.run_search(work),
            "overhead": lambda: searches.describe_overhead(self._searched()),
            "triton_autotune": lambda: peers.run_triton(work, self._searched()),
            "helion": lambda: peers.run_helion(work, self._searched()),
            "shared_memory": lambda: machine.run_shared_memory(work),
            "contention": lambda: machine.run_contention(work),
            "ladder": lambda: searches.run_ladder(work, shipped=False),
            "repeat": lambda: searches.run_repeat(work),
            "ladder_shipped": lambda: searches.run_ladder(work, shipped=True),
        }

    def _searched(self) -> dict[str, Any]:
        """The figures of ``search``, which is run if no earlier run left them."""
        if self._report.figures("search") is None:
            self._report.run("search", lambda: searches.run_search(self._work))
        found = self._report.figures("search")
        if found is None:
            raise RuntimeError("the part `search` failed, and this one compares with it")
        return found


def main() -> int:
    """Entry of the command; 0 if every part ended and met its targets."""
    parser = argparse.ArgumentParser(description=benchmarks.live.__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=(*PARTS, "all"), metavar="PART", help=", ".join((*PARTS, "all")))
    parser.add_argument(
        "--json", type=Path, required=True, metavar="FILE", help="what was found; added to if it exists"
    )
    arguments = parser.parse_args()
    names = PARTS if "all" in arguments.parts else tuple(dict.fromkeys(arguments.parts))
    report = Report(arguments.json)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ.update(processes.cold(Path(folder) / "shared"))  # for what is not measured cold: races, repeat
        parts = Run(report, Path(folder)).parts()
        met = [report.run(name, parts[name]) for name in names]
    print(f"{sum(met)} of {len(met)} parts met their targets; {arguments.json}")
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
