"""Compiles the default of each operation in float32 for one architecture without a GPU; a process, see ``compiling``.

The first argument names the architecture; printed is a JSON object of the outcomes, and of the code of each, whether
it has products of bfloat16, and stores.
"""

import json
import re
import sys
from typing import Any

from autotune.device import Device, architecture
from autotune.executor.child import take_standard_output
from autotune.executor.compiler import compile_candidate, use_target
from autotune.executor.messages import to_plain
from autotune.registry import get_implementation, load_kernel
from autotune.shape import AttentionShape, PagedShape, Shape
from autotune.trial import Candidate

STORES = re.compile(r"st\.global|global_store|buffer_store")
BFLOAT16_PRODUCTS = re.compile(r"(wgmma|mma)\S*\.bf16|mfma\S*bf16")


HEADS: dict[str, Any] = {"heads": 16, "kv_heads": 4, "head_dim": 128, "dtype": "float32"}
WIDE: dict[str, Any] = {**HEADS, "head_dim": 256}
PROBLEMS: list[tuple[str, Shape]] = [
    ("flash_attention", AttentionShape(batch=1, seq_q=4096, causal=True, **HEADS)),
    ("flash_attention", AttentionShape(batch=1, seq_q=4096, causal=True, **WIDE)),
    ("paged_decode", PagedShape(batch=64, max_context=4096, **HEADS)),
    ("paged_prefill", PagedShape(batch=8, seq_q=512, max_context=4096, **HEADS)),
]


def compile_default(name: str, shape: Shape, device: Device) -> dict[str, Any]:
    """The outcome of an operation's default, and whether its code multiplies in bfloat16."""
    kernel, config = load_kernel(name, "triton"), get_implementation(name, "triton").space.default(shape, device)
    outcome = to_plain(compile_candidate(kernel, Candidate("triton", config), shape, device))
    code = kernel.warmup(config, shape)[0].asm
    text = code.get("ptx") or code["amdgcn"]
    return {**outcome, "in_bfloat16": bool(BFLOAT16_PRODUCTS.search(text)), "has_stores": bool(STORES.search(text))}


def main() -> None:
    messages = take_standard_output()
    arch = sys.argv[1]
    device = Device(name=arch, arch=arch, sm_count=1, memory_mib=1)
    use_target(architecture(arch))
    outcomes = {f"{name} {shape}": compile_default(name, shape, device) for name, shape in PROBLEMS}
    messages.write(json.dumps(outcomes).encode())


if __name__ == "__main__":
    main()
