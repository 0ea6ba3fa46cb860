"""Compiles attention over split widths for sm_90 without a GPU, and prints what its binaries take and misread.

``python -m tests.kernels.flash_attention.split_width_sample sm_90`` prints JSON: registers a thread, spilled bytes,
shared memory, and the instructions that read what nothing has written.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from autotune.device import NVIDIA_H200, architecture
from autotune.executor.child import take_standard_output
from autotune.executor.compiler import read_resources, use_target
from autotune.kernels.flash_attention.triton_split_width import KERNEL
from autotune.search_spaces.flash_attention.triton_split_width import IMPLEMENTATION
from autotune.shape import AttentionShape
from autotune.space import Config
from tests.kernels.flash_attention.uniform_registers import unwritten_registers

WIDTHS: Final = (72, 80, 96, 160, 192)
FEATURES: Final[dict[str, Any]] = {"causal": True, "window": 512, "softcap": True}  # which take the most registers
NO_PIPELINE: Final = Config(BLOCK_Q=64, BLOCK_K=64, num_warps=4, num_stages=1, loads="pointer")


def shape_of(head_dim: int, dtype: str = "bfloat16", **features: Any) -> AttentionShape:
    return AttentionShape(batch=2, heads=16, seq_q=4096, head_dim=head_dim, dtype=dtype, **features)


def compile_config(shape: AttentionShape, config: Config, folder: Path) -> dict[str, Any]:
    """Compile a config with every output, and return what it takes."""
    binaries = KERNEL.warmup(config, shape, every_output=True)
    taken = read_resources(binaries, NVIDIA_H200.architecture)
    found = {"registers": taken.registers, "spill_bytes": taken.spill_bytes, "shared_bytes": taken.shared_bytes}
    return {**found, "unwritten": unwritten_registers(binaries[0].asm["cubin"], folder)}


def main() -> None:
    messages = take_standard_output()
    use_target(architecture(sys.argv[1]))
    shapes = {str(width): shape_of(width, **FEATURES) for width in WIDTHS} | {"float32": shape_of(72, "float32")}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = {
            title: compile_config(shape, IMPLEMENTATION.space.default(shape, NVIDIA_H200), folder)
            for title, shape in shapes.items()
        }
        found["no pipeline"] = compile_config(shape_of(72), NO_PIPELINE, folder)
    messages.write(json.dumps(found).encode())


if __name__ == "__main__":
    main()
