"""Carries the shipped tables over to a changed kernel source: ``python -m benchmarks.carry_over REVISION``; no GPU.

A row was measured of one source, and says of which. Where today's source gives the compiler what that of REVISION gave
it (Triton's intermediate code before all passes, the options, and the grid and arguments of every launch), the binary
is the same and the time still true: the row gets today's hash. All others stay as they are, of an older source, until
they are recorded again. Operations of a library, such as FlexAttention, have no source here.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
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
    """What one tree makes of the shipped rows: its source's hash, and a digest a row."""

    source_hash: str
    digests: list[str]


@contextmanager
def tree_of(revision: str) -> Iterator[Path]:
    """A checkout of a revision, removed afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ("git", "-C", str(ROOT), "worktree")
        added = subprocess.run([*git, "add", "--detach", str(tree), revision], capture_output=True, text=True)
        if added.returncode:
            sys.exit(f"benchmarks.carry_over: {added.stderr.strip()}")
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def compile_in(trees: Sequence[Path], operation: str, results: Path) -> list[Compiled]:
    """Give the rows' configs to the kernels of every tree, side by side."""
    script = str(ROOT / "benchmarks" / "intermediate_code.py")
    running = [
        subprocess.Popen(
            [sys.executable, script, operation, str(results)],
            env={**os.environ, "PYTHONPATH": str(tree)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for tree in trees
    ]
    printed = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        sys.exit(f"benchmarks.carry_over: the rows of {operation} could not be compiled")
    return [Compiled(**json.loads(text)) for text in printed]


def carry_over(rows: Iterable[Trial], before: Compiled, now: Compiled) -> list[Trial]:
    """The rows, those of the earlier source as today's where both trees compile the same."""
    return [
        replace(row, source_hash=now.source_hash) if row.source_hash == before.source_hash and was == digest else row
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
    with tree_of(given.revision) as tree:
        for name in operation_names():
            if get_operation(name).library is None:
                before, now = compile_in([tree, ROOT], name, given.results)
                rows = carry_over(shipped_rows(name, given.results), before, now)
                write_tables(name, rows, given.results)
                stale = [row for row in rows if row.source_hash != now.source_hash]
                print(f"{name}: {len(rows)} rows, {len(rows) - len(stale)} of today's source", flush=True)
                for row in dict.fromkeys(f"{row.shape} on {row.device.name}" for row in stale):
                    print(f"  record again: {row}", flush=True)


if __name__ == "__main__":
    main()
