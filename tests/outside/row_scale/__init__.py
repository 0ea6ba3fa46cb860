"""A package outside the tree with an operation of its own: rows that are divided by their root mean square."""

from collections.abc import Callable
from typing import Any, Final

import pytest

from autotune import registry
from autotune.own_kernels import OwnKernels
from autotune.trial import Stage, Trial
from tests import sample
from tests.outside.row_scale.space import IMPLEMENTATION, RowShape

NAME: Final = IMPLEMENTATION.operation
REFERENCES: Final = {
    "operation": "tests.outside.row_scale.space:OPERATION",
    "implementation": "tests.outside.row_scale.space:IMPLEMENTATION",
}


def isolate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Know what is ours alone, and forget for later tests what one registers."""
    for registered in ("_operations", "_implementations"):
        ours = {name: path for name, path in getattr(registry, registered).items() if path.startswith("autotune.")}
        monkeypatch.setattr(registry, registered, ours)
    monkeypatch.setattr(registry, "_registering", {})
    monkeypatch.setattr(registry, "_kernels", OwnKernels())


def register(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the operation and its implementation, for one test."""
    isolate(monkeypatch)
    registry.register(NAME, REFERENCES["operation"])
    registry.register_implementation(NAME, IMPLEMENTATION.name, REFERENCES["implementation"])


def sweep(shape: RowShape, microseconds: Callable[[int], float] = float) -> list[Trial]:
    """A sweep, screened and raced: the time of a config is a function of its rows at once."""
    device, fields = sample.trial().device, {"source_hash": IMPLEMENTATION.source_hash}
    configs = list(IMPLEMENTATION.space.configs(shape, device))
    default: Any = microseconds(configs[0].integer("ROWS"))
    return [
        sample.trial(
            shape,
            config,
            IMPLEMENTATION.name,
            operation=NAME,
            number=2 * number + (stage is Stage.RACE),
            stage=stage,
            race_id="race-1" if stage is Stage.RACE else "",
            timing=sample.timing(microseconds(config.integer("ROWS"))),
            default_timing=sample.timing(default),
            is_default=config == configs[0],
            **fields,
        )
        for number, config in enumerate(configs)
        for stage in (Stage.SCREEN, Stage.RACE)
    ]
