"""The space of paged decode: its default everywhere, what it rejects and why, and its cost against counting."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pytest
import torch

from autotune.device import ARCHITECTURES, NVIDIA_H200
from autotune.dtypes import QUERY_DTYPES
from autotune.errors import InvalidShapeError
from autotune.kernels.paged_decode.inputs import shuffled_lengths
from autotune.models import MODELS
from autotune.search_spaces.paged_decode.decode_default import preferred
from autotune.search_spaces.paged_decode.operation import cost, lengths_of
from autotune.search_spaces.paged_decode.triton import IMPLEMENTATION
from autotune.shape import PagedShape
from autotune.space import Config

SPACE = IMPLEMENTATION.space
DEVICES = {arch: replace(NVIDIA_H200, name=arch, arch=arch) for arch in (*ARCHITECTURES, "sm_999", "gfx9999")}


def shape_of(**fields: Any) -> PagedShape:
    sizes = {"batch": 64, "heads": 32, "kv_heads": 8, "max_context": 8192, "head_dim": 128}
    return PagedShape(**{**sizes, **fields})


@pytest.mark.parametrize(
    ("mean", "schedule"), [(8192, "split"), (7680, "split"), (6600, "split"), (6144, "flat"), (4096, "flat")]
)
def test_sequences_that_are_nearly_as_long_as_the_longest_are_split_as_even_ones(mean: int, schedule: str) -> None:
    """As those of a page table that nearly fills. At three quarters of the longest, what suits even ones took 1.07 to
    1.20 times the best (``decode_work.NEARLY_FULL``)."""
    config = SPACE.default(shape_of(mean_context=mean), NVIDIA_H200)
    assert config["schedule"] == schedule
    assert (config == SPACE.default(shape_of(), NVIDIA_H200)) == (schedule == "split")


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES.keys())
def test_the_default_is_a_valid_config_everywhere(device: Any) -> None:
    sizes = itertools.product((1, 300), (1, 15, 17, 100_000), (8, 72, 128, 256, 512), QUERY_DTYPES)
    for batch, context, head_dim, dtype in sizes:
        for heads, kv_heads in ((1, 1), (71, 1), (128, 128)):
            shape = shape_of(batch=batch, max_context=context, head_dim=head_dim, dtype=dtype, seq_q=3)
            shape = replace(shape, heads=heads, kv_heads=kv_heads)
            for each in (shape, replace(shape, head_dim_v=256, mean_context=max(1, context // 4))):
                config = SPACE.default(each, device)
                assert SPACE.why_invalid(config, each, device) is None, each
                assert SPACE.why_outside(config, device) is None, each


@pytest.mark.parametrize(
    ("fields", "rows", "splits"),
    [
        ({}, 16, 1),
        ({"batch": 1}, 16, 16),
        ({"batch": 1, "seq_q": 2}, 16, 1),
        ({"batch": 1, "heads": 40, "kv_heads": 1}, 64, 16),
    ],
    ids=str,
)
def test_what_people_write_by_hand(fields: dict[str, Any], rows: int, splits: int) -> None:
    (config,) = SPACE.heuristics(shape_of(**fields), NVIDIA_H200)
    assert (config["BLOCK_ROWS"], config["BLOCK_K"], config["NUM_SPLITS"]) == (rows, 32, splits)
    assert SPACE.why_outside(config, NVIDIA_H200) is None


REFUSED: Final[list[tuple[dict[str, Any], str, str]]] = [
    ({"kv_dtype": "float32"}, "sm_90", "kv_dtype='float32' is not supported by paged_decode with dtype='bfloat16'"),
    ({"kv_dtype": "int8", "dtype": "float32"}, "sm_90", "expected float32"),
    ({"seq_q": 9}, "sm_90", "seq_q=9 is not supported by paged_decode; expected 1 to 8"),
    ({"kv_dtype": "float8_e4m3fn"}, "sm_86", "needs conversions that sm_86 lacks"),
    ({"kv_dtype": "float8_e4m3fn"}, "sm_87", "needs conversions that sm_87 lacks"),
]


@pytest.mark.parametrize(("fields", "arch", "reason"), REFUSED)
def test_the_default_refuses_what_the_kernel_cannot(fields: dict[str, Any], arch: str, reason: str) -> None:
    shape = shape_of(**fields)
    with pytest.raises(InvalidShapeError) as refused:
        SPACE.default(shape, DEVICES[arch])
    assert reason in str(refused.value)


@pytest.mark.slow  # every config of the space is refused, one by one
@pytest.mark.parametrize(("fields", "arch"), [refused[:2] for refused in REFUSED])
def test_there_are_no_configs_of_what_the_kernel_cannot(fields: dict[str, Any], arch: str) -> None:
    assert list(SPACE.configs(shape_of(**fields), DEVICES[arch])) == []


@pytest.mark.parametrize("kv_dtype", ["float8_e4m3fn", "float8_e5m2", "int8"])
def test_the_default_takes_quantized_caches(kv_dtype: str) -> None:
    shape = shape_of(kv_dtype=kv_dtype)
    assert SPACE.why_invalid(SPACE.default(shape, NVIDIA_H200), shape, NVIDIA_H200) is None


@pytest.mark.parametrize("arch", ["sm_86", "sm_90", pytest.param("gfx942", marks=pytest.mark.slow)])
def test_configs_are_valid_unique_and_hold_the_default(arch: str) -> None:
    device, shape = DEVICES[arch], shape_of()
    configs = list(SPACE.configs(shape, device))
    assert len(configs) == len(set(configs)) > 100
    assert SPACE.default(shape, device) in configs
    assert {config["schedule"] for config in configs} == {"split", "flat"}
    assert all(len(SPACE.hints(config, shape, device)) == 4 for config in configs)


FLAT = SPACE.default(shape_of(mean_context=4096), NVIDIA_H200)
SPLIT = Config({**SPACE.default(shape_of(), NVIDIA_H200), "HEADS": 1, "BLOCK_K": 64, "num_warps": 4})


@pytest.mark.parametrize(
    ("change", "shape", "arch", "reason"),
    [
        ({}, {}, "sm_90", None),
        ({}, {"max_context": 32}, "sm_90", "BLOCK_K=64 is longer than the padded context of 32 for HEADS=1"),
        ({"BLOCK_K": 16, "num_warps": 2}, {}, "sm_90", "BLOCK_K=16 is shorter than 32"),
        ({"BLOCK_K": 32, "num_warps": 8}, {}, "sm_90", "BLOCK_K=32 gives some of num_warps=8 no column"),
        ({"NUM_SPLITS": 32}, {"max_context": 1024}, "sm_90", "NUM_SPLITS=32 of at most 16 tiles"),
        ({"NUM_SPLITS": 8}, {"batch": 8, "mean_context": 20}, "sm_90", "NUM_SPLITS=8: partial results of 16384 bytes"),
        ({"NUM_SPLITS": 8}, {}, "sm_90", "NUM_SPLITS=8 makes 4096 programs, more than 16 for each of 132 SMs"),
        ({"NUM_SPLITS": 4}, {"batch": 1}, "sm_90", "NUM_SPLITS=4 makes 32 programs, which leave most of 132 SMs idle"),
        ({"NUM_SPLITS": 4}, {"batch": 1, "max_context": 256}, "sm_90", None),
        ({"NUM_SPLITS": 16, "COMBINE": "last"}, {"batch": 1}, "sm_90", "COMBINE=last: one program would merge"),
        ({"COMBINE": "last"}, {}, "sm_90", "COMBINE=last change nothing: NUM_SPLITS=1"),
        ({"NUM_SPLITS": 2, "PARTIALS": "bfloat16"}, {}, "sm_90", "PARTIALS=bfloat16 of NUM_SPLITS=2"),
        ({"NUM_SPLITS": 2, "PARTIALS": "float16"}, {}, "sm_90", "PARTIALS=float16 is neither float32 nor the dtype"),
        ({"HEADS": 3}, {}, "sm_90", "HEADS=3 is not one of"),
        ({"HEADS": 4}, {"heads": 12, "kv_heads": 6}, "sm_90", "HEADS=4 does not divide the 6 KV heads"),
        ({"HEADS": 8}, {}, "sm_90", "HEADS=8 has 32 rows, more than the 16 that a tile has anyhow"),
        ({"BLOCK_ROWS": 32}, {}, "sm_90", "BLOCK_ROWS=32 is more than the padded 4 rows of HEADS=1"),
        ({"BLOCK_K": 256, "num_warps": 2}, {}, "sm_90", "loads of 16 bytes a tile, more than 32"),
        ({"BLOCK_K": 32, "num_warps": 1}, {"seq_q": 8, "head_dim": 512}, "sm_90", "fp32 values a thread stay live"),
        ({"num_stages": 6}, {}, "sm_86", "K and V tiles take 163840 bytes of shared memory, sm_86 has 101376"),
        ({"num_stages": 1}, {}, "sm_90", "num_stages=1 has no load in flight"),
    ],
)  # fmt: skip
def test_reject_names_the_value_and_the_limit(
    change: dict[str, Any], shape: dict[str, Any], arch: str, reason: str | None
) -> None:
    found = SPACE.why_invalid(Config({**SPLIT, **change}), shape_of(**shape), DEVICES[arch])
    assert found is None if reason is None else reason in (found or "")


SMALL: Final = {"batch": 1, "max_context": 1024}
RAGGED: Final = {"max_context": 1024, "mean_context": 256}
MULTI_HEAD: Final = {"heads": 32, "kv_heads": 32}


@pytest.mark.parametrize(
    ("fields", "tile", "splits"),
    [
        ({}, (2, 64, 4), 1),  # 256 programs, of four warps
        ({"batch": 32}, (2, 128, 8), 1),  # 128, of eight
        ({"batch": 16}, (1, 128, 8), 1),  # as many
        ({"batch": 16, **MULTI_HEAD}, (2, 64, 4), 1),
        ({"batch": 64, **MULTI_HEAD}, (8, 128, 8), 1),
        ({"batch": 32, "head_dim": 64}, (2, 256, 8), 1),
        ({"head_dim": 256}, (1, 32, 4), 1),
        ({"batch": 32, "heads": 8, "kv_heads": 4, "head_dim": 256}, (2, 32, 4), 4),  # two programs an SM
        ({"batch": 16, "heads": 8, "kv_heads": 4, "head_dim": 256}, (2, 32, 4), 8),
        ({"kv_dtype": "float8_e4m3fn", "batch": 16}, (2, 128, 4), 4),  # 256 programs
        ({"batch": 8}, (2, 64, 4), 8),  # 256 programs of two KV heads
        ({"batch": 1}, (1, 64, 4), 32),
        ({**SMALL, "max_context": 1}, (1, 32, 4), 1),
        ({"batch": 128, "max_context": 8}, (4, 32, 4), 1),  # no eight warps for a tile that the context cuts
        ({**SMALL, "seq_q": 8, "max_context": 300, "kv_dtype": "int8"}, (1, 32, 4), 4),  # eight outweigh what they read
        ({**SMALL, "heads": 8, "kv_heads": 1}, (1, 32, 4), 32),  # each has an SM of its own
        ({**SMALL, "heads": 8, "kv_heads": 1, "kv_dtype": "float8_e4m3fn"}, (1, 32, 4), 16),  # reads half as many bytes
        (SMALL, (1, 32, 4), 16),
        ({**SMALL, "window": 128}, (1, 32, 4), 6),  # a tile each, of those that are read
        ({**SMALL, "head_dim": 64, "window": 128}, (1, 128, 4), 1),  # all of it in one tile
        ({"batch": 32, "head_dim": 64, "window": 128}, (1, 32, 4), 1),  # little is read: two programs an SM
        ({"batch": 128, "heads": 64, "head_dim": 64, "window": 128}, (2, 64, 4), 1),
        ({"batch": 2, "heads": 64, "head_dim": 64, "max_context": 2330}, (1, 64, 4), 16),
        ({**SMALL, "batch": 2, "head_dim": 256}, (1, 32, 4), 8),
        ({"batch": 2, "heads": 71, "kv_heads": 1, "head_dim": 64}, (1, 64, 4), 64),  # many rows
        ({**RAGGED, "batch": 4}, (1, 32, 4), 16),
        ({**RAGGED, "batch": 4, **MULTI_HEAD}, (1, 32, 4), 12),  # three programs an SM in the mean
        ({**RAGGED, "batch": 8, **MULTI_HEAD}, (2, 64, 4), None),  # more sequences than SMs
        (RAGGED, (1, 64, 4), 1),
        ({"batch": 29, "max_context": 587, "mean_context": 293}, (2, 64, 4), None),
        ({**RAGGED, "batch": 128, "head_dim": 64}, (2, 128, 4), 1),
        ({**RAGGED, "heads": 128, "head_dim": 64}, (1, 128, 4), 1),  # two tiles in the mean, of half the width
        ({**RAGGED, "batch": 4, "heads": 16, "head_dim": 256}, (1, 32, 4), 8),
        ({**RAGGED, "batch": 4, "heads": 8, "kv_heads": 4, "head_dim": 256}, (1, 32, 4), 8),
        ({"batch": 4, "mean_context": 2048}, (2, 64, 4), None),  # long, and in equal shares
        ({"batch": 4, "heads": 8, "kv_heads": 1, "mean_context": 2048}, (1, 64, 4), None),
        ({"mean_context": 4096}, (2, 64, 4), None),
        ({"mean_context": 4096, "window": 512}, (2, 64, 4), 1),  # all read as much
    ],
    ids=str,
)
def test_keys_are_spread_over_the_sms(fields: dict[str, Any], tile: tuple[int, int, int], splits: int | None) -> None:
    """As on a GPU with an H200's memory and SMs, of which nothing is recorded."""
    config = preferred(shape_of(**fields), NVIDIA_H200)[0]
    assert (config["HEADS"], config["BLOCK_K"], config["num_warps"]) == tile
    assert config["NUM_SPLITS"] == splits


@pytest.mark.parametrize("batch", [1, 61])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("longest", [92, 1024, 8192])
def test_a_window_that_hides_nothing_changes_nothing(longest: int, head_dim: int, batch: int) -> None:
    for mean in (longest // 32, longest // 4, longest):
        shape = shape_of(batch=batch, max_context=longest, mean_context=mean, head_dim=head_dim)
        assert SPACE.default(replace(shape, window=8192), NVIDIA_H200) == SPACE.default(shape, NVIDIA_H200)


def test_windows_over_uneven_lengths_are_spread_by_what_they_leave() -> None:
    """A batch whose window three quarters fill took 1.2 times as long as if all did (NVIDIA H200, 2026-11-27)."""
    fields = {"batch": 128, "heads": 32, "kv_heads": 16, "max_context": 16384, "window": 4096}
    assert preferred(shape_of(**fields, mean_context=4096), NVIDIA_H200)[0]["schedule"] == "flat"
    assert preferred(shape_of(**fields, mean_context=12000), NVIDIA_H200)[0]["schedule"] == "split"


@pytest.mark.parametrize(
    ("batch", "sm_count", "tile"),
    [
        (24, 132, (1, 64, 4)),  # 192 programs, all at once
        (64, 114, (2, 64, 4)),  # 256
        (100, 132, (1, 128, 8)),  # 800, one an SM at a time: 7 times, the last nearly full
        (128, 132, (4, 128, 8)),  # 256, twice
    ],
)
def test_whole_sequences_are_all_resident_or_end_evenly(batch: int, sm_count: int, tile: tuple[int, int, int]) -> None:
    config = preferred(shape_of(batch=batch), replace(NVIDIA_H200, sm_count=sm_count))[0]
    assert (config["HEADS"], config["BLOCK_K"], config["num_warps"], config["NUM_SPLITS"]) == (*tile, 1)


def named_decodes() -> Iterator[PagedShape]:
    """Yield decodes of every model with a cache: short and long contexts, even and not, one query and several."""
    models = [model for model in MODELS.values() if model.has_cache]
    sizes = itertools.product((1, 8, 64), (1, 8, 128, 1000, 32768), (1, 4), (1, 8), ("bfloat16", "int8"))
    for model, (batch, context, unevenness, seq_q, kv_dtype) in itertools.product(models, sizes):
        fields = {"max_context": context, "mean_context": -(-context // unevenness), "page_size": 16}
        yield model.shape(PagedShape, batch=batch, seq_q=min(seq_q, context), kv_dtype=kv_dtype, **fields)


@pytest.mark.parametrize("arch", ["sm_90", "sm_80", "gfx942"])
def test_what_the_default_prefers_is_valid(arch: str) -> None:
    """And so no shape falls to what was meant for another kind."""
    device = DEVICES[arch]
    for shape in named_decodes():
        assert SPACE.why_invalid(preferred(shape, device)[0], shape, device) is None, shape


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_larger_tiles_of_broad_heads_are_valid(dtype: str) -> None:
    """None takes more loads than a thread holds, or more splits than there are tiles, and so gives way to shares."""
    for batch, heads, context in itertools.product((1, 8, 16), (8, 64), (256, 587, 8192, 131072)):
        shape = shape_of(batch=batch, heads=heads, kv_heads=heads // 8, max_context=context, head_dim=256, dtype=dtype)
        assert preferred(shape, NVIDIA_H200)[0]["schedule"] == "split", shape


def test_many_partial_results_are_narrow() -> None:
    """In a short context fewer are many, of caches of 8 bits more are few."""
    few, many = (shape_of(batch=1, max_context=2**17, kv_heads=4, heads=heads) for heads in (4, 28))
    assert [preferred(shape, NVIDIA_H200)[0]["PARTIALS"] for shape in (few, many)] == ["float32", "bfloat16"]
    few, many = (shape_of(batch=1, max_context=1024, kv_heads=4, heads=heads) for heads in (8, 28))
    assert [preferred(shape, NVIDIA_H200)[0]["PARTIALS"] for shape in (few, many)] == ["float32", "bfloat16"]
    for other in ({"dtype": "float32"}, {"kv_dtype": "int8"}):
        exact = shape_of(batch=1, max_context=2**17, kv_heads=4, heads=28, **other)
        assert preferred(exact, NVIDIA_H200)[0]["PARTIALS"] == "float32", other


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_120", "gfx942"])
def test_large_tiles_are_for_large_shared_memory(arch: str) -> None:
    config = SPACE.default(shape_of(), DEVICES[arch])
    assert (config["BLOCK_K"], config["num_warps"]) == (32 if arch in ("sm_86", "sm_120") else 64, 4)


def test_idle_work_counts_what_a_window_leaves() -> None:
    shape = shape_of(batch=1, window=128)
    few = Config({**SPLIT, "BLOCK_K": 32, "NUM_SPLITS": 2})
    assert SPACE.why_invalid(few, shape, NVIDIA_H200) is None
    assert "leave most of 132 SMs idle" in (SPACE.why_invalid(few, replace(shape, window=None), NVIDIA_H200) or "")


def test_more_programs_than_tiles_are_refused() -> None:
    few = shape_of(batch=1, max_context=1024)
    reason = SPACE.why_invalid(Config({**FLAT, "PROGRAMS_PER_SM": 8}), few, NVIDIA_H200)
    assert "programs of a KV head for at most" in (reason or "")
    assert SPACE.why_invalid(Config({**FLAT, "PROGRAMS_PER_SM": 8}), shape_of(batch=9), NVIDIA_H200) is None


def test_parameters_of_a_schedule_exist_under_their_schedule_alone() -> None:
    for config in SPACE.configs(shape_of(), NVIDIA_H200):
        assert (config["NUM_SPLITS"] is None) == (config["schedule"] == "flat")
        assert (config["PROGRAMS_PER_SM"] is None) == (config["schedule"] == "split")
        assert (config["COMBINE"] is None) == (config["PARTIALS"] is None) == (config["schedule"] == "flat")


@pytest.mark.parametrize("window", [None, 1, 4, 100])
@pytest.mark.parametrize("seq_q", [1, 3])
@pytest.mark.parametrize("context", [1, 2, 5, 50])
@pytest.mark.parametrize("width", [128, 512])
def test_cost_is_what_counting_says(context: int, seq_q: int, window: int | None, width: int) -> None:
    """Over the lengths of random inputs."""
    shape = shape_of(max_context=64, mean_context=context, seq_q=seq_q, window=window, head_dim=width, head_dim_v=64)
    lengths = shuffled_lengths(shape, torch.Generator().manual_seed(0)).tolist()
    seen = [
        (sequence, query, key)
        for sequence, length in enumerate(lengths)
        for query in range(length - seq_q, length)
        for key in range(length)
        if key <= query and query - key < (window or length)
    ]
    keys = {(sequence, key) for sequence, _, key in seen}
    assert cost(shape).flops == 32 * len(seen) * (2 * width + 2 * 64)
    queries = 64 * 32 * seq_q * (width + 64) * 2
    assert cost(shape).bytes == queries + 8 * len(keys) * (width + 64) * 2


def test_inputs_have_the_lengths_of_the_cost_in_another_order_for_each_seed() -> None:
    shape = shape_of(max_context=64, mean_context=20)
    first, second = (shuffled_lengths(shape, torch.Generator().manual_seed(seed)).tolist() for seed in (0, 1))
    assert first != second
    assert sorted(first) == sorted(second) == list(lengths_of(shape))


def test_a_window_sees_less_of_uneven_lengths_than_of_their_mean() -> None:
    """A time that is right was refused as faster than the memory, by the bytes of sequences of their mean."""
    even, uneven = (
        shape_of(batch=128, max_context=longest, mean_context=4096, window=4096) for longest in (4096, 16384)
    )
    assert 0.5 * cost(even).bytes < cost(uneven).bytes < 0.8 * cost(even).bytes
