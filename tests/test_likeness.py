"""Likeness of shapes to a config: what counts as a factor of two, what counts little, what parts kinds."""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

from autotune.device import NVIDIA_H200
from autotune.likeness import likeness
from autotune.shape import AttentionShape, PagedShape, Shape

DENSE = AttentionShape(batch=8, heads=32, seq_q=2048, head_dim=128, causal=True)
PAGED = PagedShape(batch=64, heads=32, kv_heads=8, max_context=4096, head_dim=128)


def apart(shape: Shape, **changes: Any) -> float:
    here, there = (likeness(each, NVIDIA_H200) for each in (shape, replace(shape, **changes)))
    assert here.distance(there) == there.distance(here)
    return here.distance(there)


@pytest.mark.parametrize(
    ("changes", "distance"),
    [
        ({}, 0.0),
        ({"seq_kv": 4096}, 1.0),
        ({"seq_q": 4096}, 1.0),
        ({"batch": 64}, 0.0),  # there are many tiles for each SM already
        ({"batch": 1, "heads": 8, "kv_heads": 8}, math.log2(8 / (8 * 32 / 132))),
        ({"kv_heads": 8}, 0.5),
        ({"softcap": True}, 1.0),
        ({"causal": False}, 1.0),
        ({"dtype": "float16"}, 1.0),
        ({"window": 512}, math.hypot(2.0, 1.0)),
        ({"head_dim": 96, "head_dim_v": 96}, math.hypot(math.log2(4 / 3), math.log2(4 / 3))),
        ({"head_dim": 64}, math.inf),
        ({"dtype": "float32"}, math.inf),
    ],
    ids=str,
)
def test_dense(changes: dict[str, Any], distance: float) -> None:
    assert apart(DENSE, **changes) == pytest.approx(distance)


@pytest.mark.parametrize(
    ("changes", "distance"),
    [
        ({"batch": 32}, 1.0),
        ({"max_context": 8192, "mean_context": 8192}, 1.0),
        ({"mean_context": 2048}, math.hypot(1.0, 2.0)),
        ({"seq_q": 4}, math.hypot(2.0, 1.0)),  # the default of several queries is another rule
        ({"page_size": 64}, 0.5),
        ({"layout": "HND"}, 1.0),
        ({"sinks": True}, 1.0),
        ({"dtype": "float16", "kv_dtype": "float16"}, 1.0),
        ({"kv_dtype": "int8"}, math.inf),
    ],
    ids=str,
)
def test_paged(changes: dict[str, Any], distance: float) -> None:
    assert apart(PAGED, **changes) == pytest.approx(distance)


def test_kinds_are_of_one_class_of_shapes() -> None:
    assert likeness(DENSE, NVIDIA_H200).distance(likeness(PAGED, NVIDIA_H200)) == math.inf


def test_a_gpu_with_more_sms_has_fewer_tiles_for_each() -> None:
    small = replace(DENSE, batch=1, heads=8, kv_heads=8)
    twice = replace(NVIDIA_H200, sm_count=264)
    assert likeness(small, NVIDIA_H200).distance(likeness(small, twice)) == pytest.approx(1.0)


def test_a_size_may_be_a_factor_of_two_beyond_what_is_recorded_and_features_are_shared() -> None:
    recorded = [likeness(replace(DENSE, seq_q=seq, seq_kv=seq), NVIDIA_H200) for seq in (1024, 4096)]

    def is_among(**changes: Any) -> bool:
        return likeness(replace(DENSE, **changes), NVIDIA_H200).is_among(recorded)

    assert is_among()
    assert is_among(seq_q=512)
    assert is_among(seq_kv=8192)
    assert not is_among(seq_q=500)
    assert not is_among(seq_kv=9000)
    assert not is_among(causal=False)
    assert not is_among(softcap=True)
    assert not likeness(DENSE, NVIDIA_H200).is_among([])


@dataclass(frozen=True, slots=True, kw_only=True)
class Line(Shape):
    """A shape of the user's own."""

    FAMILY: ClassVar[tuple[str, ...]] = ("dtype",)
    length: int
    dtype: str = "float16"

    def coordinates(self) -> tuple[float, ...]:
        return (math.log2(self.length),)


def test_a_shape_of_the_users_own_is_told_by_its_family_and_coordinates() -> None:
    assert apart(Line(length=8), length=32) == 2.0
    assert apart(Line(length=8), dtype="float32") == math.inf
