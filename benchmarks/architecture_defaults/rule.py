"""The rule that ranks tiles of attention by what their binaries take, and what it costs where times are recorded."""

import math
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from autotune.device import Device
from autotune.shape import Shape
from autotune.space import Config
from autotune.trial import Resources, Trial
from benchmarks.architecture_defaults.occupancy import blocks_at_once
from benchmarks.recorded_shapes import RecordedShape

MIN_KEYS: Final = 32  # tiles of 16 keys took 1.4 times as long and more than the best without descriptors, heads of 256
MIN_WARPS: Final = 8  # two for each scheduler: one computes while the other waits
MIN_STAGES: Final = 3  # two tiles in flight, of which one is computed; where copies are asynchronous
ALONE: Final = 0.5  # a block that is alone on its SM waits at its barriers with nothing beside it

Merit = tuple[float, ...]


class Ranked(NamedTuple):
    """A config, its binaries' resources, the blocks of it that an SM holds, and its merit by the rule."""

    config: Config
    resources: Resources
    blocks: int
    merit: Merit

    @property
    def warps(self) -> int:
        """The warps that an SM holds at once."""
        return self.blocks * self.config.integer("num_warps")

    @property
    def is_poor(self) -> bool:
        """Return True if it spills, or an SM holds fewer warps than the rule wants."""
        return bool(self.resources.spill_bytes) or self.warps < MIN_WARPS


def rank(compiled: Mapping[Config, Resources], device: Device) -> list[Ranked]:
    """Order configs by the rule, the best first.

    In this order count: that a block fits an SM; the warps on an SM, up to eight; the fewest bytes spilled (of heads of
    256 by pointers on sm_90, eight warps that spill 40 to 96 bytes take less time than four that spill nothing); tiles
    of at least 32 keys; a pipeline of three stages, where copies are asynchronous; the most scores that an SM computes
    at once (rows of queries times rows of keys times blocks, half of that for a lone block); the most warps; the fewest
    stages; the fewest registers. The rule and its constants are those that come nearest the best on the sweeps of
    sm_90.
    """
    found = []
    for config, resources in compiled.items():
        blocks = blocks_at_once(resources, config.integer("num_warps"), device.architecture)
        found.append(Ranked(config, resources, blocks, _merit(config, resources, blocks, device)))
    return sorted(found, key=lambda each: each.merit, reverse=True)


def _merit(config: Config, resources: Resources, blocks: int, device: Device) -> Merit:
    names = ("BLOCK_Q" if "BLOCK_Q" in config else "BLOCK_ROWS", "BLOCK_K", "num_warps", "num_stages")
    rows, keys, warps, stages = (config.integer(name) for name in names)
    return (
        blocks > 0,
        min(blocks * warps, MIN_WARPS),
        -(resources.spill_bytes or 0),
        keys >= MIN_KEYS,
        stages >= MIN_STAGES or not device.has("async_copies"),
        rows * keys * blocks * (ALONE if blocks == 1 else 1.0),
        blocks * warps,
        -stages,
        -(resources.registers or 0),
    )


class RuleCost(NamedTuple):
    """The rule's choice of a recorded shape: its time over that of the best config, and over that of the best with the
    same kind of loads."""

    shape: Shape
    config: Config
    of_all: float
    of_its_loads: float


def cost(recording: RecordedShape, trials: Iterable[Trial], configs: Iterable[Config]) -> RuleCost:
    """Return what the rule loses on a sweep, choosing among some of its configs that were timed."""
    known = {trial.config: trial.outcome.resources for trial in trials if trial.outcome.resources.registers is not None}
    compiled = {each: known[each] for each in configs if recording.ratios.get(each, math.inf) < math.inf}
    chosen = rank(compiled, recording.device)[0].config
    alike = min(ratio for config, ratio in recording.ratios.items() if config["loads"] == chosen["loads"])
    ratio = recording.ratios[chosen]
    return RuleCost(recording.shape, chosen, ratio, ratio / alike)
