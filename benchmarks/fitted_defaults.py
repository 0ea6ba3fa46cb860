"""Defaults that are fitted to recordings, and what each lost at shapes that it was fitted without."""

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from autotune.device import Device
from autotune.implementation import Implementation
from autotune.search_spaces.flash_attention import hopper_ranking
from autotune.search_spaces.flash_attention.triton import usual_config
from autotune.search_spaces.flash_attention.usual_schedule import usual_schedule
from autotune.search_spaces.networks import name_of
from autotune.search_spaces.paged_decode import decode_ranking
from autotune.shape import AttentionShape, Shape
from autotune.space import Config

DECODE_NETWORKS: Final = Path(decode_ranking.__file__).resolve().parent / decode_ranking.NETWORKS
HOPPER_NETWORKS: Final = Path(hopper_ranking.__file__).resolve().parent / hopper_ranking.NETWORKS
# By the implementation's title: a file of arrays, ``left_out`` of names and ``left_out_regret`` among them.
FITTED: Final[dict[str, Path]] = {
    "paged_decode/triton": DECODE_NETWORKS,
    "flash_attention/gluon_hopper": HOPPER_NETWORKS,
    "flash_attention/triton": HOPPER_NETWORKS,
}


def usual_default(implementation: Implementation[Any], shape: AttentionShape, device: Device) -> Config:
    """Return the default of dense attention by the rule that is left where recordings rank nothing."""
    rule = {"gluon_hopper": usual_schedule, "triton": usual_config}.get(
        implementation.name, implementation.space.default
    )
    return rule(shape, device)


def is_fitted(implementation: Implementation[Any], shape: Shape) -> bool:
    """Return True if what an implementation's default is for a shape was fitted to what is recorded of it, on any
    device."""
    return implementation.title in FITTED and (implementation.name, repr(shape)) in _fitted(
        FITTED[implementation.title]
    )


def left_out_loss(implementation: Implementation[Any], shape: Shape, device: Device) -> float | None:
    """Return what was lost at a shape by a default that was fitted without it, 0.02 for 2 %; None where too few configs
    were timed on the device to say."""
    lost = _losses(FITTED[implementation.title]).get(name_of(implementation.name, shape, device), math.nan)
    return None if math.isnan(lost) else lost


@cache
def _losses(path: Path) -> Mapping[str, float]:
    with np.load(path, allow_pickle=False) as arrays:
        return dict(zip(arrays["left_out"].tolist(), arrays["left_out_regret"].tolist(), strict=True))


@cache
def _fitted(path: Path) -> frozenset[tuple[str, str]]:
    """Return the implementations and shapes, on any device, that something was fitted to."""
    parts = (name.split(": ", 2) for name in _losses(path))
    return frozenset((implementation, shape) for implementation, _, shape in parts)
