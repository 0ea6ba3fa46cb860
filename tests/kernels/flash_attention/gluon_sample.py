"""Compiles configs of the Gluon kernel for sm_90 without a GPU; a process of its own, since Triton has one target.

What the binaries take, and how their products and exponentials are mixed, is printed as JSON.
"""

import itertools
import json
import re
import sys
from collections.abc import Mapping
from typing import Any, Final

from autotune.device import NVIDIA_H200, architecture
from autotune.executor.child import take_standard_output
from autotune.executor.compiler import read_resources, use_target
from autotune.kernels.flash_attention.gluon_hopper import KERNEL
from autotune.platforms.nvidia_machine_code import disassembled, steady_spills
from autotune.search_spaces.flash_attention.gluon_hopper import IMPLEMENTATION
from autotune.search_spaces.flash_attention.gluon_hopper_bounds import shared_bytes
from autotune.shape import AttentionShape
from autotune.space import Config

MARKS: Final = {"HGMMA": "product", "MUFU.EX2": "exponential"}


def shape_of(head_dim: int, **features: Any) -> AttentionShape:
    return AttentionShape(**{"batch": 2, "heads": 16, "seq_q": 4096, "head_dim": head_dim} | features)


def samples() -> dict[str, tuple[AttentionShape, Config]]:
    """Name shapes and configs: the default of each, and some that differ from it."""
    shapes = {
        "default 64": shape_of(64),
        "default 128": shape_of(128),
        "default 128 causal": shape_of(128, causal=True),
        "default 128 window and softcap": shape_of(128, causal=True, window=512, softcap=True),
        "default 256": shape_of(256),
        "default 192 and 128": shape_of(192, head_dim_v=128),
        "default 192 and 128 causal": shape_of(192, head_dim_v=128, causal=True),
        "default 96": shape_of(96),
        "one consumer": shape_of(64, seq_q=64, seq_kv=4096, causal=True),
    }
    found = {name: (shape, IMPLEMENTATION.space.default(shape, NVIDIA_H200)) for name, shape in shapes.items()}
    causal = shape_of(64, causal=True)
    default = IMPLEMENTATION.space.default(causal, NVIDIA_H200)
    return found | {"three consumers": (causal, Config({**default, "consumers": 3, "slots": 3}))}


def compile_one(shape: AttentionShape, config: Config) -> dict[str, Any]:
    assert IMPLEMENTATION.space.why_invalid(config, shape, NVIDIA_H200) is None
    (compiled,) = KERNEL.warmup(config, shape)
    resources = read_resources((compiled,), architecture(sys.argv[1]))
    code = disassembled(compiled.asm["cubin"])
    return {
        "shared": resources.shared_bytes,
        "expected": shared_bytes(config, shape),
        "spills": resources.spill_bytes,
        "steady_spills": steady_spills(code),
        "overlapped": overlapped(code),
        "values": config["values"],
    }


def overlapped(code: str, marks_of: Mapping[str, str] = MARKS) -> int:
    """Count how often an exponential stands directly behind a product in the machine's code."""
    marks = [marks_of[each] for each in re.findall("|".join(map(re.escape, marks_of)), code)]
    return sum(pair == ("product", "exponential") for pair in itertools.pairwise(marks))


def main() -> None:
    messages = take_standard_output()
    use_target(architecture(sys.argv[1]))
    messages.write(json.dumps({name: compile_one(*sample) for name, sample in samples().items()}).encode())


if __name__ == "__main__":
    main()
