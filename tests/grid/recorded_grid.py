"""A tiny operation, sweeps of it by formula that a replay answers from, and a grid of its studies: quick anywhere."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from autotune import registry
from autotune.device import NVIDIA_H200, Device
from autotune.executor import select
from autotune.grid import GridTask
from autotune.implementation import Implementation
from autotune.operation import Cost, Operation
from autotune.shape import AttentionShape
from autotune.space import Config, Parameter, Space
from autotune.trial import Stage, Status, Trial
from tests import sample

NAME: Final = "grid_sample"
STUDIES: Final = 40
BROKEN: Final = 5  # a step that never ends ok
CAPPED: Final = replace(NVIDIA_H200, power_cap_watts=500)

OPERATION: Final = Operation(
    name=NAME,
    shape_class=AttentionShape,
    cost=lambda shape: Cost(flops=10**9, bytes=10**7),
    definition=f"{__name__}:NO_DEFINITION",
)


def _accept(config: Config, shape: AttentionShape, device: Device) -> str | None:
    return None


def _default(shape: AttentionShape, device: Device) -> Config:
    return Config(STEP=1)


def _implementation(name: str, steps: int) -> Implementation[AttentionShape]:
    return Implementation(
        name=name,
        operation=NAME,
        space=Space((Parameter("STEP", tuple(range(1, steps + 1))),), _accept, _default),
        kernel=f"{__name__}:NO_KERNEL",
        sources=(Path(__file__),),
        entry=("_default",),
        compiles_ahead=False,
        can_interpret=False,
    )


LINE: Final = _implementation("line", 8)
SHORT: Final = _implementation("short", 4)
IMPLEMENTATIONS: Final = (LINE, SHORT)
CONFIGS: Final = 12  # of both


def shape(study: int) -> AttentionShape:
    return AttentionShape(batch=1, heads=2, seq_q=16 * (study + 1), head_dim=64)


def task(study: int, **changes: Any) -> GridTask:
    """An exhaustive study; the lower its number, the earlier it begins."""
    fields: dict[str, Any] = {"device": NVIDIA_H200.name, "budget": None, "trials": None, "sampler": "exhaustive"}
    fields |= {"priority": STUDIES - study}
    return GridTask(operation=NAME, shape=shape(study), **{**fields, **changes})


def median_us(study: int, implementation: str, step: int) -> float:
    """A valley whose lowest point moves with the study."""
    best = 1 + study % (8 if implementation == "line" else 4)
    return 100.0 + study + 10.0 * abs(step - best) + (3.0 if implementation == "short" else 0.0)


def recorded(study: int, device: Device = NVIDIA_H200, *, is_broken: bool = False) -> list[Trial]:
    """The sweep of a study; with ``is_broken`` nothing in it ended ok."""
    found: list[Trial] = []
    for implementation in IMPLEMENTATIONS:
        for config in implementation.space.configs(shape(study), device):
            step = config.integer("STEP")
            is_ok = not is_broken and step != BROKEN
            time = sample.timing(median_us(study, implementation.name, step))
            for stage in Stage if is_ok else [Stage.SCREEN]:
                trial = sample.trial(
                    shape(study),
                    config,
                    implementation.name,
                    operation=NAME,
                    device=device,
                    source_hash=implementation.source_hash,
                    number=len(found) + 1,
                    stage=stage,
                    race_id="race-1" if stage is Stage.RACE else "",
                    is_default=step == 1,
                    status=Status.OK if is_ok else Status.WRONG_RESULT,
                    timing=time if is_ok else None,
                )
                found.append(trial)
    return found


class _Recording:
    def __init__(self, trials: list[Trial]) -> None:
        self._trials = trials

    def trials(self) -> list[Trial]:
        return self._trials


def install(patch: pytest.MonkeyPatch, trials: list[Trial] | None = None) -> None:
    """Register the operation, without a GPU, and let only these sweeps be recorded: of all studies by default."""
    for registered in ("_operations", "_implementations"):
        patch.setattr(registry, registered, dict(getattr(registry, registered)))
    registry.register(NAME, f"{__name__}:OPERATION")
    for implementation in IMPLEMENTATIONS:
        registry.register_implementation(NAME, implementation.name, f"{__name__}:{implementation.name.upper()}")
    known = _Recording([row for study in range(STUDIES) for row in recorded(study)] if trials is None else trials)
    patch.setattr(select, "operation_names", lambda: [NAME])
    patch.setattr(select, "shipped_sweeps", lambda operation: [known])
    sample.hide_gpu(patch)
