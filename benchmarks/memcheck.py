"""Watches the shipped winners with compute-sanitizer on the GPU here: ``python -m benchmarks.memcheck [OPERATION...]``.

Each config is launched over the problems that it is checked on in a search: odd lengths, partial pages, no keys at all.
Every tensor is an allocation of its own, so that what is read or written outside one is seen. Exits with 1 where
anything was seen.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from autotune import hardware
from autotune.analysis.cuda_tools import find_tool, why_no_sanitizer
from autotune.executor.select import NO_GPU
from autotune.registry import get_operation, load_kernel
from autotune.table import shipped_winners

OPERATIONS: Final = ("paged_decode", "paged_prefill", "flash_attention")
WITHOUT_POOL: Final = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry of the command: launch once as it is, which compiles everything, then under the sanitizer."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memcheck", description=__doc__)
    parser.add_argument("operations", nargs="*", metavar="OPERATION", help=f"[default: {' '.join(OPERATIONS)}]")
    parser.add_argument("--launch", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    names = given.operations or list(OPERATIONS)
    if not hardware.has_gpu():
        sys.exit(f"benchmarks.memcheck: {NO_GPU}")
    if given.launch:
        print(f"{sum(launch_winners(name) for name in names)} launches")
        return 0
    if (reason := why_no_sanitizer()) is not None:
        sys.exit(f"benchmarks.memcheck: {reason}")
    program = [sys.executable, "-m", "benchmarks.memcheck", *names, "--launch"]
    subprocess.run(program, check=True)
    watch = [find_tool("compute-sanitizer"), "--tool", "memcheck", "--error-exitcode", "1"]
    return subprocess.run([*watch, *program], env={**os.environ, **WITHOUT_POOL}, check=False).returncode


def launch_winners(operation: str) -> int:
    """Launch every config that ships for this device over its check problems; how many launches that was."""
    import torch

    kernel, here, launches = load_kernel(operation), hardware.current_device(), 0
    source = get_operation(operation).source_hash
    seen = set()
    for trial in shipped_winners(operation):
        if trial.device.slug != here.slug or trial.source_hash != source:
            continue
        for shape in kernel.check_shapes(trial.shape):
            if (shape, trial.config) in seen:
                continue
            seen.add((shape, trial.config))
            inputs = kernel.make_inputs(shape, seed=0, device="cuda")
            kernel.launch(trial.config, inputs, kernel.empty_output(inputs))
            torch.cuda.synchronize()
            launches += 1
    return launches


if __name__ == "__main__":
    sys.exit(main())
