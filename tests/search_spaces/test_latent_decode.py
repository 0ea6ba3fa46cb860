"""The space of paged decode over latents: its default everywhere, what it rejects and why, and the cost of latents."""

import itertools
from dataclasses import replace
from typing import Any, Final

import pytest

from autotune.device import ARCHITECTURES, NVIDIA_H200
from autotune.errors import InvalidShapeError
from autotune.registry import get_implementation
from autotune.search_spaces.paged_decode.operation import cost
from autotune.search_spaces.paged_decode.triton_latent import IMPLEMENTATION, shared_bytes
from autotune.search_spaces.paged_prefill.operation import unsupported as unsupported_prefill
from autotune.shape import LATENT_WIDTHS, PagedShape
from autotune.space import Config

SPACE = IMPLEMENTATION.space
DEVICES = {arch: replace(NVIDIA_H200, name=arch, arch=arch) for arch in (*ARCHITECTURES, "sm_999", "gfx9999")}


def shape_of(**fields: Any) -> PagedShape:
    sizes = {"batch": 64, "heads": 128, "max_context": 8192, "head_dim": 576, "page_size": 64}
    return PagedShape(**{**sizes, **fields})


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES.keys())
def test_the_default_is_a_valid_config_everywhere(device: Any) -> None:
    sizes = itertools.product((1, 300), (1, 17, 100_000), LATENT_WIDTHS, (1, 16, 128), (1, 3))
    for batch, context, head_dim, heads, seq_q in sizes:
        shape = shape_of(batch=batch, max_context=context, head_dim=head_dim, heads=heads, seq_q=seq_q)
        for each in (shape, replace(shape, page_size=1, mean_context=max(1, context // 3))):
            assert IMPLEMENTATION.supports(each, device) is None
            assert SPACE.why_invalid(SPACE.default(each, device), each, device) is None, each


@pytest.mark.parametrize(
    ("fields", "tile", "splits"),
    [
        ({}, (64, 64, 8, 2), 1),  # 128 programs
        ({"page_size": 1}, (64, 32, 8, 3), 1),
        ({"heads": 16}, (16, 64, 8, 3), 2),
        ({"heads": 16, "seq_q": 2}, (32, 64, 8, 3), 2),
        ({"heads": 16, "batch": 1}, (16, 64, 8, 3), 32),
        ({"head_dim": 320}, (128, 64, 8, 3), 2),
        ({"head_dim": 288, "heads": 40}, (64, 64, 8, 3), 2),
        ({"batch": 100}, (64, 64, 8, 2), 3),  # 600 programs are 4.5 waves: five of a third, not two of the whole
        ({"mean_context": 4096}, (64, 64, 8, 2), 4),
        ({"batch": 1, "max_context": 64}, (64, 64, 8, 2), 1),
    ],
    ids=str,
)
def test_the_default_follows_the_sizes(fields: dict[str, Any], tile: tuple[int, ...], splits: int) -> None:
    config = SPACE.default(shape_of(**fields), NVIDIA_H200)
    found = tuple(config[name] for name in ("BLOCK_ROWS", "BLOCK_K", "num_warps", "num_stages"))
    assert (found, config["NUM_SPLITS"]) == (tile, splits)


REFUSED: Final[list[tuple[dict[str, Any], str, str]]] = [
    ({"head_dim": 128, "kv_heads": 8}, "sm_90", "head_dim=128 with head_dim_v=128 is not of latents"),
    (
        {"kv_dtype": "float8_e4m3fn"},
        "sm_90",
        "kv_dtype='float8_e4m3fn' is not supported for latents; expected bfloat16",
    ),
    ({"seq_q": 9}, "sm_90", "seq_q=9 is not supported by paged_decode; expected 1 to 8"),
    ({"dtype": "float32"}, "sm_90", "dtype='float32' is not supported for latents, which leave it no registers"),
]


@pytest.mark.parametrize(("fields", "arch", "reason"), REFUSED)
def test_what_it_does_not_compute_has_no_config(fields: dict[str, Any], arch: str, reason: str) -> None:
    shape, device = shape_of(**fields), DEVICES[arch]
    assert reason in (IMPLEMENTATION.supports(shape, device) or "")
    assert reason in (SPACE.reject(DEFAULT, shape, device) or "")
    with pytest.raises(InvalidShapeError) as refused:
        SPACE.default(shape, device)
    assert reason in str(refused.value)


DEFAULT: Final = SPACE.default(shape_of(), NVIDIA_H200)


@pytest.mark.parametrize(
    ("change", "shape", "arch", "reason"),
    [
        ({}, {}, "sm_90", None),
        ({"BLOCK_ROWS": 32}, {"heads": 16}, "sm_90", "BLOCK_ROWS=32 is more than the padded 16 rows of a sequence"),
        ({}, {"max_context": 32}, "sm_90", "BLOCK_K=64 is longer than the padded context of 32"),
        ({"num_warps": 4}, {}, "sm_90", "288 fp32 values a thread stay live, more than the 160"),
        ({"BLOCK_ROWS": 128}, {}, "sm_90", "288 fp32 values a thread stay live"),
        ({"BLOCK_K": 16}, {}, "sm_90", "BLOCK_K=16 is fewer than the 32 keys that two warp groups share"),
        ({"num_stages": 3}, {}, "sm_90", "queries and tiles take 303104 bytes of shared memory, sm_90 has 232448"),
        ({"num_stages": 3}, {}, "sm_80", "sm_80 has 166912"),
        ({}, {}, "sm_100", "BLOCK_ROWS=64 has an accumulator in tensor memory"),
        ({"SCORES": "shared"}, {}, "sm_90", None),
        ({"SCORES": "shared", "BLOCK_ROWS": 32}, {}, "sm_90", "SCORES=shared is of two warp groups on 64 rows, not of"),
        ({"SCORES": "shared"}, {"head_dim": 320}, "sm_80", "SCORES=shared is of two warp groups on 64 rows, not of 8"),
        ({"num_stages": 1}, {}, "sm_90", "num_stages=1 has no load in flight"),
        ({"NUM_SPLITS": 32}, {"max_context": 1024}, "sm_90", "NUM_SPLITS=32 of at most 16 tiles"),
        ({"NUM_SPLITS": 24}, {}, "sm_90", "NUM_SPLITS=24 makes 3072 programs, more than 16 for each of 132 SMs"),
        ({"NUM_SPLITS": 2}, {"batch": 1}, "sm_90", "NUM_SPLITS=2 makes 4 programs, which leave most of 132 SMs idle"),
        ({"NUM_SPLITS": 8}, {"batch": 8, "mean_context": 20}, "sm_90", "NUM_SPLITS=8: partial results of 2097152"),
    ],
)  # fmt: skip
def test_reject_names_the_value_and_the_limit(
    change: dict[str, Any], shape: dict[str, Any], arch: str, reason: str | None
) -> None:
    found = SPACE.why_invalid(Config({**DEFAULT, **change}), shape_of(**shape), DEVICES[arch])
    assert found is None if reason is None else reason in (found or "")


def test_configs_are_valid_unique_and_hold_the_default() -> None:
    for fields in ({}, {"heads": 16}, {"head_dim": 288}):
        shape = shape_of(**fields)
        configs = list(SPACE.configs(shape, NVIDIA_H200))
        assert len(configs) == len(set(configs)) > 40
        assert SPACE.default(shape, NVIDIA_H200) in configs
        assert all(len(SPACE.hints(config, shape, NVIDIA_H200)) == 4 for config in configs)
        (heuristic,) = SPACE.heuristics(shape, NVIDIA_H200)
        assert SPACE.why_outside(heuristic, NVIDIA_H200) is None


def test_shared_memory_is_that_of_what_was_compiled() -> None:
    compiled = {(64, 64, 2): 224, (64, 32, 3): 184, (16, 64, 3): 164, (32, 32, 2): 74, (64, 16, 2): 128}
    shape = shape_of()
    for (rows, keys, stages), kib in compiled.items():
        assert shared_bytes(shape, NVIDIA_H200, rows=rows, keys=keys, stages=stages) == kib * 1024


def test_a_latent_is_read_once() -> None:
    shape = shape_of()
    latents = 64 * 8192 * 576 * 2
    queries = 64 * 128 * (576 + 512) * 2
    assert cost(shape).bytes == latents + queries
    assert cost(shape).flops == 2 * 64 * 128 * 8192 * (576 + 512)
    half = replace(shape, head_dim=512, head_dim_v=512, heads=128)  # keys and values of as many heads, apart
    assert cost(half).bytes == 64 * 8192 * 1024 * 2 + 64 * 128 * 1024 * 2


def test_other_implementations_and_prefill_refuse_latents_and_say_what_reads_them() -> None:
    shape = shape_of()
    reason = get_implementation("paged_decode", "triton").supports(shape, NVIDIA_H200)
    assert reason == "head_dim=576 is of latents, which are keys and values at once: paged_decode/triton_latent"
    assert "head_dim=576 is of latents, which paged_prefill does not read" in (unsupported_prefill(shape) or "")
