"""The space of decode over latents in Gluon: its default, how small it is, what it refuses and rejects."""

import itertools
from dataclasses import replace
from typing import Any, Final

import pytest

from autotune.device import NVIDIA_H200
from autotune.errors import InvalidShapeError
from autotune.search_spaces.paged_decode.gluon_hopper_latent import IMPLEMENTATION, shared_bytes
from autotune.shape import LATENT_WIDTHS, PagedShape
from autotune.space import Config

SPACE: Final = IMPLEMENTATION.space


def shape_of(**fields: Any) -> PagedShape:
    sizes = {"batch": 64, "heads": 128, "max_context": 8192, "head_dim": 576, "page_size": 64}
    return PagedShape(**{**sizes, **fields})


def test_the_default_is_a_valid_config_of_a_small_space() -> None:
    sizes = itertools.product((1, 300), (1, 17, 100_000), LATENT_WIDTHS, (1, 16, 128), (1, 3), (1, 16, 64, 528))
    for batch, context, head_dim, heads, seq_q, page in sizes:
        fields = {"batch": batch, "max_context": context, "head_dim": head_dim, "heads": heads, "seq_q": seq_q}
        shape = shape_of(**fields, page_size=page)
        configs = list(SPACE.configs(shape, NVIDIA_H200))
        assert SPACE.default(shape, NVIDIA_H200) in configs, shape
        assert len(configs) <= 26
        assert all(len(SPACE.hints(config, shape, NVIDIA_H200)) == 2 for config in configs)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, Config(NUM_SPLITS=1, slots=2)),  # 128 programs
        ({"heads": 16}, Config(NUM_SPLITS=2, slots=2)),
        ({"batch": 1}, Config(NUM_SPLITS=32, slots=2)),
        ({"head_dim": 320}, Config(NUM_SPLITS=1, slots=4)),
        ({"head_dim": 288, "mean_context": 4096}, Config(NUM_SPLITS=4, slots=4)),
        ({"batch": 1, "max_context": 128}, Config(NUM_SPLITS=1, slots=2)),
        ({"page_size": 1, "max_context": 2048}, Config(NUM_SPLITS=1, slots=2)),  # top-k indices
    ],
    ids=str,
)
def test_the_default_follows_the_sizes(fields: dict[str, Any], expected: Config) -> None:
    assert SPACE.default(shape_of(**fields), NVIDIA_H200) == expected


REFUSED: Final[list[tuple[dict[str, Any], str, str]]] = [
    ({"head_dim": 128, "kv_heads": 8}, "sm_90", "not of latents, which paged_decode/gluon_hopper_latent computes"),
    ({}, "sm_80", "paged_decode/gluon_hopper_latent needs products of warp groups, which sm_80 does not have"),
    ({}, "sm_100", "needs products of warp groups, which sm_100 does not have"),
    ({"page_size": 2}, "sm_90", "copies pages of one key or of multiples of 16, and the shape has page_size=2"),
    ({"page_size": 24}, "sm_90", "copies pages of one key or of multiples of 16, and the shape has page_size=24"),
    ({"window": 512}, "sm_90", "computes no window, which no model with latents has"),
    ({"softcap": True}, "sm_90", "computes no softcap"),
    ({"alibi": True}, "sm_90", "computes no alibi"),
    ({"kv_dtype": "float8_e4m3fn"}, "sm_90", "kv_dtype='float8_e4m3fn' is not supported for latents"),
]


@pytest.mark.parametrize(("fields", "arch", "reason"), REFUSED)
def test_what_it_does_not_compute_has_no_config(fields: dict[str, Any], arch: str, reason: str) -> None:
    shape, device = shape_of(**fields), replace(NVIDIA_H200, name=arch, arch=arch)
    assert reason in (IMPLEMENTATION.supports(shape, device) or "")
    assert reason in (SPACE.reject(Config(NUM_SPLITS=1, slots=2), shape, device) or "")
    with pytest.raises(InvalidShapeError) as refused:
        SPACE.default(shape, device)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("change", "shape", "reason"),
    [
        ({}, {}, None),
        ({"slots": 4}, {}, "queries and tiles take 370688 bytes of shared memory, sm_90 has 232448"),
        ({"slots": 4}, {"head_dim": 320}, None),
        ({"slots": 4}, {"head_dim": 288}, None),
        ({"NUM_SPLITS": 32}, {"max_context": 1024}, "NUM_SPLITS=32 of at most 8 tiles"),
        ({"NUM_SPLITS": 24}, {}, "NUM_SPLITS=24 makes 3072 programs, more than 16 for each of 132 SMs"),
        ({"NUM_SPLITS": 2}, {"batch": 1}, "NUM_SPLITS=2 makes 4 programs, which leave most of 132 SMs idle"),
        ({"NUM_SPLITS": 8}, {"batch": 8, "mean_context": 20}, "NUM_SPLITS=8: partial results of 2097152"),
    ],
)
def test_reject_names_the_value_and_the_limit(
    change: dict[str, Any], shape: dict[str, Any], reason: str | None
) -> None:
    config = Config({"NUM_SPLITS": 1, "slots": 2, **change})
    found = SPACE.why_invalid(config, shape_of(**shape), NVIDIA_H200)
    assert found is None if reason is None else reason in (found or "")


def test_weights_lie_in_the_place_of_what_is_beside_a_latent() -> None:
    config = Config(NUM_SPLITS=1, slots=2)
    assert shared_bytes(config, shape_of()) == 3 * 64 * 576 * 2 + 2048
    assert shared_bytes(config, shape_of(head_dim=288)) == 3 * 64 * 288 * 2 + 2 * 64 * 64 * 2 + 2048
