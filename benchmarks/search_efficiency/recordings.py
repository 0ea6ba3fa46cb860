"""Recorded sweeps as arrays: the times of compiling, judging and running every config of a space."""

import math
import zlib
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal

import numpy as np

from autotune.device import Device
from autotune.implementation import Implementation
from autotune.registry import get_implementation
from autotune.search.pace import cold_compile_seconds
from autotune.shape import AttentionShape
from autotune.space import Config
from autotune.table import shipped_sweeps
from autotune.trial import Outcome, Stage, Status, Trial
from benchmarks.fitted_defaults import usual_default
from benchmarks.search_efficiency.metrics import Floats, RandomSearch

Half = Literal["training", "held-out"]
HALVES: Final[tuple[Half, Half]] = ("training", "held-out")


@dataclass(frozen=True)
class Recording:
    """One sweep. Arrays are in the order of ``outcomes``, and an index into them stands for a config.

    ``times_us`` is NaN where a config failed; ``compile_seconds`` are those of a cold cache.
    """

    name: str
    half: Half
    implementation: Implementation[Any]
    shape: AttentionShape
    device: Device
    outcomes: tuple[Outcome, ...]
    times_us: Floats
    compile_seconds: Floats
    judge_seconds: Floats

    @property
    def size(self) -> int:
        return len(self.outcomes)

    @cached_property
    def index(self) -> dict[Config, int]:
        return {outcome.config: index for index, outcome in enumerate(self.outcomes)}

    @cached_property
    def default(self) -> int:
        """The index of the space's default, as it is where nothing is recorded: what ships knows the sweeps."""
        return self.index[usual_default(self.implementation, self.shape, self.device)]

    def seed(self, number: int) -> int:
        """Return the seed of a run: the sweep's own, or sweeps of one space would all begin with the same draws."""
        return zlib.crc32(f"{self.name}:{number}".encode())

    @cached_property
    def random_search(self) -> RandomSearch:
        return RandomSearch(self.times_us)

    @property
    def budget(self) -> int:
        """The evaluations of a sampler: half of the configs, or more where the P score looks further."""
        return max(math.ceil(self.size / 2), self.random_search.budget)


def load(operation: str = "flash_attention", implementation: str = "triton") -> list[Recording]:
    """Return every shipped sweep over attention shapes, by name; raise ValueError for one of another space."""
    found = get_implementation(operation, implementation)
    screened: dict[str, list[Trial]] = {}
    for sweep in shipped_sweeps(operation, implementation=implementation):
        name = f"{operation}{sweep.name.removeprefix(implementation)}"  # seeds are made of it
        screened[name] = [trial for trial in sweep.trials() if trial.stage is Stage.SCREEN]
    shapes = {name: rows[0].shape for name, rows in screened.items() if isinstance(rows[0].shape, AttentionShape)}
    outcomes = {name: tuple(row.outcome for row in screened[name]) for name in shapes}
    compiled = cold_compile_seconds([((s.head_dim, s.causal), outcomes[name]) for name, s in shapes.items()])
    halves = split(shapes)
    recordings = [
        Recording(
            name=name,
            half=halves[name],
            implementation=found,
            shape=shape,
            device=screened[name][0].device,
            outcomes=outcomes[name],
            times_us=np.array([_time(outcome) for outcome in outcomes[name]]),
            compile_seconds=np.array(seconds),
            judge_seconds=np.array([outcome.judge_seconds or 0.0 for outcome in outcomes[name]]),
        )
        for (name, shape), seconds in zip(shapes.items(), compiled, strict=True)
    ]
    for recording in recordings:
        if set(recording.index) != set(found.space.configs(recording.shape, recording.device)):
            name = recording.name
            raise ValueError(f"{name} was recorded for another space; record it again: python -m benchmarks.record")
    return sorted(recordings, key=lambda recording: recording.name)


def split(shapes: dict[str, AttentionShape]) -> dict[str, Half]:
    """Divide the sweeps into halves, by a rule that was fixed before any sampler was compared.

    Sweeps of one head_dim and mask form a family and share binaries. Within a family, by name, they alternate between
    the halves, so both halves have every family; which half begins alternates over head dims and masks like a
    chessboard, or one half would get all the short sequences.
    """
    families = defaultdict(list)
    for name in sorted(shapes):
        families[shapes[name].head_dim, shapes[name].causal].append(name)
    head_dims = sorted({shape.head_dim for shape in shapes.values()})
    return {
        name: HALVES[(head_dims.index(head_dim) + causal + position) % 2]
        for (head_dim, causal), names in families.items()
        for position, name in enumerate(names)
    }


def _time(outcome: Outcome) -> float:
    return outcome.timing.median_us if outcome.status is Status.OK and outcome.timing else math.nan
