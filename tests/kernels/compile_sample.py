"""Compiles configs of flash attention for one architecture without a GPU; a process, since Triton has one target.

The first argument names the architecture; the outcomes are printed as one JSON list.
"""

import json
import random
import sys
from typing import Any

from autotune.device import Device, architecture
from autotune.executor.child import take_standard_output
from autotune.executor.compiler import compile_candidate, use_target
from autotune.executor.messages import to_plain
from autotune.kernels.flash_attention.triton import KERNEL
from autotune.search_spaces.flash_attention.triton import IMPLEMENTATION
from autotune.shape import AttentionShape
from autotune.space import Config
from autotune.trial import Candidate

SAMPLES = 2  # configs of the space beside the default


def device_of(arch: str) -> Device:
    """A device of which only the architecture matters."""
    return Device(name=arch, arch=arch, sm_count=1, memory_mib=1)


def shape_of(head_dim: int, dtype: str = "bfloat16") -> AttentionShape:
    return AttentionShape(batch=1, heads=16, seq_q=4096, head_dim=head_dim, dtype=dtype, causal=True)


def too_large(device: Device) -> Config:
    """A config that no device holds: four stages of 256 rows of K and V take 256 KB."""
    default = IMPLEMENTATION.space.default(shape_of(64), device)
    return Config({**default, "BLOCK_Q": 64, "BLOCK_K": 256, "num_warps": 8, "num_stages": 5})


def problems(device: Device) -> list[tuple[str, AttentionShape, Config]]:
    """Return what to compile: the default of four shapes, a random few of the space, one config that does not fit."""
    found = []
    for shape in (shape_of(64), shape_of(128), shape_of(256), shape_of(64, "float32")):
        found.append((f"default {shape.head_dim} {shape.dtype}", shape, IMPLEMENTATION.space.default(shape, device)))
    shape = shape_of(128)
    configs = list(IMPLEMENTATION.space.configs(shape, device))
    by_loads = [[config for config in configs if config["loads"] == loads] for loads in ("pointer", "descriptor")]
    rng = random.Random(device.arch)
    samples = [rng.choice(by_loads[index % 2]) for index in range(SAMPLES)]
    found += [(f"sample {config}", shape, config) for config in samples]
    return [*found, ("too large", shape_of(64), too_large(device))]


def main() -> None:
    messages = take_standard_output()
    device = device_of(sys.argv[1])
    use_target(architecture(device.arch))
    outcomes: dict[str, Any] = {
        name: to_plain(compile_candidate(KERNEL, Candidate("triton", config), shape, device))
        for name, shape, config in problems(device)
    }
    messages.write(json.dumps(outcomes).encode())


if __name__ == "__main__":
    main()
