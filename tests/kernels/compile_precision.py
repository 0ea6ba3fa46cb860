"""Compiles the default of each operation in float32 for one architecture without a GPU; a process, see ``compiling``.

The first argument names the architecture; printed is a JSON object of the outcomes, and whether the code of each has
products of bfloat16.
"""

import json
import re
import sys
from typing import Any

from autotune.device import Device, architecture
from autotune.executor.compiler import compile_config, use_target
from autotune.executor.messages import outcome_to_json, take_standard_output
from autotune.registry import get_operation, load_kernel
from autotune.shape import AttentionShape, PagedShape, Shape

BFLOAT16_PRODUCTS = re.compile(r"(wgmma|mma)\S*\.bf16|mfma\S*bf16")


HEADS: dict[str, Any] = {"heads": 16, "kv_heads": 4, "head_dim": 128, "dtype": "float32"}
PROBLEMS: list[tuple[str, Shape]] = [
    ("flash_attention", AttentionShape(batch=1, seq_q=4096, causal=True, **HEADS)),
    ("paged_decode", PagedShape(batch=64, max_context=4096, **HEADS)),
    ("paged_prefill", PagedShape(batch=8, seq_q=512, max_context=4096, **HEADS)),
]


def compile_default(name: str, shape: Shape, device: Device) -> dict[str, Any]:
    """The outcome of an operation's default, and whether its code multiplies in bfloat16."""
    kernel, config = load_kernel(name), get_operation(name).space.default(shape, device)
    outcome = outcome_to_json(compile_config(kernel, config, shape, device))
    code = kernel.warmup(config, shape).asm
    return {**outcome, "in_bfloat16": BFLOAT16_PRODUCTS.search(code.get("ptx") or code["amdgcn"]) is not None}


def main() -> None:
    messages = take_standard_output()
    arch = sys.argv[1]
    device = Device(name=arch, arch=arch, sm_count=1, memory_mib=1)
    use_target(architecture(arch))
    outcomes = {name: compile_default(name, shape, device) for name, shape in PROBLEMS}
    messages.write(json.dumps(outcomes).encode())


if __name__ == "__main__":
    main()
