"""A package outside the tree that adds attention in plain torch to ``flash_attention``, and a recording of it."""

from typing import Any, Final

import pytest

from autotune import registry
from autotune.trial import Stage, Trial
from tests import sample
from tests.outside.naive_space import IMPLEMENTATION

NAME: Final = IMPLEMENTATION.name
REFERENCE: Final = "tests.outside.naive_space:IMPLEMENTATION"


def register(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register it, for one test."""
    monkeypatch.setattr(registry, "_implementations", dict(registry._implementations))
    registry.register_implementation("flash_attention", NAME, REFERENCE)


def recorded(seq: int, microseconds: float) -> list[Trial]:
    """A sweep of the added implementation, which was raced together with ours."""
    fields: dict[str, Any] = {"source_hash": IMPLEMENTATION.source_hash, "default_timing": sample.timing(microseconds)}
    configs = list(IMPLEMENTATION.space.configs(sample.shape(seq), sample.trial().device))
    return [
        sample.trial(
            sample.shape(seq),
            config,
            NAME,
            number=10_000 + 10 * number + (stage is Stage.RACE),
            stage=stage,
            race_id="race-1" if stage is Stage.RACE else "",
            timing=sample.timing(microseconds + number),
            is_default=config == configs[0],
            **fields,
        )
        for number, config in enumerate(configs)
        for stage in (Stage.SCREEN, Stage.RACE)
    ]
