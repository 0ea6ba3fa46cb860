"""Compiles decode over latents for one architecture without a GPU; a process, since Triton has one target.

The first argument names the architecture; printed is a JSON object of outcomes by name, with what each tile of keys is
kept in.
"""

import json
import random
import re
import sys
from typing import Any

from autotune.device import Device, architecture
from autotune.executor.child import take_standard_output
from autotune.executor.compiler import compile_candidate, use_target
from autotune.executor.messages import to_plain
from autotune.kernels.paged_decode.triton_latent import KERNEL
from autotune.search_spaces.paged_decode.triton_latent import IMPLEMENTATION
from autotune.shape import PagedShape
from autotune.space import Config
from autotune.trial import Candidate
from tests.contract.suite import device_of

SIZES: dict[str, Any] = {"batch": 64, "heads": 128, "max_context": 8192, "page_size": 64}
FEW_HEADS = {**SIZES, "heads": 16}
SHAPES = {
    "576": PagedShape(**SIZES, head_dim=576),
    "576, pages of 1": PagedShape(**{**SIZES, "page_size": 1}, head_dim=576, dtype="float16"),
    "576, 16 heads": PagedShape(**FEW_HEADS, head_dim=576),
    "576, 16 heads, pages of 1": PagedShape(**{**FEW_HEADS, "page_size": 1}, head_dim=576),
    "576, 16 heads, 2 queries": PagedShape(**FEW_HEADS, head_dim=576, seq_q=2),
    "320": PagedShape(**SIZES, head_dim=320),
    "320, pages of 1": PagedShape(**{**SIZES, "page_size": 1}, head_dim=320),
    "288": PagedShape(**SIZES, head_dim=288),
    "288, 40 heads": PagedShape(**{**SIZES, "heads": 40}, head_dim=288),
    "576, all features": PagedShape(**SIZES, head_dim=576, window=512, softcap=True, sinks=True, alibi=True),
}
THOROUGH = "sm_90"
FEW = ("576", "576, 16 heads", "320")  # where another architecture compiles all of them
SAMPLES = 6  # configs of the first shape's space, where it is compiled thoroughly


def problems(device: Device) -> list[tuple[str, PagedShape, Config]]:
    """Return defaults, and of the thorough architecture a random few configs too."""
    space = IMPLEMENTATION.space
    is_thorough = device.arch == THOROUGH
    found = [(name, SHAPES[name], space.default(SHAPES[name], device)) for name in (SHAPES if is_thorough else FEW)]
    shape = SHAPES["576"]
    drawn = random.Random(device.arch).sample(list(space.configs(shape, device)), SAMPLES if is_thorough else 0)
    return [*found, *((f"sample {config}", shape, config) for config in drawn)]


def count_tiles(config: Config, shape: PagedShape) -> list[int]:
    """Return the numbers of tiles in each buffer that holds latents of keys, as compiled: one buffer serves both
    products."""
    text = KERNEL.warmup(config, shape)[0].asm["ttgir"]
    tile = rf"memdesc<(?:(\d+)x)?{config['BLOCK_K']}x{shape.head_dim_v}x"
    return [int(count or 1) for count in re.findall(rf"ttg.local_alloc .*?-> !ttg.{tile}", text)]


def main() -> None:
    messages = take_standard_output()
    device = device_of(sys.argv[1])
    use_target(architecture(device.arch))
    outcomes: dict[str, Any] = {}
    for name, shape, config in problems(device):
        candidate = Candidate("triton_latent", config)
        outcomes[name] = to_plain(compile_candidate(KERNEL, candidate, shape, device, every_output=True))
        if device.arch == THOROUGH and config["BLOCK_ROWS"] != config["BLOCK_K"]:  # queries lie in shared memory, too
            outcomes[name]["tiles"] = count_tiles(config, shape)
    messages.write(json.dumps(outcomes).encode())


if __name__ == "__main__":
    main()
