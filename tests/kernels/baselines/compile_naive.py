"""Compiles the naive kernels for one architecture without a GPU; a process, since Triton has one target.

The first argument names the architecture; shared memory and registers of each binary are printed as one JSON object.
"""

import json
import sys
from typing import Any, Final

import torch

from autotune.device import architecture
from autotune.executor.child import take_standard_output
from autotune.executor.compiler import read_resources, use_target
from autotune.kernels.baselines.naive.launch import plan_launches

# dtype, seq_q, seq_kv, heads, KV heads, head_dim: the widest tiles, a model's, and what is a constant where it is 1.
PROBLEMS: Final = (
    ("float32", 1024, 1024, 8, 8, 256),
    ("bfloat16", 1024, 1024, 8, 2, 128),
    ("float16", 1, 17, 1, 1, 72),
)


def main() -> None:
    messages = take_standard_output()
    target = architecture(sys.argv[1])
    use_target(target)
    found: dict[str, Any] = {}
    for dtype, seq_q, seq_kv, heads, kv_heads, width in PROBLEMS:
        options: Any = {"dtype": getattr(torch, dtype), "device": "meta"}
        q = torch.empty(1, seq_q, heads, width, **options)
        k = torch.empty(1, seq_kv, kv_heads, width, **options)
        scores = torch.empty(1, heads, seq_q, seq_kv, **options)
        for launch in plan_launches(q, k, k, scores, q, causal=True, scale=0.1):
            compiled = launch.kernel.warmup(*launch.arguments, grid=launch.grid, **launch.constants)
            resources = read_resources([compiled], target)
            found[f"{launch.kernel.__name__} {dtype}"] = {
                "shared_bytes": resources.shared_bytes,
                "registers": resources.registers,
            }
    messages.write(json.dumps(found).encode())


if __name__ == "__main__":
    main()
