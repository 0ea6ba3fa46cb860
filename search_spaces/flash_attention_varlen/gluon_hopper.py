"""The space of attention over packed sequences in Gluon for Hopper: that of dense attention, and the order of tiles."""

import math
from pathlib import Path
from typing import Any, Final

from autotune.device import Device
from autotune.dtypes import ITEM_BYTES
from autotune.errors import InvalidShapeError
from autotune.implementation import Implementation
from autotune.search_spaces import flash_attention
from autotune.search_spaces.flash_attention import gluon_hopper as dense
from autotune.search_spaces.flash_attention.warp_groups import ROWS
from autotune.search_spaces.sources import SHARED, kernel_files
from autotune.shape import AttentionShape
from autotune.space import Config, Parameter, Space
from autotune.varlen_shape import VarlenShape

ORDER_OF_DENSE: Final[dict[str, Any]] = {"section": 1, "row_order": "natural"}  # parameters that are not ours
PARAMETERS: Final = (
    *(each for each in dense.PARAMETERS if each.name not in ORDER_OF_DENSE),
    # As of ``search_spaces.flash_attention_varlen.triton``; a kernel before this one finds the order out, once a call.
    Parameter("sequences", ("packed", "longest")),
    # Which tiles are neighbours: those of one head, or the heads of one row of tiles.
    Parameter("order", ("head", "tile")),
)
ORDER: Final = ("sequences", "order")
ARGUMENT_BYTES: Final = 64  # more than what warps find in shared memory beyond dense attention's


def supports(shape: VarlenShape, device: Device) -> str | None:
    """Return why the kernel does not compute a shape on a device, or None."""
    if not device.has("wgmma"):
        return f"flash_attention_varlen/gluon_hopper needs products of warp groups, which {device.arch} does not have"
    if ITEM_BYTES[shape.dtype] != 2:
        return f"flash_attention_varlen/gluon_hopper computes 16 bits, not {shape.dtype}"
    return None


def reject(config: Config, shape: VarlenShape, device: Device) -> str | None:
    """Return why a config cannot pay for this shape on this device, by bounds that need no compiler, or None."""
    if config["sequences"] == "longest" and shape.is_even:
        return "sequences='longest' does not pay: all are equally long"
    if (taken := shared_bytes(config, shape)) > device.shared_memory_bytes:
        return f"tiles take {taken} bytes of shared memory, {device.arch} has {device.shared_memory_bytes}"
    values = {name: value for name, value in config.items() if name not in ORDER}
    return dense.reject(Config({**values, **ORDER_OF_DENSE}), as_dense(shape), device)


def shared_bytes(config: Config, shape: VarlenShape) -> int:
    """Return the bytes of shared memory that a config's tiles, barriers and arguments take."""
    return dense.shared_bytes(config, as_dense(shape)) + ARGUMENT_BYTES


def as_dense(shape: VarlenShape) -> AttentionShape:
    """Return the problem of as many longest sequences as have about as many queries."""
    names = ("heads", "kv_heads", "head_dim", "head_dim_v", "dtype", "causal", "window", "softcap")
    return AttentionShape(
        **{name: getattr(shape, name) for name in names},
        batch=math.ceil(shape.batch * shape.mean_seq_q / shape.max_seq_q),
        seq_q=shape.max_seq_q,
        seq_kv=shape.max_seq_kv,
    )


def default(shape: VarlenShape, device: Device) -> Config:
    """Return the usual schedule of dense attention over the longest sequences.

    On an NVIDIA H200 the winners of two searches of 120 configs were 1.06 and 1.07 times as fast (2026-11-26).
    Three consumers, whose tiles are the longest, are for sequences that have as many rows in the mean.
    """
    if (problem := supports(shape, device)) is not None:
        raise InvalidShapeError(problem)
    usual = dense.usual_schedule(as_dense(shape), device)
    values: dict[str, Any] = {name: value for name, value in usual.items() if name not in ORDER_OF_DENSE}
    values["consumers"] = min(usual.integer("consumers"), max(2, math.ceil(shape.mean_seq_q / ROWS)))
    return Config(**values, sequences="packed" if shape.is_even else "longest", order="tile")


IMPLEMENTATION: Final = Implementation(
    name="gluon_hopper",
    operation="flash_attention_varlen",
    space=Space(PARAMETERS, reject, default),
    kernel="autotune.kernels.flash_attention_varlen.gluon_hopper:KERNEL",
    sources=(
        *kernel_files(
            "flash_attention_varlen/gluon_hopper", "forward", "launch", "padded_rows", "ragged", "tile_table"
        ),
        *kernel_files("flash_attention_varlen/triton", "sequence_order"),
        *kernel_files("flash_attention/gluon_hopper", "forward", "launch", "rings", "schedule", "turns", "weights"),
        *kernel_files("", "gluon"),
        Path(flash_attention.__file__).with_name("warp_groups.py"),
        *SHARED,
    ),
    entry=("launch_packed",),
    supports=supports,
    can_interpret=False,
)
