"""The space of attention in plain torch."""

from pathlib import Path
from typing import Final

from autotune.device import Device
from autotune.implementation import Implementation
from autotune.shape import AttentionShape
from autotune.space import Config, Parameter, Space


def reject(config: Config, shape: AttentionShape, device: Device) -> str | None:
    chunk = config.integer("CHUNK")
    return f"CHUNK={chunk} is more than twice the {shape.seq_q} queries" if chunk >= 2 * shape.seq_q else None


def unsupported(shape: AttentionShape, device: Device) -> str | None:
    return "softcap and windows are not supported by naive" if shape.softcap or shape.window else None


IMPLEMENTATION: Final = Implementation(
    name="naive",
    operation="flash_attention",
    space=Space(
        (Parameter("CHUNK", (16, 32, 64, 128)),),
        reject,
        lambda shape, device: Config(CHUNK=16),
    ),
    kernel="tests.outside.naive_attention.kernel:KERNEL",
    sources=(Path(__file__).parent / "naive_attention" / "kernel.py",),
    entry=("NaiveAttention",),
    supports=unsupported,
    compiles_ahead=False,
    can_interpret=False,
)
