"""The classes of problems that a default is chosen for, and the configs that are compiled for each."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

from autotune.device import Device
from autotune.implementation import Implementation
from autotune.registry import get_implementation
from autotune.shape import AttentionShape, PagedShape, Shape
from autotune.space import Config
from autotune.varlen_shape import VarlenShape

# Architectures without recordings that share a default: they have the same instructions and as much shared memory.
FAMILIES: Final = (("sm_80",), ("sm_86", "sm_89"), ("sm_120",), ("gfx942",))
HEAD_DIMS: Final = (64, 128, 256)  # to which others are padded
DTYPES: Final = ("bfloat16", "float32")  # float16 is bfloat16's equal: same tiles, loads and matrix instructions

Tile = tuple[int, int, int]  # rows of queries, rows of keys, warps

# Of 16 bits: the members of sm_90's portfolios (``python -m benchmarks.portfolios --list``); Triton's tutorial and
# FlashAttention-2 (``search_spaces.flash_attention.triton.heuristics``); torch's FlexAttention, of sm_80 with heads of
# 128 and 192 (``search_spaces.flash_attention.flex.TABLES``); vLLM's unified kernel, whose 16 rows no prefill here
# keeps. Tiles of 16 keys are for heads of 256, where registers hold no more.
TILES_OF_16_BITS: Final[tuple[Tile, ...]] = (
    *((64, 64, 4), (64, 32, 4), (64, 128, 4), (128, 128, 8)),
    *((128, 64, 4), (128, 32, 4), (128, 32, 8)),
    *((128, 128, 4), (128, 64, 8)),
    *((64, 16, 4), (128, 16, 8)),
)
# The defaults before, and torch's FlexAttention's tile for heads of 256. Of tiles with more elements hundreds to
# thousands of bytes spill, and compiling takes ten seconds.
MAX_FLOAT32_TILE: Final = 4096
TILES_OF_FLOAT32: Final[tuple[Tile, ...]] = ((32, 32, 2), (32, 16, 2), (16, 16, 1), (64, 16, 4), (64, 32, 4))


class ProblemClass(NamedTuple):
    """The problems of an implementation that share a default on an architecture, and one of them.

    Its mask is causal, whose binary takes the most registers as a rule.
    """

    implementation: Implementation[Any]
    dtype: str
    head_dim: int
    shape: Shape

    @property
    def other_forms(self) -> list[tuple[Shape, bool]]:
        """Other problems of the class whose binaries differ, each with True if all outputs are computed."""
        masks = [replace(self.shape, causal=False)] if isinstance(self.shape, AttentionShape | VarlenShape) else []
        return [(self.shape, True), *((shape, False) for shape in masks)]

    def __str__(self) -> str:
        return f"{self.implementation.title}, {self.dtype}, heads of {self.head_dim}"


def classes() -> Iterator[ProblemClass]:
    """Yield every class of Triton's implementations."""
    for dtype in DTYPES:
        for head_dim in HEAD_DIMS:
            fields: dict[str, Any] = {"heads": 32, "kv_heads": 8, "head_dim": head_dim, "dtype": dtype}
            paged: dict[str, Any] = {**fields, "max_context": 8192, "page_size": 16}
            shapes = {
                "flash_attention": AttentionShape(**fields, batch=4, seq_q=4096, causal=True),
                "flash_attention_varlen": VarlenShape(**fields, batch=16, max_seq_q=4096, mean_seq_q=1024, causal=True),
                "paged_prefill": PagedShape(**paged, batch=8, seq_q=1024),
                "paged_decode": PagedShape(**paged, batch=64),
            }
            for operation, shape in shapes.items():
                yield ProblemClass(get_implementation(operation, "triton"), dtype, head_dim, shape)


def first_candidates(problem: ProblemClass, device: Device) -> list[Config]:
    """List the space's default and the sources' tiles with the deepest pipeline, the valid ones, to compile first.

    Tiles are loaded by pointers, and those of 16 bits by descriptors as well where the device has them. Of paged decode
    it is the default alone: a formula over shared memory, which no rule of resources bettered on the two sweeps of
    sm_90.
    """
    default = problem.implementation.space.default(problem.shape, device)
    if "BLOCK_Q" not in default:
        return [default]
    tiles = TILES_OF_FLOAT32 if problem.dtype == "float32" else TILES_OF_16_BITS
    stages = 3 if device.has("async_copies") else 1
    found = [default]
    for rows, keys, warps in tiles:
        tile = Config({**default, "BLOCK_Q": rows, "BLOCK_K": keys, "num_warps": warps, "num_stages": stages})
        if "SMALL_Q" in tile:  # as the default has it, by its rows
            tile = Config({**tile, "SMALL_Q": 16 if rows > 16 else 0})
        if problem.dtype != "float32" or keys * problem.head_dim <= MAX_FLOAT32_TILE:
            found += [tile, *_by_descriptor(tile, problem.dtype, device)]
    return list(dict.fromkeys(each for each in found if _is_valid(problem, each, device)))


def second_candidates(problem: ProblemClass, device: Device, poor: Iterable[Config]) -> list[Config]:
    """List poor configs with a shorter pipeline, which holds less shared memory and fewer registers.

    Those of paged decode are also listed with half the keys.
    """
    shorter = 1 if problem.dtype == "float32" else 2
    found = []
    for config in poor:
        stages, keys = config.integer("num_stages"), config.integer("BLOCK_K")
        found += [Config({**config, "num_stages": shorter})] if stages > shorter else []
        found += [] if "BLOCK_Q" in config else [Config({**config, "BLOCK_K": keys // 2})]
    return list(dict.fromkeys(each for each in found if _is_valid(problem, each, device)))


def _by_descriptor(tile: Config, dtype: str, device: Device) -> Iterator[Config]:
    if "loads" in tile and device.has("tensor_maps") and dtype != "float32":
        yield Config({**tile, "loads": "descriptor"})


def _is_valid(problem: ProblemClass, config: Config, device: Device) -> bool:
    return problem.implementation.space.why_invalid(config, problem.shape, device) is None
