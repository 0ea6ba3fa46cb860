"""The space of torch's FlexAttention: the options of its Triton kernel, their limits, and torch's own choice."""

from dataclasses import replace
from typing import Final, NamedTuple

from autotune.device import Device
from autotune.dtypes import ITEM_BYTES
from autotune.errors import InvalidShapeError
from autotune.implementation import Implementation
from autotune.rounding import power_of_two
from autotune.search_spaces.bounds import needless_stages, operands, quantized, too_few_rows, too_long, too_many_live
from autotune.search_spaces.flash_attention import triton as flash_attention
from autotune.search_spaces.flash_attention.triton import ROWS_PER_WARP
from autotune.shape import AttentionShape
from autotune.space import Config, Parameter, Space

# A block mask's blocks, 128 unless a caller says otherwise, must be multiples of the kernel's (torch 2.11 to 2.15,
# torch/_inductor/kernel/flex/flex_attention.py).
SPARSE_BLOCK: Final = 128
MIN_HEAD_DIM: Final = 16  # ibid.; tl.dot takes no narrower tile
DECODE_QUERIES: Final = 128  # fewer of them go to another kernel: flex_decoding.py, _use_flex_decoding

PARAMETERS: Final = (
    Parameter("BLOCK_M", (16, 32, 64, 128)),
    Parameter("BLOCK_N", (16, 32, 64, 128)),
    Parameter("num_warps", (1, 2, 4, 8)),
    Parameter("num_stages", (1, 2, 3, 4, 5)),
    # What torch may be told of a problem, and leaves out unless it is (torch/nn/attention/flex_attention.py,
    # FlexKernelOptions): 1 and 0 are its True and False.
    Parameter("PRESCALE_QK", (0, 1)),  # scale and change of base in the queries, not in every score
    Parameter("BLOCKS_ARE_CONTIGUOUS", (0, 1)),  # the next block of keys follows: its number need not be loaded
    Parameter("USE_TMA", (0, 1), absent=0),  # tiles by descriptor, where the device has them
)
SIZES: Final = ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages")


class Choice(NamedTuple):
    """Torch's choice without an option, in the order of its own tables."""

    block_m: int
    block_n: int
    stages: int
    warps: int


# ``Choice``s by dtype and head_dim of the queries (torch 2.13, torch/_inductor/template_heuristics/triton.py). A table
# is for its architecture and the vendor's newer ones, as far as no table above is. For sm_90 and sm_80 the tables of
# 2.11 to 2.15 agree, except that head_dim 192 came to them in 2.12 and 2.13.
TABLES: Final[dict[str, dict[str, dict[int, tuple[int, int, int, int]]]]] = {
    "sm_110": {
        "float32": {64: (128, 32, 2, 4), 128: (128, 32, 2, 4), 256: (64, 16, 2, 4)},
        "16 bits": {64: (128, 64, 2, 4), 128: (128, 64, 2, 8), 256: (32, 64, 2, 4)},
    },
    "sm_100": {
        "float32": {64: (128, 32, 3, 4), 128: (32, 64, 3, 4), 192: (32, 64, 2, 4), 256: (32, 32, 3, 4)},
        "16 bits": {64: (128, 128, 3, 4), 128: (128, 64, 3, 8), 192: (128, 128, 1, 8), 256: (64, 32, 3, 4)},
    },
    "sm_90": {
        "float32": {64: (128, 32, 3, 4), 128: (32, 64, 3, 4), 192: (32, 64, 1, 8), 256: (32, 32, 3, 4)},
        "16 bits": {64: (128, 128, 3, 4), 128: (128, 64, 3, 8), 256: (64, 32, 3, 4)},
    },
    "sm_80": {
        "float32": {64: (128, 32, 3, 4), 128: (128, 32, 3, 4), 256: (64, 16, 3, 4)},
        "16 bits": {64: (128, 64, 3, 4), 128: (128, 64, 3, 8), 192: (128, 32, 2, 8), 256: (32, 64, 3, 4)},
    },
    "gfx950": {
        "float32": {64: (128, 32, 1, 4), 128: (128, 32, 1, 4), 256: (64, 16, 1, 4)},
        "16 bits": {64: (128, 64, 2, 4), 128: (128, 64, 2, 4), 256: (32, 64, 2, 4)},
    },
    "gfx942": {
        "float32": {64: (128, 32, 1, 4), 128: (128, 32, 1, 4), 256: (64, 16, 1, 4)},
        "bfloat16": {64: (64, 64, 2, 8), 128: (64, 64, 2, 8), 256: (32, 64, 2, 8)},
        "float16": {64: (64, 32, 1, 8), 128: (64, 32, 1, 8), 256: (32, 32, 1, 8)},
    },
}


def is_decode(shape: AttentionShape) -> bool:
    """Return if torch solves the shape by its decode kernel, which splits the keys and packs the heads of a group."""
    return shape.seq_q < DECODE_QUERIES and shape.group & (shape.group - 1) == 0


def unsupported(shape: AttentionShape) -> str | None:
    """Return why a shape cannot be computed, or None."""
    title = "flash_attention/flex"
    if (problem := quantized(title, shape) or operands(title, shape)) is not None:
        return problem
    for name in ("head_dim", "head_dim_v"):
        if getattr(shape, name) < MIN_HEAD_DIM:
            return f"{name}={getattr(shape, name)} is not supported by flex_attention; expected {MIN_HEAD_DIM} or more"
    if is_decode(shape) and shape.group > SPARSE_BLOCK:
        return (
            f"heads={shape.heads} over kv_heads={shape.kv_heads} with seq_q={shape.seq_q} are not supported by "
            f"flex_attention; expected at most {SPARSE_BLOCK} heads a KV head, or {DECODE_QUERIES} queries or more"
        )
    return None


def torch_choice(shape: AttentionShape, device: Device) -> Choice:
    """Return the choice of torch 2.13 for a shape that it is given no option for.

    Its decode kernel has one block of queries for all rows of a KV head; more than a block of the mask's 128, which
    torch refuses with a mask, are split here.
    """
    if is_decode(shape):
        rows = max(MIN_HEAD_DIM, power_of_two(shape.seq_q * shape.group))
        is_thor = device.arch == "sm_110"
        warps = 4 if device.has("wave_hints") else 2
        return Choice(min(rows, SPARSE_BLOCK), 16 if is_thor else 64, 1, warps)
    table = next((table for first, table in TABLES.items() if device.is_from(first)), {})
    of_widths = table.get(shape.dtype) or table.get("16 bits", {})
    if shape.head_dim in of_widths:
        return Choice(*of_widths[shape.head_dim])
    if device.has("wave_hints"):  # ROCm's choices
        return Choice(64 if shape.dtype == "float32" else 128, 64, 1, 4)
    return Choice(64, 64, 3, 4)


def fitting_choice(shape: AttentionShape, device: Device) -> Choice:
    """Return torch's choice, with a shorter pipeline and then fewer keys at once where that does not fit.

    Torch's own tables do not look at shared memory, and fail on GPUs that have less of it than the model they were made
    for (pytorch/pytorch#139131, #180278).
    """
    choice = torch_choice(shape, device)
    while _held_bytes(choice.block_n, choice.stages, shape) > device.shared_memory_bytes and choice.block_n > 16:
        if choice.stages > 1:
            choice = choice._replace(stages=choice.stages - 1)
        else:
            choice = choice._replace(block_n=choice.block_n // 2)
    return choice


def _held_bytes(block_n: int, stages: int, shape: AttentionShape) -> int:
    """Return the least shared memory of tiles of keys and values: the pipeline holds stages - 1 of them."""
    width = power_of_two(shape.head_dim) + power_of_two(shape.head_dim_v)
    return max(1, stages - 1) * block_n * width * ITEM_BYTES[shape.dtype]


def reject(config: Config, shape: AttentionShape, device: Device) -> str | None:
    """Return why torch refuses a config for this shape on this device, or why it cannot pay, or None.

    The default is refused only where it cannot run: it is what a user has otherwise.
    """
    if (problem := unsupported(shape) or _untrue(config, shape, device)) is not None:
        return problem
    block_m, block_n, warps, stages = (config.integer(name) for name in SIZES)
    if is_decode(shape) and block_m < shape.group:
        return f"BLOCK_M={block_m} is less than the {shape.group} heads of a KV head, which the decode kernel packs"
    held = _held_bytes(block_n, stages, shape)
    if held > device.shared_memory_bytes:
        return f"K and V tiles take {held} bytes of shared memory, {device.arch} has {device.shared_memory_bytes}"
    if (block_m, block_n, stages, warps) == fitting_choice(shape, device):  # beside whatever it is told
        return None
    rows = shape.seq_q * shape.group if is_decode(shape) else shape.seq_q
    reason = (
        too_long("BLOCK_M", block_m, rows, f"length of {rows}")
        or too_long("BLOCK_N", block_n, shape.seq_kv, f"length of {shape.seq_kv}")
        or too_many_live(block_m, power_of_two(shape.head_dim_v) + block_n, warps * device.warp_size)
    )
    # Of fp32, which no matrix unit computes exactly, and of the few rows of decode, warps share rows at little cost.
    if reason is None and shape.dtype != "float32" and not is_decode(shape):
        reason = too_few_rows(block_m, warps, ROWS_PER_WARP)
    return reason or needless_stages(stages, device)


def _untrue(config: Config, shape: AttentionShape, device: Device) -> str | None:
    """Return an option of a config that is false for this shape on this device, or None."""
    if config["PRESCALE_QK"] and shape.softcap:
        return "PRESCALE_QK=1 changes the scores' base before softcap sees them"
    if config["BLOCKS_ARE_CONTIGUOUS"] and shape.window is not None:
        return "BLOCKS_ARE_CONTIGUOUS=1 is not so of a window, whose masked blocks lie on both sides of the others"
    if config["USE_TMA"] and not device.has("tensor_maps"):
        return f"USE_TMA=1 needs tensor-map descriptors, which {device.arch} lacks"
    return None


def kernel_options(config: Config) -> dict[str, int | bool]:
    """Return a config as the ``kernel_options`` of ``torch.nn.attention.flex_attention.flex_attention``.

    Example:
        >>> kernel_options(Config(BLOCK_M=64, BLOCK_N=64, num_warps=4, num_stages=3, PRESCALE_QK=1))["PRESCALE_QK"]
        True
    """
    set_here = ((name, value) for name, value in config.items() if value is not None)
    return {name: config.integer(name) if name in SIZES else bool(value) for name, value in set_here}


def default(shape: AttentionShape, device: Device) -> Config:
    """Return torch's choice without an option, or if that does not fit, the nearest that does."""
    if (problem := unsupported(shape)) is not None:
        raise InvalidShapeError(problem)
    block_m, block_n, stages, warps = fitting_choice(shape, device)
    sizes = Config(BLOCK_M=block_m, BLOCK_N=block_n, num_warps=warps, num_stages=stages)
    return Config(**sizes, PRESCALE_QK=0, BLOCKS_ARE_CONTIGUOUS=0, USE_TMA=0)


def hints(config: Config, shape: AttentionShape, device: Device) -> tuple[float, ...]:
    """Return the estimates of flash attention, whose tiles and pipeline are the same."""
    renamed = {"BLOCK_M": "BLOCK_Q", "BLOCK_N": "BLOCK_K"}
    named = Config({renamed.get(name, name): value for name, value in config.items()})
    return flash_attention.hints(named, shape, device)


MAX_CHECKED_PAIRS: Final = 2**33  # of a query and a key: a reference of 8 GFLOP times the width of a head
MIN_HEAD_PAIRS: Final = 2**21  # the least cost of a head, in calls of eager torch


def check_shapes(shape: AttentionShape) -> tuple[AttentionShape, ...]:
    """Return the shape itself: torch compiles for exact lengths, so a smaller problem would run other code.

    Where its reference takes too long it is one KV head of one sequence; finalists are checked on the whole shape.
    """
    pairs = shape.batch * shape.heads * max(shape.seq_q * shape.seq_kv, MIN_HEAD_PAIRS)
    return (shape if pairs <= MAX_CHECKED_PAIRS else replace(shape, batch=1, heads=shape.group, kv_heads=1),)


IMPLEMENTATION: Final = Implementation(
    name="flex",
    operation="flash_attention",
    space=Space(PARAMETERS, reject, default, hints),
    kernel="autotune.kernels.flash_attention.flex:KERNEL",
    library="torch",
    supports=lambda shape, device: unsupported(shape),
    check_shapes=check_shapes,
    compiles_ahead=False,
    can_interpret=False,
    export_options=kernel_options,
)
