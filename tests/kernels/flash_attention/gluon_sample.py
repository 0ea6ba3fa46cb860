"""Compiles schedules of the Gluon kernel for one architecture without a GPU; a process, since Triton has one target.

The first argument names the architecture; what the binaries take, and the order of the steady loop, is printed as JSON.
"""

import itertools
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import torch
import triton

from autotune.device import architecture
from autotune.executor.child import take_standard_output
from autotune.executor.compiler import read_resources, use_target
from autotune.kernels.flash_attention.gluon_hopper.launch import launch
from tests.kernels.flash_attention.gluon_cases import SCHEDULES

MARKS: Final = {"HGMMA": "product", "MUFU.EX2": "exponential"}


def compile_one(name: str) -> dict[str, Any]:
    width, features, schedule = SCHEDULES[name]
    q, k, v, out = (torch.empty(2, 4096, 16, width, dtype=torch.bfloat16, device="meta") for _ in range(4))
    given: dict[str, Any] = {"causal": False, "window": None, "softcap": None} | features
    compiled = launch(
        q, k, v, out, None, **given, scale=width**-0.5, schedule=schedule, workers=132, compile_only=True
    )  # fmt: skip
    resources = read_resources((compiled,), architecture(sys.argv[1]))
    return {
        "shared": resources.shared_bytes,
        "spills": resources.spill_bytes,
        "overlapped": overlapped(compiled.asm["cubin"]),
    }


def overlapped(cubin: bytes) -> int:
    """Count how often an exponential stands directly behind a product in the machine's code."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        code = subprocess.run([tool, "-sass", file.name], capture_output=True, text=True, check=True).stdout
    marks = [MARKS[each] for each in re.findall("|".join(map(re.escape, MARKS)), code)]
    return sum(pair == ("product", "exponential") for pair in itertools.pairwise(marks))


def main() -> None:
    messages = take_standard_output()
    use_target(architecture(sys.argv[1]))
    messages.write(json.dumps({name: compile_one(name) for name in SCHEDULES}).encode())


if __name__ == "__main__":
    main()
