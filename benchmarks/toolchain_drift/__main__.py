"""Compile shipped winners with several versions of Triton, side by side: ``python -m benchmarks.toolchain_drift``.

No GPU is needed. Every winner of our implementations is compiled for its shape and device by the Triton of each
series, in a process a series: the installed one, and others that pip fetches into a folder of their own
(``--tritons``), beside the installed torch. Recorded are registers, spills, shared memory and refusals, below
``results/ARCHITECTURE/OPERATION/compilations/``; serving reads them where another Triton is installed than the one
that timed a row, and does not serve what it refuses or spills in a steady loop (docs/toolchain-drift.md).

What is recorded already is not compiled again, and an interrupted run keeps what it has: ``--count`` and ``--minutes``
bound one. Printed are tables in Markdown, or with ``--json`` as data. A config takes one to 30 seconds, equal binaries
once::

    python -m benchmarks.toolchain_drift                                # all that is not recorded yet
    python -m benchmarks.toolchain_drift --triton 3.9 --operation paged_decode --minutes 5
    python -m benchmarks.toolchain_drift --count 0 --json               # only what is recorded
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from autotune.errors import AutotuneError
from autotune.registry import operation_names
from autotune.sheets import markdown, sheet_data
from autotune.trial import Trial
from benchmarks.merge import RESULTS
from benchmarks.toolchain_drift.book import SERIES, Book, winners_of
from benchmarks.toolchain_drift.comparing import side_by_side, summary, unlike_stored
from benchmarks.toolchain_drift.tritons import UnavailableError, fetch

TRITONS: Final = Path.home() / ".cache" / "autotune" / "tritons"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.toolchain_drift",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--triton", action="append", choices=SERIES, help="only this series; may be repeated")
    parser.add_argument("--operation", choices=operation_names(), help="only its winners")
    parser.add_argument("--implementation", metavar="NAME", help="only the winners of implementations of this name")
    parser.add_argument("--count", type=int, metavar="N", help="compile at most N winners with each series")
    parser.add_argument("--minutes", type=float, metavar="M", help="begin no series after so many minutes")
    parser.add_argument("--tritons", type=Path, default=TRITONS, metavar="FOLDER", help=f"[default: {TRITONS}]")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where winners are and compilations go")
    parser.add_argument("--prune", action="store_true", help="also forget what is of no winner any more")
    parser.add_argument("--json", action="store_true", help="print data")
    return parser.parse_args(arguments)


def record(book: Book, winners: Sequence[Trial], given: argparse.Namespace) -> None:
    """Compile what is not recorded yet, one series after the other."""
    began = time.monotonic()
    for series in given.triton or SERIES:
        left = [trial for trial in winners if book.find(trial, series) is None][: given.count]
        if not left or (given.minutes is not None and time.monotonic() - began > 60 * given.minutes):
            continue
        book.record(left, series, fetch(series, given.tritons))


def main(arguments: Sequence[str] | None = None) -> None:
    given = parse(arguments)
    winners = winners_of(given.operation, given.implementation, given.results)
    book = Book(given.results)
    if given.prune:
        book.prune(winners_of(None, None, given.results))
        book.write()
    try:
        record(book, winners, given)
    except (UnavailableError, AutotuneError, RuntimeError) as error:
        sys.exit(f"benchmarks.toolchain_drift: {error}")
    except KeyboardInterrupt:
        print("interrupted; what was compiled is recorded", file=sys.stderr)
    versions = given.triton or SERIES
    found = book.all_of(winners)
    tables = (summary(found, versions), unlike_stored(found), side_by_side(found, versions))
    if given.json:
        print(json.dumps([sheet_data(sheet) for sheet in tables], indent=1))
    else:
        print("\n".join(markdown(sheet, level=2) for sheet in tables))


if __name__ == "__main__":
    main()
