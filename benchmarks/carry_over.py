"""Carry the shipped tables over to a changed kernel source: ``python -m benchmarks.carry_over REVISION``; no GPU.

A row names the source that it was measured of by its hash. Where today's source compiles to the same as that of
REVISION, the time is still true and the row gets today's hash: a winner by its machine code and launches, a row of a
sweep or a grid by its intermediate code (``benchmarks.compiled_rows`` has the rules). So is the speed over the default,
if that has not changed. All others stay as they are, of an older source, until they are recorded again; the output
tells by how much the binaries of winners differ. Work of torch beside the launches is not compared. Foreign
implementations, such as FlexAttention, have no source. ``--keep`` compares winners alone and writes nothing.
``--operation`` and ``--implementation`` name those whose tables are meant.
"""

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from autotune.implementation import Implementation
from autotune.registry import implementations_of, operation_names
from autotune.table import grid_path, shipped_grid, shipped_sweeps, shipped_winners, write_shipped
from autotune.trial import Trial

ROOT: Final = Path(__file__).resolve().parent.parent
SCRIPT: Final = ROOT / "benchmarks" / "compiled_rows.py"

Tables = dict[Path, list[Trial]]  # rows by their place below ``results``


class CompiledTree(NamedTuple):
    """Findings of one tree: its source's hash, and the binaries of each shipped row, None if it does not compile."""

    source_hash: str
    rows: list[dict[str, Any] | None]

    @property
    def digests(self) -> list[str | None]:
        return [None if row is None else row["digest"] for row in self.rows]


def shipped_tables(implementation: Implementation[Any], results: Path) -> Tables:
    """Return the winners of an implementation and the rows of its sweeps and grids, winners first."""
    operation, name = implementation.operation, implementation.name
    tables: Tables = {}
    for winner in shipped_winners(operation, implementation=name, results=results):
        tables.setdefault(Path(winner.device.slug) / operation / f"{name}.parquet", []).append(winner)
    sweeps = shipped_sweeps(operation, implementation=name, results=results)
    tables |= {sweep.path: sweep.trials() for sweep in sweeps}
    for trial in shipped_grid(operation, implementation=name, results=results):
        tables.setdefault(grid_path(trial), []).append(trial)
    return tables


def holds_winners(path: Path) -> bool:
    """True for the place of a table of winners, False for that of a sweep or a grid."""
    return len(path.parts) == len(("device", "operation", "implementation"))


def as_request(trial: Trial, *, machine_code: bool) -> dict[str, Any]:
    """Describe a row for ``compiled_rows``, without fields of the default, which older trees may lack."""
    shape = {
        field.name: getattr(trial.shape, field.name)
        for field in fields(trial.shape)
        if getattr(trial.shape, field.name) != field.default
    }
    return {
        "operation": trial.operation,
        "implementation": trial.implementation,
        "shape": shape,
        "config": dict(trial.config),
        "device": asdict(trial.device),
        "has_default": trial.default_timing is not None and trial.default_config is None,  # the space's
        "machine_code": machine_code,
    }


def extract(revision: str, folder: Path) -> None:
    """Write a revision's files into a folder; exit where git does not know the revision."""
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


def compile_in(trees: Sequence[Path], requests: Sequence[Mapping[str, Any]], *, title: str = "") -> list[CompiledTree]:
    """Compile the rows with every tree's kernels, side by side, or exit; a title: progress goes to standard error."""
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(trees)) as pool:

        def compile_rows(number: int) -> "subprocess.CompletedProcess[str]":
            # A cache of its own: the binaries of another tree must not answer for this one.
            environment = {"PYTHONPATH": str(trees[number]), "TRITON_CACHE_DIR": f"{folder}/{number}"}
            return subprocess.run(
                [sys.executable, SCRIPT, *([title] if title and number == 0 else [])],
                env=inherited | environment,
                input=json.dumps(requests),
                stdout=subprocess.PIPE,
                text=True,
                check=False,
            )

        ended = list(pool.map(compile_rows, range(len(trees))))
    if any(process.returncode for process in ended):
        sys.exit("benchmarks.carry_over: the rows could not be compiled")
    return [CompiledTree(**json.loads(process.stdout)) for process in ended]


def compare(row: Trial, before: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> str:
    """Describe in a line how a winner's binaries compare."""
    if before is None or now is None:
        return f"{row.shape}: {'REVISION' if before is None else 'this tree'} does not compile it"
    words = []
    for was, made in zip(before["binaries"], now["binaries"], strict=False):
        if was["exact"] == made["exact"]:
            words.append("identical")
        elif was["digest"] == made["digest"]:
            words.append("identical but for places of parameters or on the stack")
        else:
            numbers = ("instructions", "registers", "stack_bytes", "shared_bytes")
            words.append(", ".join(f"{name} {was[name]} -> {made[name]}" for name in numbers))
    if before["digest"] != now["digest"] and all("->" not in word for word in words):
        words.append("launches or default differ")
    return f"{row.shape}: {'; '.join(words)}"


def carry_over(rows: Iterable[Trial], before: CompiledTree, now: CompiledTree) -> list[Trial]:
    """Return the rows, those of the earlier source as today's where both trees compile the same."""
    return [
        replace(row, source_hash=now.source_hash)
        if row.source_hash == before.source_hash and was is not None and was == digest
        else row
        for row, was, digest in zip(rows, before.digests, now.digests, strict=True)
    ]


def write_tables(tables: Tables, rows: Iterable[Trial], results: Path) -> None:
    remaining = iter(rows)
    for path, table in tables.items():
        write_shipped(path, islice(remaining, len(table)), results=results)


def carry(implementation: Implementation[Any], earlier: Path, results: Path, *, keep: bool) -> None:
    """Compare the shipped rows of an implementation with the earlier tree's, and unless ``keep`` write them back.

    Tables all of whose rows are of today's source already are left out, unless ``keep``.
    """
    tables, title = shipped_tables(implementation, results), implementation.title
    if keep:
        tables = {path: rows for path, rows in tables.items() if holds_winners(path)}
    else:
        tables = {path: rows for path, rows in tables.items() if not all(map(implementation.is_source_of, rows))}
    rows = [row for table in tables.values() for row in table]
    if not rows:
        return
    requests = [as_request(row, machine_code=holds_winners(path)) for path, table in tables.items() for row in table]
    print(f"{title}: compiling {len(rows)} rows, with REVISION and with this tree", file=sys.stderr, flush=True)
    before, now = compile_in([earlier, ROOT], requests, title=title)
    for request, row, was, made in zip(requests, rows, before.rows, now.rows, strict=True):
        if request["machine_code"]:
            print(f"  {compare(row, was, made)}", flush=True)
    carried = carry_over(rows, before, now)
    if not keep:
        write_tables(tables, carried, results)
    stale = [row for row in carried if row.source_hash != now.source_hash]
    print(f"{title}: {len(rows)} rows, {len(rows) - len(stale)} of today's source", flush=True)
    for name in dict.fromkeys(f"{row.shape} on {row.device.name}" for row in stale):
        print(f"  record again: {name}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.carry_over", description=__doc__)
    parser.add_argument("revision", metavar="REVISION", help="the commit whose kernels the tables were recorded of")
    parser.add_argument("--results", type=Path, default=ROOT / "results", help="the tables [default: results/]")
    parser.add_argument("--keep", action="store_true", help="compare winners alone, and leave the tables as they are")
    parser.add_argument("--operation", choices=operation_names(), help="carry over its tables alone")
    parser.add_argument("--implementation", metavar="NAME", help="and those of this implementation")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        extract(given.revision, Path(folder))
        for operation in [given.operation] if given.operation else operation_names():
            for implementation in implementations_of(operation):
                if implementation.is_ours and given.implementation in (None, implementation.name):
                    carry(implementation, Path(folder), given.results, keep=given.keep)


if __name__ == "__main__":
    main()
