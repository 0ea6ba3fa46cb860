"""Carries the shipped tables over to a changed kernel source: ``python -m benchmarks.carry_over REVISION``; no GPU.

A row was measured of one source, and says of which. Where today's source gives the compiler what that of REVISION gave
it (Triton's intermediate code before all passes, the options, and the grid and arguments of every launch), the binaries
are the same and the time still true: the row gets today's hash. So is the speed over the default, if that has not
changed. All others stay as they are, of an older source, until they are recorded again. What torch does beside the
launches is not compared; whoever changed that knows. Operations of a library, such as FlexAttention, have no source.
"""

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from autotune.registry import get_operation, operation_names
from autotune.table import shipped_sweeps, shipped_winners, write_shipped
from autotune.trial import Trial
from benchmarks.intermediate_code import shipped_rows

ROOT: Final = Path(__file__).resolve().parent.parent


class Compiled(NamedTuple):
    """What one tree makes of the shipped rows: its source's hash, and a digest a row, None where that failed."""

    source_hash: str
    digests: list[str | None]


def extract(revision: str, folder: Path) -> None:
    """Write a revision's files into a folder.

    Raises:
        SystemExit: git does not know the revision.
    """
    archive = folder / "tree.tar"
    made = subprocess.run(
        ["git", "-C", str(ROOT), "archive", f"--output={archive}", revision],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        sys.exit(f"benchmarks.carry_over: {made.stderr.strip()}")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="tar")


def compile_in(trees: Sequence[Path], operation: str, results: Path) -> list[Compiled]:
    """Give the rows' configs to the kernels of every tree, side by side."""
    script = str(ROOT / "benchmarks" / "intermediate_code.py")
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    with ExitStack() as stack:
        running = []
        for tree in trees:
            process = subprocess.Popen(
                [sys.executable, script, operation, str(results)],
                env={**inherited, "PYTHONPATH": str(tree)},
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.kill)
            running.append(process)
        printed = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        sys.exit(f"benchmarks.carry_over: the rows of {operation} could not be compiled")
    return [Compiled(**json.loads(text)) for text in printed]


def carry_over(rows: Iterable[Trial], before: Compiled, now: Compiled) -> list[Trial]:
    """The rows, those of the earlier source as today's where both trees compile the same."""
    return [
        replace(row, source_hash=now.source_hash)
        if row.source_hash == before.source_hash and was is not None and was == digest
        else row
        for row, was, digest in zip(rows, before.digests, now.digests, strict=True)
    ]


def write_tables(operation: str, rows: Sequence[Trial], results: Path) -> None:
    """Write winners and sweeps back to where ``shipped_rows`` read them, in its order."""
    remaining = iter(rows)
    winners = list(islice(remaining, len(shipped_winners(operation, results=results))))
    for slug in sorted({winner.device.slug for winner in winners}):
        here = [winner for winner in winners if winner.device.slug == slug]
        write_shipped(Path(slug) / f"{operation}.parquet", here, results=results)
    for sweep in shipped_sweeps(operation, results=results):
        write_shipped(sweep.path, islice(remaining, len(sweep.trials())), results=results)


def main() -> None:
    """Entry of the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.carry_over", description=__doc__)
    parser.add_argument("revision", metavar="REVISION", help="the commit whose kernels the tables were recorded of")
    parser.add_argument("--results", type=Path, default=ROOT / "results", help="the tables [default: results/]")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        extract(given.revision, Path(folder))
        for name in operation_names():
            if get_operation(name).library is None:
                before, now = compile_in([Path(folder), ROOT], name, given.results)
                rows = carry_over(shipped_rows(name, given.results), before, now)
                write_tables(name, rows, given.results)
                stale = [row for row in rows if row.source_hash != now.source_hash]
                print(f"{name}: {len(rows)} rows, {len(rows) - len(stale)} of today's source", flush=True)
                for row in dict.fromkeys(f"{row.shape} on {row.device.name}" for row in stale):
                    print(f"  record again: {row}", flush=True)


if __name__ == "__main__":
    main()
