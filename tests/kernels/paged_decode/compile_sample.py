"""Compiles configs of paged decode for one architecture without a GPU; a process, since Triton has one target.

The first argument names the architecture; the outcomes are printed as one JSON list.
"""

import json
import re
import sys
from dataclasses import replace
from typing import Any

from autotune.device import Device, architecture
from autotune.executor.child import take_standard_output
from autotune.executor.compiler import compile_candidate, use_target
from autotune.executor.messages import to_plain
from autotune.kernels.paged_decode.triton import KERNEL
from autotune.search_spaces.paged_decode.triton import IMPLEMENTATION
from autotune.shape import PagedShape
from autotune.space import Config, Value
from autotune.trial import Candidate
from tests.kernels.compile_sample import device_of

SIZES: dict[str, Any] = {"batch": 64, "heads": 32, "kv_heads": 8, "max_context": 8192, "head_dim": 128}
SHAPES = {
    "page 16": PagedShape(**SIZES),
    "page 64": PagedShape(**SIZES, page_size=64),
    "page 528": PagedShape(**SIZES, page_size=528, layout="HND"),
    "narrow": PagedShape(**{**SIZES, "head_dim": 64, "heads": 71, "kv_heads": 1}, seq_q=2),
    "wide": PagedShape(**{**SIZES, "head_dim": 512}, dtype="float16"),
    "int8": PagedShape(**SIZES, kv_dtype="int8"),
    "e4m3": PagedShape(**SIZES, kv_dtype="float8_e4m3fn"),
    "e4m3 of many rows": PagedShape(**{**SIZES, "heads": 64}, seq_q=8, kv_dtype="float8_e4m3fn"),
    "e5m2": PagedShape(**SIZES, kv_dtype="float8_e5m2", dtype="float16"),
    "groups of 18": PagedShape(**{**SIZES, "heads": 18, "kv_heads": 1}, seq_q=3, kv_dtype="int8"),
    "all features": PagedShape(**SIZES, window=512, softcap=True, sinks=True, alibi=True, seq_q=5),
}
FEW = ("page 16", "wide")  # where another architecture compiles all of them
THOROUGH = "sm_90"
ODD_ROWS = ((18, 3, "last"), (18, 3, "kernel"), (7, 5, "last"), (6, 7, "kernel"), (5, 3, "last"))
WHOLE: dict[str, Value] = {"PROGRAMS_PER_SM": None, "COMBINE": "kernel", "PARTIALS": "float32"}
DEPTHS = (("split", 3), ("split", 4), ("flat", 4))  # schedule, num_stages


def problems(device: Device) -> list[tuple[str, PagedShape, Config]]:
    """Defaults; of the thorough architecture those of every shape, and both schedules with pipelines of some depths."""
    space = IMPLEMENTATION.space
    names = SHAPES if device.arch == THOROUGH else FEW
    found = [(f"default {name}", SHAPES[name], space.default(SHAPES[name], device)) for name in names]
    shape = SHAPES["page 16"]
    for schedule, stages in DEPTHS if device.arch == THOROUGH else ():
        amounts = WHOLE | {"NUM_SPLITS": 2}
        if schedule == "flat":
            amounts = {"NUM_SPLITS": None, "PROGRAMS_PER_SM": 2, "COMBINE": None, "PARTIALS": None}
        changes: dict[str, Value] = {"schedule": schedule, **amounts, "BLOCK_K": 32, "num_stages": stages}
        config = Config({**space.default(shape, device), **changes})
        found.append((f"{schedule} with {stages} stages", shape, config))
    for heads, queries, combine in ODD_ROWS if device.arch == THOROUGH else ():
        shape = replace(SHAPES["groups of 18"], heads=heads, seq_q=queries)
        rows: dict[str, Value] = {**WHOLE, "schedule": "split", "BLOCK_ROWS": 16, "NUM_SPLITS": 4, "COMBINE": combine}
        config = Config({**space.default(shape, device), **rows})
        found.append((f"rows of {queries} queries of {heads} heads, {combine}", shape, config))
    return found


def count_packed_additions(config: Config, shape: PagedShape) -> int:
    """The additions of two integers of 16 bits at once, of which ptxas may lose the constant, in all binaries."""
    binaries = KERNEL.warmup(config, shape)
    return sum(len(re.findall(r"(?:add|sub)\.[su]16x2", binary.asm["ptx"])) for binary in binaries)


def count_buffers(config: Config, shape: PagedShape) -> list[int]:
    """The tiles of keys, and of values, that the compiled loop holds: the first sizes of its buffers."""
    text = KERNEL.warmup(config, shape)[0].asm["ttgir"]
    tile = rf"memdesc<(\d+)x{config['BLOCK_K']}x{shape.head_dim}x"
    return [int(count) for count in re.findall(rf"ttg.local_alloc : \(\) -> !ttg.{tile}", text)]


def count_words(config: Config, shape: PagedShape) -> int:
    """Neighbouring words of a row of keys that a thread converts from one byte, for shared memory."""
    text = KERNEL.warmup(config, shape)[0].asm["ttgir"]
    found = re.search(r"cvt.rn.f16x2.e4m3x2 \$0, low.*xi16, (#\w+)>", text)
    assert found is not None
    layout = re.search(rf"^{found[1]} = #ttg.blocked<{{sizePerThread = \[(\d+), 1\]", text, re.MULTILINE)
    return int(layout[1]) if layout else 0


def main() -> None:
    messages = take_standard_output()
    device = device_of(sys.argv[1])
    use_target(architecture(device.arch))
    outcomes: dict[str, Any] = {}
    for name, shape, config in problems(device):
        outcomes[name] = to_plain(compile_candidate(KERNEL, Candidate("triton", config), shape, device))
        if name.endswith("stages"):
            outcomes[name]["buffers"] = count_buffers(config, shape)
        if name.startswith("rows"):
            outcomes[name]["packed_additions"] = count_packed_additions(config, shape)
        if name.endswith("many rows"):
            outcomes[name]["words"] = count_words(config, shape)
    messages.write(json.dumps(outcomes).encode())


if __name__ == "__main__":
    main()
