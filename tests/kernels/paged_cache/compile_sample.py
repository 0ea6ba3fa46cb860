"""Compiles appending for one architecture without a GPU; a process, since Triton has one target.

The first argument names the architecture; printed is how many fused multiply-adds each type of cache takes.
"""

import json
import re
import sys

import torch

from autotune.device import architecture
from autotune.executor.child import take_standard_output
from autotune.executor.compiler import use_target
from autotune.kernels.paged_cache.append import append


def count_fused(kv_dtype: str) -> int:
    tokens = torch.empty(64, 8, 128, dtype=torch.bfloat16, device="meta")
    cache = torch.empty(9, 16, 8, 128, dtype=getattr(torch, kv_dtype), device="meta")
    sizes = {"int8": (9, 16, 8), "bfloat16": None}.get(kv_dtype, (8,))
    scale = None if sizes is None else torch.empty(sizes, device="meta")
    slots = torch.empty(64, dtype=torch.int64, device="meta")
    compiled = append(
        tokens, tokens, cache, cache, slots, layout="NHD", k_scale=scale, v_scale=scale, compile_only=True
    )  # fmt: skip
    return len(re.findall(r"\bfma\.", compiled.asm.get("ptx", "")))


def main() -> None:
    messages = take_standard_output()
    use_target(architecture(sys.argv[1]))
    names = ("bfloat16", "int8", "float8_e4m3fn", "float8_e5m2")
    messages.write(json.dumps({name: count_fused(name) for name in names}).encode())


if __name__ == "__main__":
    main()
