"""Compiles configs of decode over latents in Gluon for sm_90 without a GPU; a process of its own, as ``latent_sample``.

What the binaries take is printed as JSON. With ``all`` behind the architecture, every config of each shape's space.
"""

import json
import sys
from typing import Any

from autotune.device import NVIDIA_H200, architecture
from autotune.executor.child import take_standard_output
from autotune.executor.compiler import read_resources, use_target
from autotune.kernels.paged_decode.gluon_hopper_latent import KERNEL
from autotune.platforms.nvidia_machine_code import disassembled
from autotune.search_spaces.paged_decode.gluon_hopper_latent import IMPLEMENTATION, shared_bytes
from autotune.shape import PagedShape
from autotune.space import Config

SIZES: dict[str, Any] = {"batch": 64, "heads": 128, "max_context": 8192, "head_dim": 576, "page_size": 64}
SHAPES = {
    "576": PagedShape(**SIZES),
    "576, indices": PagedShape(**{**SIZES, "page_size": 1}),
    "576, few heads and indices": PagedShape(**{**SIZES, "page_size": 1, "heads": 16}, sinks=True),
    "320, indices": PagedShape(**{**SIZES, "page_size": 1, "head_dim": 320}, dtype="float16"),
    "288, indices": PagedShape(**{**SIZES, "page_size": 1, "head_dim": 288, "heads": 40}, seq_q=2),
    "576, pages of 16": PagedShape(**{**SIZES, "page_size": 16}, dtype="float16"),
    "576, few heads and queries": PagedShape(**{**SIZES, "heads": 16, "batch": 8}, seq_q=2, sinks=True),
    "320": PagedShape(**{**SIZES, "head_dim": 320}),
    "288, pages of 32": PagedShape(**{**SIZES, "head_dim": 288, "page_size": 32, "heads": 40}),
}


def samples(is_thorough: bool) -> dict[str, tuple[PagedShape, Config]]:
    """Name shapes and configs: the default of each, or all of its space."""
    space = IMPLEMENTATION.space
    if is_thorough:
        return {
            f"{name}: {config}": (shape, config)
            for name, shape in SHAPES.items()
            for config in space.configs(shape, NVIDIA_H200)
        }
    return {name: (shape, space.default(shape, NVIDIA_H200)) for name, shape in SHAPES.items()}


def compile_one(shape: PagedShape, config: Config) -> dict[str, Any]:
    assert IMPLEMENTATION.space.why_invalid(config, shape, NVIDIA_H200) is None
    binaries = KERNEL.warmup(config, shape, every_output=True)
    found = [read_resources((each,), architecture(sys.argv[1])) for each in binaries]
    code = disassembled(binaries[0].asm["cubin"])
    return {
        "shared": found[0].shared_bytes,
        "expected": shared_bytes(config, shape),
        "registers": [each.registers for each in found],
        "spills": sum(each.spill_bytes for each in found),
        "gathered": code.count("LDGSTS.E.BYPASS.128 "),
        "overlapped": "WARPGROUP.DEPBAR.LE gsb0, 0x1" in code,
    }


def main() -> None:
    messages = take_standard_output()
    use_target(architecture(sys.argv[1]))
    found = {name: compile_one(*sample) for name, sample in samples("all" in sys.argv[2:]).items()}
    messages.write(json.dumps(found).encode())


if __name__ == "__main__":
    main()
