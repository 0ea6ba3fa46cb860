"""Run the shipped winners under compute-sanitizer on the GPU here: ``python -m benchmarks.memcheck [OPERATION...]``.

Each config is launched over the problems that it is checked on in a search: odd lengths, partial pages, no keys at all.
Every tensor is an allocation of its own, so that an access outside it is seen. The exit code is 1 where one was seen.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from autotune import platforms
from autotune.lab.machine.cuda_tools import find_tool, why_no_sanitizer
from autotune.registry import get_implementation, load_definition, load_kernel
from autotune.table import shipped_winners
from benchmarks.console import require_gpu

OPERATIONS: Final = ("paged_decode", "paged_prefill", "flash_attention")
WITHOUT_POOL: Final = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command: launch once as it is, which compiles everything, then under the sanitizer."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memcheck", description=__doc__)
    parser.add_argument("operations", nargs="*", metavar="OPERATION", help=f"[default: {' '.join(OPERATIONS)}]")
    parser.add_argument("--launch", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    names = given.operations or list(OPERATIONS)
    require_gpu("memcheck")
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
    """Launch every config of ours that ships for this device over its check problems; return how many launches."""
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
    for name, config, shape in checked:
        inputs = definition.make_inputs(shape, seed=0, device="cuda")
        load_kernel(operation, name).launch(config, inputs, definition.empty_outputs(inputs))
        torch.cuda.synchronize()
    return len(checked)


if __name__ == "__main__":
    sys.exit(main())
