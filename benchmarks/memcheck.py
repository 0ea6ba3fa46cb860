"""Run the shipped winners under compute-sanitizer on the GPU here: ``python -m benchmarks.memcheck [OPERATION...]``.

Each config is launched over the problems that it is checked on in a search: odd lengths, partial pages, no keys at all.
Every tensor is an allocation of its own, so that an access outside it is seen. The exit code is 1 where one was seen.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Final

from autotune import platforms
from autotune.executor.compile_pool import limit_jobs
from autotune.lab.machine.cuda_tools import find_tool, why_no_sanitizer
from autotune.registry import get_implementation, load_definition, load_kernel, operation_names
from autotune.table import shipped_winners
from benchmarks.console import parse_count, require_gpu
from benchmarks.problem_parts import deal, parse_part

OPERATIONS: Final = ("paged_decode", "paged_prefill", "flash_attention")
MOST_JOBS: Final = 16  # each holds some hundreds of MB of the GPU
WITHOUT_POOL: Final = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command: launch once as it is, which compiles everything, then under the sanitizer."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memcheck", description=__doc__)
    parser.add_argument("operations", nargs="*", metavar="OPERATION", help=f"[default: {' '.join(OPERATIONS)}]")
    jobs = min(MOST_JOBS, limit_jobs(None).count)
    parser.add_argument("--jobs", type=parse_count, default=jobs, help="processes at once [default: %(default)s here]")
    parser.add_argument("--launch", type=parse_part, metavar="I/N", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    names = given.operations or list(OPERATIONS)
    if strange := [name for name in names if name not in operation_names()]:
        parser.error(f"{strange[0]!r} is unknown; allowed: {', '.join(operation_names())}")
    require_gpu("memcheck")
    if given.launch:
        print(f"{sum(launch_winners(name, given.launch) for name in names)} launches")
        return 0
    if (reason := why_no_sanitizer()) is not None:
        sys.exit(f"benchmarks.memcheck: {reason}")
    watch = [find_tool("compute-sanitizer"), "--tool", "memcheck", "--error-exitcode", "1"]
    return run_parts([], names, given.jobs, {}) or run_parts(watch, names, given.jobs, WITHOUT_POOL)


def run_parts(watch: Sequence[str], names: Sequence[str], jobs: int, environment: Mapping[str, str]) -> int:
    """Launch the winners by so many processes at once, each under what watches it; return 1 if one fails."""
    program = [*watch, sys.executable, "-m", "benchmarks.memcheck", *names, "--launch"]
    with ExitStack() as running:
        parts = [
            running.enter_context(subprocess.Popen([*program, f"{number}/{jobs}"], env={**os.environ, **environment}))
            for number in range(1, jobs + 1)
        ]
    return int(any(part.returncode != 0 for part in parts))


def launch_winners(operation: str, part: tuple[int, int]) -> int:
    """Launch a part of the configs of ours that ship for this device over their check problems; return how many."""
    import torch

    definition, here = load_definition(operation), platforms.current_device()
    checked = dict.fromkeys(
        (implementation.name, trial.config, shape)
        for trial in shipped_winners(operation)
        if trial.device.slug == here.slug
        for implementation in [get_implementation(operation, trial.implementation)]
        if implementation.is_ours and trial.source_hash == implementation.source_hash
        for shape in (implementation.check_shapes or definition.check_shapes)(trial.shape)
    )
    mine = deal(list(checked), part)
    for name, config, shape in mine:
        inputs = definition.make_inputs(shape, seed=0, device="cuda")
        load_kernel(operation, name).launch(config, inputs, definition.empty_outputs(inputs))
        torch.cuda.synchronize()
    return len(mine)


if __name__ == "__main__":
    sys.exit(main())
