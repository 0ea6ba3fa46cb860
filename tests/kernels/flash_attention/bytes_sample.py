"""Compiles configs of the Gluon kernel of e4m3 for sm_90 without a GPU; a process of its own, as ``gluon_sample``.

What the binaries take, and what the loop over keys that every row sees is made of, is printed as JSON.
"""

import json
import re
import sys
from typing import Any

from autotune.device import NVIDIA_H200, architecture
from autotune.executor.child import take_standard_output
from autotune.executor.compiler import read_resources, use_target
from autotune.kernels.flash_attention.gluon_hopper_fp8 import KERNEL
from autotune.platforms.nvidia_machine_code import disassembled, steady_loops
from autotune.search_spaces.flash_attention.gluon_hopper_fp8 import IMPLEMENTATION, shared_bytes
from autotune.shape import AttentionShape
from autotune.space import Config
from tests.kernels.flash_attention.gluon_sample import MARKS, overlapped

PRODUCTS = {"QGMMA": "product", "MUFU.EX2": MARKS["MUFU.EX2"]}
# Instructions that a steady loop counts; the last four exchange values between threads.
COUNTED = ("QGMMA", "HGMMA", "MUFU.EX2", "F2FP", "LDL", "STL", "PRMT", "STS", "LDS", "SHFL")


def shape_of(head_dim: int, **features: Any) -> AttentionShape:
    sizes: dict[str, Any] = {"batch": 2, "heads": 16, "seq_q": 4096, "head_dim": head_dim, "dtype": "float8_e4m3fn"}
    return AttentionShape(**sizes | features)


def samples() -> dict[str, tuple[AttentionShape, Config]]:
    """Name shapes and configs: the default of each, and some that differ from it."""
    shapes = {
        "default 64": shape_of(64),
        "default 128": shape_of(128),
        "default 128 causal": shape_of(128, causal=True),
        "default 128 softcap": shape_of(128, causal=True, window=512, softcap=True),
        "default 256": shape_of(256),
        "default 192 and 128": shape_of(192, head_dim_v=128),
        "default 32, one consumer": shape_of(32, seq_q=64, seq_kv=4096, causal=True),
    }
    found = {name: (shape, IMPLEMENTATION.space.default(shape, NVIDIA_H200)) for name, shape in shapes.items()}
    narrow = shape_of(128, causal=True, window=256)
    default = IMPLEMENTATION.space.default(narrow, NVIDIA_H200)
    running = Config({**default, "sums": "running", "values": "late", "ping_pong": "off"})
    return found | {"running sums 128": (narrow, running)}


def compile_one(shape: AttentionShape, config: Config) -> dict[str, Any]:
    assert IMPLEMENTATION.space.why_invalid(config, shape, NVIDIA_H200) is None
    transposing, forward = KERNEL.warmup(config, shape)
    own, other = (read_resources((each,), architecture(sys.argv[1])) for each in (forward, transposing))
    code = disassembled(forward.asm["cubin"])
    steady = steady_loops(code)
    return {
        "shared": own.shared_bytes,
        "expected": shared_bytes(config, shape),
        "registers": own.registers,
        "spills": own.spill_bytes,
        "transposing_spills": other.spill_bytes,
        "steady": [
            {mark: sum(bool(re.search(rf"\b{mark}\b", text)) for text in body) for mark in COUNTED} for body in steady
        ],
        "overlapped": overlapped(code, PRODUCTS),
    }


def check_sample(found: dict[str, Any], *, newest: bool = False) -> None:
    """Assert what holds of the binaries of ``bytes_sample``."""
    assert len(found) == 8
    for name, binary in found.items():
        assert binary["shared"] <= binary["expected"] <= NVIDIA_H200.shared_memory_bytes, name
        assert binary["spills"] <= (176 if newest else 80), name  # of a stack: addresses that loops begin with
        assert binary["transposing_spills"] == 0, name
        for body in binary["steady"]:
            assert body["QGMMA"] >= 4, name
            assert [body[each] for each in ("HGMMA", "PRMT", "STS", "LDS")] == [0] * 4, name
            # Of heads of 256, whose sums take 160 registers, two values go to the stack and back in one loop.
            assert body["LDL"] + body["STL"] <= (4 if "256" in name else 0), name
            assert body["SHFL"] == 8, name  # the maxima and sums of a thread's two rows, over its four threads


def main() -> None:
    messages = take_standard_output()
    use_target(architecture(sys.argv[1]))
    messages.write(json.dumps({name: compile_one(*sample) for name, sample in samples().items()}).encode())


if __name__ == "__main__":
    main()
