"""Compiles attention over split keys for sm_90 without a GPU, and prints what its binaries take; a process of its own.

``python -m tests.kernels.flash_attention.split_sample sm_90`` prints JSON: registers a thread and spilled bytes.
"""

import json
import sys
from typing import Final

from autotune.device import NVIDIA_H200, architecture
from autotune.executor.child import take_standard_output
from autotune.executor.compiler import compile_candidate, use_target
from autotune.kernels.flash_attention.triton_split_keys import KERNEL
from autotune.search_spaces.flash_attention.triton_split_keys import IMPLEMENTATION
from autotune.shape import AttentionShape
from autotune.space import Config
from autotune.trial import Candidate

LOADS: Final = ("pointer", "descriptor")
FLOAT32_WIDTHS: Final = (64, 96, 128)


def shape_of(head_dim: int, dtype: str) -> AttentionShape:
    return AttentionShape(batch=1, heads=32, kv_heads=8, seq_q=16, seq_kv=32768, head_dim=head_dim, dtype=dtype)


def compile_default(shape: AttentionShape, **changes: str) -> dict[str, int | None]:
    """Compile the default, with changes, and return what it takes."""
    config = Config({**IMPLEMENTATION.space.default(shape, NVIDIA_H200), **changes})
    outcome = compile_candidate(KERNEL, Candidate(IMPLEMENTATION.name, config), shape, NVIDIA_H200)
    assert outcome.resources is not None, outcome.message
    taken = {"registers": outcome.resources.registers, "spill_bytes": outcome.resources.spill_bytes}
    return {**taken, "rows": config.integer("BLOCK_Q"), "keys": config.integer("BLOCK_K")}


def main() -> None:
    messages = take_standard_output()
    use_target(architecture(sys.argv[1]))
    found = {loads: compile_default(shape_of(128, "bfloat16"), loads=loads) for loads in LOADS}
    found |= {f"float32 {width}": compile_default(shape_of(width, "float32")) for width in FLOAT32_WIDTHS}
    messages.write(json.dumps(found).encode())


if __name__ == "__main__":
    main()
