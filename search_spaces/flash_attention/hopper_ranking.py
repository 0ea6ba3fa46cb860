"""The defaults of dense attention on Hopper as recordings have them, of ``gluon_hopper`` and of ``triton``.

Both implementations' candidates, the configs that came near the best of recorded shapes, are ranked together by
networks that were fitted to trials (``python -m benchmarks.fit_dense``), so that their order tells which implementation
is the faster, too. docs/dispatch.md has what they lose.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from autotune.device import Device
from autotune.dtypes import ITEM_BYTES
from autotune.search_spaces.flash_attention.hopper_features import features
from autotune.search_spaces.flash_attention.tile_times import LONGEST, class_of
from autotune.search_spaces.networks import Networks, name_of, networks_in, read_arrays
from autotune.shape import AttentionShape
from autotune.space import Config
from autotune.trial import Candidate

NETWORKS: Final = "hopper_networks.npz"
FEWEST_QUERIES: Final = 128  # the shortest recorded sequence has 129
KEPT: Final = 4096  # choices
KEPT_RANKS: Final = 16  # shapes, each of which a look-up asks for several times

_is_off = False  # while ``nothing_ranked``

Reject = Callable[[Config, AttentionShape, Device], str | None]
# The columns of keys and of values of a tile, and True with softcap, with a window, and with one that is not causal:
# what of a shape no other one stands for.
ShapeClass = tuple[int, int, bool, bool, bool]


def _arrays() -> Mapping[str, NDArray[Any]]:
    return read_arrays(__package__, NETWORKS)


@cache
def read_networks() -> Networks:
    """Return what ships; nothing is ranked where that is gone or damaged."""
    return networks_in(_arrays())


@cache
def candidates() -> tuple[Candidate, ...]:
    """List what is ranked."""
    return tuple(map(candidate_of, _arrays()["candidates"].tolist()))


def text_of(candidate: Candidate) -> str:
    """Return a candidate as a line of JSON."""
    return json.dumps([candidate.implementation, dict(candidate.config)])


def candidate_of(text: str) -> Candidate:
    """Return the candidate that ``text_of`` wrote."""
    implementation, config = json.loads(text)
    return Candidate(implementation, Config(config))


@cache
def _classes() -> frozenset[ShapeClass]:
    """Return the classes of which enough shapes are recorded; none where the file is gone or damaged."""
    listed = _arrays().get("classes", np.zeros((0, 5)))
    return frozenset((k, v, bool(cap), bool(window), bool(both)) for k, v, cap, window, both in listed.tolist())


@cache
def _recorded_choices() -> Mapping[str, int]:
    """Return what is chosen for recorded shapes, of which tables have hundreds, as places among the candidates."""
    return dict(zip(_arrays()["recorded"].tolist(), _arrays()["chosen"].tolist(), strict=True))


def forget() -> None:
    """Forget what was read and chosen, as after other networks were written."""
    for kept in (read_arrays, read_networks, candidates, _classes, _recorded_choices, _first_valid, _ranked):
        kept.cache_clear()


@contextmanager
def nothing_ranked() -> Iterator[None]:
    """Let defaults be rules, as while recordings are read that other networks are fitted to."""
    global _is_off
    before, _is_off = _is_off, True
    try:
        yield
    finally:
        _is_off = before


def class_of_shape(shape: AttentionShape) -> ShapeClass:
    """Return the class of a shape."""
    has_window = shape.window is not None
    return *class_of(shape), has_window, has_window and not shape.causal


def is_rankable(shape: AttentionShape, device: Device) -> bool:
    """Return True for prompts in 16 bits on Hopper, with no mask or bias but the usual ones."""
    return (
        device.has("wgmma")
        and ITEM_BYTES[shape.dtype] == 2
        and FEWEST_QUERIES <= shape.seq_q <= shape.seq_kv
        and shape.seq_q <= LONGEST
        and not (shape.attn_mask or shape.sinks or shape.kv_ends)
    )


def is_ranked(shape: AttentionShape, device: Device) -> bool:
    """Return True for rankable shapes of a class that is recorded."""
    return not _is_off and is_rankable(shape, device) and class_of_shape(shape) in _classes()


def first_valid(implementation: str, shape: AttentionShape, device: Device, reject: Reject) -> Config | None:
    """Return an implementation's best candidate that is valid; None where none is, or the shape is not ranked.

    It is kept, and that of recorded shapes ships.
    """
    if not is_ranked(shape, device):
        return None
    if (place := _recorded_choices().get(name_of(implementation, shape, device))) is not None:
        config = candidates()[place].config
        if reject(config, shape, device) is None:
            return config
    return _first_valid(implementation, shape, device, device.memory_mib, reject)


@lru_cache(maxsize=KEPT)
def _first_valid(
    implementation: str, shape: AttentionShape, device: Device, memory_mib: int, reject: Reject
) -> Config | None:
    """Choose, for a device that has so much memory, of which its identity has but the step."""
    own = (each.config for each in ranked(shape, device) if each.implementation == implementation)
    return next((config for config in own if reject(config, shape, device) is None), None)


def estimate(implementation: str, config: Config, shape: AttentionShape, device: Device) -> float | None:
    """Return a number in proportion to the expected time of a candidate, more where networks disagree; None of what is
    not ranked. It compares the candidates of one shape alone."""
    if not is_ranked(shape, device):
        return None
    rank = ranked(shape, device).get(Candidate(implementation, config))
    return None if rank is None else float(np.exp(rank))


def ranked(shape: AttentionShape, device: Device) -> Mapping[Candidate, float]:
    """Return the logarithm of what ``estimate`` returns of each candidate, the best first.

    Some may not be valid for the shape.

    Example:
        >>> from autotune.device import NVIDIA_H200
        >>> shape = AttentionShape(batch=4, heads=32, kv_heads=8, seq_q=4096, head_dim=128, causal=True)
        >>> next(iter(ranked(shape, NVIDIA_H200))).implementation
        'gluon_hopper'
    """
    return _ranked(shape, device, device.memory_mib)


@lru_cache(maxsize=KEPT_RANKS)
def _ranked(shape: AttentionShape, device: Device, memory_mib: int) -> Mapping[Candidate, float]:
    """Rank for a device that has so much memory."""
    listed = candidates()
    ranks = read_networks().rank(features(shape, device, listed))
    return {listed[place]: float(ranks[place]) for place in np.argsort(ranks, kind="stable")}
