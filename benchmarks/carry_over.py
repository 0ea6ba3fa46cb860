"""Carry the shipped tables over to a changed kernel source: ``python -m benchmarks.carry_over REVISION``; no GPU.

A row was measured of one source, and names it by its hash. Where today's source compiles to what that of REVISION
compiled to, the time is still true and the row gets today's hash: a winner by its machine code and launches, a row of a
sweep by its intermediate code (``benchmarks.compiled_rows`` says how each is compared). So is the speed over the
default, if that has not changed. All others stay as they are, of an older source, until they are recorded again; of
winners the table says by how much their binaries differ. What torch does beside the launches is not compared. Foreign
implementations, such as FlexAttention, have no source. ``--keep`` writes nothing and ends after the table.
"""

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from autotune.implementation import Implementation
from autotune.registry import implementations_of, operation_names
from autotune.table import shipped_sweeps, shipped_winners, write_shipped
from autotune.trial import Trial

ROOT: Final = Path(__file__).resolve().parent.parent


class Compiled(NamedTuple):
    """Findings of one tree: its source's hash, and of each shipped row its binaries, None if that failed."""

    source_hash: str
    rows: list[dict[str, Any] | None]

    @property
    def digests(self) -> list[str | None]:
        """The digest of each row."""
        return [None if row is None else row["digest"] for row in self.rows]


def shipped_rows(implementation: Implementation[Any], results: Path) -> Iterator[Trial]:
    """Yield every winner of an implementation and every row of its sweeps, in one order."""
    operation, name = implementation.operation, implementation.name
    yield from shipped_winners(operation, implementation=name, results=results)
    for sweep in shipped_sweeps(operation, implementation=name, results=results):
        yield from sweep.trials()


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
        "has_default": trial.default_timing is not None,
        "machine_code": machine_code,
    }


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


def compile_in(trees: Sequence[Path], requests: Sequence[Mapping[str, Any]]) -> list[Compiled]:
    """Compile the rows with the kernels of every tree, side by side."""
    script = str(ROOT / "benchmarks" / "compiled_rows.py")
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "requests.json").write_text(json.dumps(requests), encoding="utf-8")
        running = []
        for number, tree in enumerate(trees):
            process = subprocess.Popen(
                [sys.executable, script],
                # A cache of its own: what another tree compiled must not answer for this one.
                env={**inherited, "PYTHONPATH": str(tree), "TRITON_CACHE_DIR": str(folder / str(number))},
                stdin=stack.enter_context((folder / "requests.json").open(encoding="utf-8")),
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.kill)
            running.append(process)
        printed = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        sys.exit("benchmarks.carry_over: the rows could not be compiled")
    return [Compiled(**json.loads(text)) for text in printed]


def compare(row: Trial, before: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> str:
    """Say in a line how a winner's binaries compare."""
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


def carry_over(rows: Iterable[Trial], before: Compiled, now: Compiled) -> list[Trial]:
    """The rows, those of the earlier source as today's where both trees compile the same."""
    return [
        replace(row, source_hash=now.source_hash)
        if row.source_hash == before.source_hash and was is not None and was == digest
        else row
        for row, was, digest in zip(rows, before.digests, now.digests, strict=True)
    ]


def write_tables(implementation: Implementation[Any], rows: Sequence[Trial], results: Path) -> None:
    """Write winners and sweeps back to where ``shipped_rows`` read them, in its order."""
    operation, name = implementation.operation, implementation.name
    remaining = iter(rows)
    winners = list(islice(remaining, len(shipped_winners(operation, implementation=name, results=results))))
    for slug in sorted({winner.device.slug for winner in winners}):
        here = [winner for winner in winners if winner.device.slug == slug]
        write_shipped(Path(slug) / operation / f"{name}.parquet", here, results=results)
    for sweep in shipped_sweeps(operation, implementation=name, results=results):
        write_shipped(sweep.path, islice(remaining, len(sweep.trials())), results=results)


def carry(implementation: Implementation[Any], earlier: Path, results: Path, *, keep: bool) -> None:
    """Compare the shipped rows of an implementation with the earlier tree's, and unless ``keep`` write them back."""
    winners = shipped_winners(implementation.operation, implementation=implementation.name, results=results)
    rows = winners if keep else list(shipped_rows(implementation, results))
    requests = [as_request(row, machine_code=place < len(winners)) for place, row in enumerate(rows)]
    before, now = compile_in([earlier, ROOT], requests)
    for row, was, made in zip(winners, before.rows, now.rows, strict=False):
        print(f"  {compare(row, was, made)}", flush=True)
    carried = carry_over(rows, before, now)
    if not keep:
        write_tables(implementation, carried, results)
    stale = [row for row in carried if row.source_hash != now.source_hash]
    print(f"{implementation.title}: {len(rows)} rows, {len(rows) - len(stale)} of today's source", flush=True)
    for name in dict.fromkeys(f"{row.shape} on {row.device.name}" for row in stale):
        print(f"  record again: {name}", flush=True)


def main() -> None:
    """Entry of the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.carry_over", description=__doc__)
    parser.add_argument("revision", metavar="REVISION", help="the commit whose kernels the tables were recorded of")
    parser.add_argument("--results", type=Path, default=ROOT / "results", help="the tables [default: results/]")
    parser.add_argument("--keep", action="store_true", help="compare winners alone, and leave the tables as they are")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        extract(given.revision, Path(folder))
        for operation in operation_names():
            for implementation in implementations_of(operation):
                if implementation.is_ours and any(shipped_rows(implementation, given.results)):
                    carry(implementation, Path(folder), given.results, keep=given.keep)


if __name__ == "__main__":
    main()
