"""Compiles attention over split values for sm_90 without a GPU, and prints what its binaries take and misread.

``python -m tests.kernels.flash_attention.split_values_sample sm_90`` prints JSON: registers a thread, spilled bytes,
shared memory, and the number of instructions that read what nothing has written; ``... sm_90 space`` of all configs of
the space for a prompt of heads of 512 that are pipelined, which takes some five minutes.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from triton.errors import TritonError

from autotune.device import NVIDIA_H200, architecture
from autotune.executor.child import take_standard_output
from autotune.executor.compiler import read_resources, use_target
from autotune.kernels.flash_attention.triton_split_values import KERNEL
from autotune.search_spaces.flash_attention.triton_split_values import IMPLEMENTATION
from autotune.shape import AttentionShape
from autotune.space import Config
from tests.kernels.flash_attention.uniform_registers import unwritten_registers

CAUSAL: Final[dict[str, Any]] = {"causal": True}
PROBLEMS: Final[dict[str, dict[str, Any]]] = {
    "causal": CAUSAL,
    "full": {},
    "window, softcap": {"causal": True, "window": 512, "softcap": True},
    "sinks": {"causal": True, "window": 128, "sinks": True},
    "ends": {"causal": True, "kv_ends": True},
    "boolean": {"causal": True, "attn_mask": "boolean"},
    "additive": {"attn_mask": "additive", "sinks": True},
    "320 and 384": {"causal": True, "head_dim": 320, "head_dim_v": 384},
}
# Of those that spill nothing, beside the default: all columns at once, half of them by two warp groups, and a quarter.
OTHERS: Final = {
    "128 x 32 x 256": Config(BLOCK_Q=128, BLOCK_K=32, BLOCK_V=256, num_warps=8, num_stages=2, loads="descriptor"),
    "64 x 32 x 512": Config(BLOCK_Q=64, BLOCK_K=32, BLOCK_V=512, num_warps=8, num_stages=2, loads="descriptor"),
    "64 x 64 x 128": Config(BLOCK_Q=64, BLOCK_K=64, BLOCK_V=128, num_warps=4, num_stages=2, loads="descriptor"),
    "128 x 32 x 256 by pointer": Config(
        BLOCK_Q=128, BLOCK_K=32, BLOCK_V=256, num_warps=8, num_stages=2, loads="pointer"
    ),
}


def shape_of(**fields: Any) -> AttentionShape:
    return AttentionShape(**{"batch": 2, "heads": 8, "kv_heads": 4, "seq_q": 4096, "head_dim": 512} | fields)


def compile_config(shape: AttentionShape, config: Config, folder: Path) -> dict[str, Any]:
    """Compile a config with every output, and return what it takes."""
    binaries = KERNEL.warmup(config, shape, every_output=True)
    taken = read_resources(binaries, NVIDIA_H200.architecture)
    found = {"registers": taken.registers, "spill_bytes": taken.spill_bytes, "shared_bytes": taken.shared_bytes}
    return {**found, "unwritten": len(unwritten_registers(binaries[0].asm["cubin"], folder))}


def problems(of_space: bool) -> Iterator[tuple[str, AttentionShape, Config]]:
    space, causal = IMPLEMENTATION.space, shape_of(**CAUSAL)
    if of_space:
        for config in space.configs(causal, NVIDIA_H200):
            if config["num_stages"] != 1 and config.integer("BLOCK_Q") >= 64:
                yield str(config), causal, config
        return
    for title, fields in PROBLEMS.items():
        shape = shape_of(**fields)
        yield title, shape, space.default(shape, NVIDIA_H200)
    for title, config in OTHERS.items():
        yield title, causal, config


def main() -> None:
    messages = take_standard_output()
    use_target(architecture(sys.argv[1]))
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        for title, shape, config in problems("space" in sys.argv[2:]):
            try:
                found[title] = compile_config(shape, config, Path(name))
            except TritonError as error:
                found[title] = {"refused": str(error).splitlines()[0]}
    messages.write(json.dumps(found).encode())


if __name__ == "__main__":
    main()
