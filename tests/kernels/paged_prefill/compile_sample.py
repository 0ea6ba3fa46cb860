"""Compiles configs of paged prefill for one architecture without a GPU; a process, since Triton has one target.

The first argument names the architecture; the outcomes are printed as one JSON list.
"""

import json
import re
import sys
from typing import Any, Final

from autotune.device import Device, architecture
from autotune.executor.child import take_standard_output
from autotune.executor.compiler import compile_candidate, use_target
from autotune.executor.messages import to_plain
from autotune.kernels.paged_prefill.triton import KERNEL
from autotune.platforms.nvidia_machine_code import disassembled, steady_spills
from autotune.search_spaces.paged_prefill.triton import IMPLEMENTATION
from autotune.shape import PagedShape
from autotune.space import Config
from autotune.trial import Candidate
from tests.kernels.compile_sample import device_of

SIZES: Final[dict[str, Any]] = {"batch": 1, "heads": 32, "kv_heads": 8, "seq_q": 2048, "max_context": 32768}
SHAPES: Final = {
    "chunk": PagedShape(**SIZES, head_dim=128),
    "mixed": PagedShape(**{**SIZES, "batch": 64, "seq_q": 33}, head_dim=128, page_size=528, layout="HND"),
    "narrow": PagedShape(**{**SIZES, "heads": 71, "kv_heads": 1}, head_dim=64, page_size=64),
    "wide values": PagedShape(**SIZES, head_dim=192, head_dim_v=128),
    "256": PagedShape(**SIZES, head_dim=256),
    "512": PagedShape(**SIZES, head_dim=512, dtype="float16"),
    "float32": PagedShape(**SIZES, head_dim=128, dtype="float32"),
    "full": PagedShape(**SIZES, head_dim=128, causal=False),
    "e4m3": PagedShape(**SIZES, head_dim=128, kv_dtype="float8_e4m3fn"),
    "e5m2": PagedShape(**SIZES, head_dim=64, kv_dtype="float8_e5m2"),
    "int8": PagedShape(**SIZES, head_dim=128, kv_dtype="int8"),
    "int8 of 512": PagedShape(**SIZES, head_dim=512, kv_dtype="int8"),
    "all features": PagedShape(**SIZES, head_dim=128, window=512, softcap=True, sinks=True, alibi=True),
    "few tiles": PagedShape(**{**SIZES, "heads": 16, "kv_heads": 2, "seq_q": 512, "max_context": 2048}, head_dim=128),
    "narrow window": PagedShape(**SIZES, head_dim=64, window=128, sinks=True),
}
FEW: Final = ("chunk", "512", "int8")  # where another architecture compiles all of them
THOROUGH: Final = "sm_90"
DEPTHS: Final = (2, 3, 4)  # num_stages


def problems(device: Device) -> list[tuple[str, PagedShape, Config]]:
    """Defaults; of the thorough architecture those of every shape, and pipelines of some depths."""
    space = IMPLEMENTATION.space
    names = SHAPES if device.arch == THOROUGH else FEW
    found = [(f"default {name}", SHAPES[name], space.default(SHAPES[name], device)) for name in names]
    shape = PagedShape(**{**SIZES, "max_context": 8192}, head_dim=128)
    for stages in DEPTHS if device.arch == THOROUGH else ():
        config = Config({**space.default(shape, device), "num_stages": stages})
        found.append((f"chunk with {stages} stages", shape, config))
    return found


def describe_code(config: Config, shape: PagedShape) -> dict[str, Any]:
    """Buffers of keys and values in each loop, and how the code copies and multiplies."""
    (compiled,) = KERNEL.warmup(config, shape)
    tile = rf"memdesc<(\d+)x{config['BLOCK_K']}x{shape.head_dim}x"
    ptx = compiled.asm["ptx"]
    return {
        "buffers": [int(n) for n in re.findall(rf"ttg.local_alloc : \(\) -> !ttg.{tile}", compiled.asm["ttgir"])],
        "async_copies_of": sorted({int(n, 16) for n in re.findall(r"cp\.async\.c[ag].*?\], (0x\w+)", ptx)}),
        "has_wgmma": "wgmma.mma_async" in ptx,
        "has_mma": "mma.sync" in ptx,
        "steady_spills": steady_spills(disassembled(compiled.asm["cubin"])),
    }


def main() -> None:
    messages = take_standard_output()
    device = device_of(sys.argv[1])
    use_target(architecture(device.arch))
    outcomes: dict[str, Any] = {}
    for name, shape, config in problems(device):
        outcomes[name] = to_plain(compile_candidate(KERNEL, Candidate("triton", config), shape, device))
        if device.arch == THOROUGH:
            outcomes[name]["code"] = describe_code(config, shape)
    messages.write(json.dumps(outcomes).encode())


if __name__ == "__main__":
    main()
