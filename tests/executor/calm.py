"""An operation whose configs are all fine; two of them end only where two GPUs screen them at once."""

from dataclasses import replace
from typing import Final

from autotune.device import Device
from autotune.registry import register, register_implementation
from autotune.shape import AttentionShape
from autotune.space import Config, Parameter, Space
from tests.executor.faulty import OPERATION, OURS, SHAPE

COUNT: Final = 8  # of configs of each kind


def _reject(config: Config, shape: AttentionShape, device: Device) -> str | None:
    is_meeting = config["run"] == "meet"
    return "two meet" if is_meeting and config.integer("extra_us") >= 2 else None


def _default(shape: AttentionShape, device: Device) -> Config:
    return Config(compile="fine", run="fine", extra_us=COUNT - 1)


CALM: Final = replace(OPERATION, name="calm")
MEETING_SPACE: Final = Space(
    (
        Parameter("compile", ("fine",)),
        Parameter("run", ("fine", "meet")),
        Parameter("extra_us", tuple(range(COUNT))),
    ),
    _reject,
    _default,
)
IMPLEMENTATION: Final = replace(OURS, operation="calm", space=MEETING_SPACE)
SHAPES: Final = [replace(SHAPE, seq_q=each, seq_kv=each) for each in (32, 64, 96)]
register("calm", f"{__name__}:CALM")
register_implementation("calm", "ours", f"{__name__}:IMPLEMENTATION")
