"""Races the kernels of this tree against those of another revision: ``python -m benchmarks.revision_race``.

Both trees are loaded into one process, the other one as the package ``autotune_before``. Of each chosen winner that
ships both kernels are raced by its config, interleaved over the same inputs, cold, in CUDA graphs. Prints the time
ratio of each shape; needs a GPU that the shipped tables know. ``BEFORE`` is a revision, or the folder of a tree where
there is no git. ``--races`` keeps them for ``benchmarks.raced_rows``, which carries tables over by them.
"""

import argparse
import importlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from autotune import platforms
from autotune.registry import get_operation, implementations_of, load_definition, load_kernel, operation_names
from autotune.table import shipped_winners
from autotune.table.files import write_bytes
from autotune.timing import Stopwatch, race
from autotune.trial import Policy, Timing, Trial
from benchmarks.carry_over import ROOT, extract
from benchmarks.raced_rows import device_text
from benchmarks.user_tables import tables_in

BEFORE: Final = "autotune_before"
PACKAGES: Final = ("kernels", "search_spaces", "results")
SECONDS: Final = 6.0
COLD_FACTOR: Final = 2  # input sets together exceed the L2 this many times
MAX_SETS: Final = 32


@dataclass(frozen=True, slots=True)
class Raced:
    """A winner and the times of its config by both trees; ``ratio`` is this tree's time over the other's."""

    winner: Trial
    now: Timing
    before: Timing

    @property
    def ratio(self) -> float:
        return self.now.median_us / self.before.median_us


def install_before(tree: Path, folder: Path) -> None:
    """Copy a tree's packages into a folder under another name, and make it importable."""
    package = folder / BEFORE
    shutil.copytree(tree / "autotune", package, ignore=shutil.ignore_patterns("__pycache__", *PACKAGES))
    for name in PACKAGES:
        shutil.copytree(tree / name, package / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in package.rglob("*.py"):
        text = re.sub(r"\b(from|import) autotune\b", rf"\1 {BEFORE}", path.read_text(encoding="utf-8"))
        path.write_text(re.sub(r'"autotune\.(kernels|search_spaces)', rf'"{BEFORE}.\1', text))
    sys.path.insert(0, str(folder))


def choose_winners(count: int, operations: Sequence[str]) -> list[Trial]:
    """Choose shipped winners of ours on this model of device, spread evenly over the operations."""
    model = platforms.current_device().model
    winners = [
        winner
        for name in operations
        for implementation in implementations_of(name)
        if implementation.is_ours
        for winner in shipped_winners(name, implementation=implementation.name)
        if winner.device.model == model
    ]
    if not winners:
        sys.exit(f"benchmarks.revision_race: no winners ship of {platforms.current_device().name}")
    count = min(count, len(winners))
    return [winners[index * (len(winners) - 1) // max(1, count - 1)] for index in range(count)]


def race_winner(winner: Trial, seconds: float) -> Raced:
    """Race both trees' kernels of a winner's implementation, by its config."""
    import torch

    operation, shape, config = winner.operation, winner.shape, winner.config
    definition = load_definition(operation)
    count = math.ceil(
        COLD_FACTOR * torch.cuda.get_device_properties(0).L2_cache_size / get_operation(operation).cost(shape).bytes
    )
    inputs = [definition.make_inputs(shape, seed=seed, device="cuda") for seed in range(min(MAX_SETS, count))]
    sets = [(each, definition.empty_outputs(each)[:1]) for each in inputs]
    load_before = importlib.import_module(f"{BEFORE}.registry").load_kernel
    kernels = [load(operation, winner.implementation) for load in (load_kernel, load_before)]
    with ExitStack() as stack, torch.no_grad():
        stopwatches: Sequence[Stopwatch] = [
            stack.enter_context(Stopwatch([partial(kernel.launch, config, each, out) for each, out in sets], Policy()))
            for kernel in kernels
        ]
        now, before = race(stopwatches, contenders=0, seconds=seconds, max_rounds=400)
    return Raced(winner, now, before)


def source_hashes(tree: Path) -> dict[str, str]:
    """Return the hashes of a tree's kernels, by operation and implementation."""
    program = (
        "import json; from autotune.registry import implementations_of as each, operation_names as names; "
        "print(json.dumps({f'{i.operation} {i.name}': i.source_hash for n in names() for i in each(n) if i.is_ours}))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tree), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tree, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return dict(json.loads(done.stdout))


def kept(raced: Raced, before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, Any]:
    """Return a race with what ``benchmarks.raced_rows`` asks for: the device, and the hashes of both sources."""
    winner = raced.winner
    key = f"{winner.operation} {winner.implementation}"
    return {
        "operation": winner.operation,
        "implementation": winner.implementation,
        "device": device_text(platforms.current_device()),
        "before": before[key],
        "now": now[key],
        "shape": str(winner.shape),
        "config": str(winner.config),
        "us": raced.now.median_us,
        "us_before": raced.before.median_us,
        "ratio": raced.ratio,
    }


def named(winner: Trial) -> str:
    return f"{winner.operation}: {winner.shape} by {winner.implementation}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.revision_race", description=__doc__)
    parser.add_argument("before", metavar="BEFORE", help="a revision, or the folder of its tree")
    names = operation_names()
    parser.add_argument("--operation", action="append", choices=names, help="may be repeated [default: all]")
    parser.add_argument("--shapes", type=int, default=8, help="how many shipped shapes [default: 8]")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"of each race [default: {SECONDS:g}]")
    parser.add_argument("--races", type=Path, metavar="FILE", help="keep the races here, as JSON")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, tables_in():
        tree = Path(given.before)
        if not tree.is_dir():
            tree = Path(folder) / "tree"
            tree.mkdir()
            extract(given.before, tree)
        install_before(tree.resolve(), Path(folder))
        if given.races is not None:
            if given.races.exists():
                parser.error(f"--races {given.races} is there already; name another file, raced_rows takes several")
            write_bytes(given.races, b"[]")  # a place that cannot be written is known before an hour of races
        hashes = (source_hashes(tree.resolve()), source_hashes(ROOT)) if given.races else None
        raced, races = [], []
        for winner in choose_winners(given.shapes, given.operation or names):
            found = race_winner(winner, given.seconds)
            raced.append(found)
            times = f"{found.now.median_us:.1f} us, before {found.before.median_us:.1f} us"
            print(f"{found.ratio:.4f}  {named(winner)}: {times}", flush=True)
            if hashes is not None:  # after each race: what ends in between loses none
                races.append(kept(found, *hashes))
                write_bytes(given.races, json.dumps(races, indent=1).encode())
        mean = math.exp(sum(math.log(each.ratio) for each in raced) / len(raced))
        worst = max(raced, key=lambda each: abs(math.log(each.ratio)))
        print(json.dumps({"geometric_mean": mean, "worst": worst.ratio, "shape": named(worst.winner)}))


if __name__ == "__main__":
    main()
