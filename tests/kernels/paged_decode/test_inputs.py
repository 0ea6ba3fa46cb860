"""The random problems of paged decode: lengths about their mean, pages in any order, NaN where nothing may be read."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

from autotune.kernels.paged_cache.layout import allocate_caches
from autotune.kernels.paged_decode.definition import DEFINITION
from autotune.kernels.paged_decode.inputs import NO_PAGE, SPARE_PAGES, CheckShape
from autotune.registry import load_definition
from autotune.shape import PagedShape


def shape_of(batch: int = 64, max_context: int = 8192, mean_context: int | None = None, **fields: object) -> PagedShape:
    sizes = {"batch": batch, "heads": 1, "head_dim": 8, "dtype": "float16", "max_context": max_context}
    return PagedShape(**{**sizes, **fields}, mean_context=mean_context)  # type: ignore[arg-type]


@pytest.mark.parametrize("mean", [200, 1000, 4096, 7000, 8192])
@pytest.mark.parametrize("batch", [8, 64])
def test_lengths_are_about_their_mean_and_one_is_the_longest(batch: int, mean: int) -> None:
    # One sequence of the longest alone is a mean of max_context / batch.
    lengths = DEFINITION.make_inputs(shape_of(batch, mean_context=mean), seed=3, device="cpu").seq_lens
    assert int(lengths.max()) == 8192
    assert int(lengths.min()) >= 1
    assert lengths.float().mean().item() == pytest.approx(max(mean, 8192 / batch), rel=0.1)


def test_one_long_sequence_among_short_ones_is_just_that() -> None:
    lengths = (
        DEFINITION.make_inputs(shape_of(64, 65536, 1500, page_size=64), seed=0, device="cpu").seq_lens.sort().values
    )
    short = (64 * 1500 - 65536) / 63
    assert lengths[-1] == 65536
    assert lengths[-2] <= 2 * short
    assert lengths[:-1].float().median().item() == pytest.approx(short, rel=0.1)


@pytest.mark.parametrize("data", ["normal", "large", "tails"])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_what_no_key_fills_is_nan_and_all_else_is_not(layout: str, data: str) -> None:
    shape = shape_of(9, 100, 40, page_size=7, layout=layout, kv_heads=1)
    inputs = DEFINITION.make_inputs(shape, seed=0, device="cpu", data=data)
    for cache in (inputs.k_cache, inputs.v_cache):
        slots = cache if layout == "NHD" else cache.transpose(1, 2)
        assert int((~slots.isnan()).all(3).all(2).sum()) == int(inputs.seq_lens.sum())
        assert slots.isnan().all(3).all(2).any(1).sum() >= SPARE_PAGES
        assert not cache.is_contiguous()  # keys and values share a buffer
        for sequence, length in enumerate(inputs.seq_lens.tolist()):
            pages = inputs.page_table[sequence]
            assert (pages[-(-length // 7) :] == NO_PAGE).all()
            assert not slots[pages[: -(-length // 7)].long()].flatten(0, 1)[:length].isnan().any()


def test_pages_are_shuffled_and_the_seed_decides() -> None:
    tables = [DEFINITION.make_inputs(shape_of(4, 300), seed=seed, device="cpu").page_table for seed in (0, 0, 1)]
    assert torch.equal(tables[0], tables[1])
    assert not torch.equal(tables[0], tables[2])
    used = tables[0][tables[0] >= 0]
    assert len(set(used.tolist())) == used.numel()
    assert not torch.equal(used, used.sort().values)


@pytest.mark.parametrize("page_size", [1, 16, 528])
def test_checks_hold_the_lengths_at_which_something_ends(page_size: int) -> None:
    _, edges = DEFINITION.check_shapes(shape_of(page_size=page_size, seq_q=2, window=9))
    lengths = DEFINITION.make_inputs(edges, seed=0, device="cpu").seq_lens.tolist()
    assert {0, 1, 2, page_size - 1, page_size, page_size + 1} <= set(lengths)
    assert any(length % 16 for length in lengths if length > 256)
    assert edges.page_size == page_size
    assert edges.window == 9


@pytest.mark.parametrize("operation", ["paged_decode", "paged_prefill"])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("heads", [(8, 1), (32, 8), (32, 32)])
def test_checks_run_the_binaries_of_the_shape(operation: str, layout: str, heads: tuple[int, int]) -> None:
    shape = PagedShape(batch=2, heads=heads[0], kv_heads=heads[1], max_context=1024, head_dim=64, layout=layout)
    own = allocate_caches(shape, 4, "meta")[0].stride()  # which a binary has in its code
    for check in load_definition(operation).check_shapes(shape):
        assert allocate_caches(check, 4, "meta")[0].stride() == own
        assert check.group == shape.group


# Query heads, KV heads, queries; HEADS, BLOCK_ROWS, BLOCK_K and PROGRAMS_PER_SM.
FLAT = [
    ((32, 8, 1), (1, 16, 64, 1)),
    ((32, 8, 1), (2, 16, 128, 1)),  # the default, and the winner of 64 sequences of 4096
    ((32, 8, 1), (2, 16, 128, 2)),
    ((32, 8, 1), (4, 16, 64, 1)),
    ((32, 32, 1), (1, 16, 32, 1)),
    ((32, 32, 1), (4, 16, 64, 2)),
    ((64, 64, 1), (16, 16, 256, 1)),
    ((8, 1, 1), (1, 16, 64, 2)),
    ((71, 1, 8), (1, 16, 64, 1)),
    ((71, 1, 8), (1, 64, 64, 1)),
    ((128, 8, 5), (1, 32, 64, 1)),
]


@pytest.mark.parametrize(("sizes", "config"), FLAT)
def test_a_flat_list_of_the_check_divides_sequences_and_its_programs_cross(
    sizes: tuple[int, int, int], config: tuple[int, int, int, int]
) -> None:
    (heads, kv_heads, seq_q), (tiled, rows, block_k, per_sm) = sizes, config
    shape = PagedShape(batch=64, heads=heads, kv_heads=kv_heads, seq_q=seq_q, max_context=8192, head_dim=128)
    _, edges = DEFINITION.check_shapes(shape)
    assert isinstance(edges, CheckShape)
    assert edges.sm_count is not None
    # What docs/paged-attention.md says of ``flat``, counted tile by tile.
    lanes = edges.kv_heads // tiled * math.ceil(tiled * edges.group * seq_q / rows)
    programs = max(1, per_sm * edges.sm_count // lanes)
    counts = [max(1, math.ceil(length / (block_k // tiled))) for length in edges.lengths]
    owners = [sequence for sequence, count in enumerate(counts) for _ in range(count)]
    share = math.ceil(len(owners) / programs)
    held = {(tile // share, sequence) for tile, sequence in enumerate(owners)}
    programs_of = [sum(owner == sequence for _, owner in held) for sequence in range(len(counts))]
    assert max(programs_of) > 1
    # Somebody ends a sequence and begins the next one in the middle of a share.
    assert any(before != after and tile % share for tile, (before, after) in enumerate(itertools.pairwise(owners), 1))


@pytest.mark.parametrize("data", ["normal", "large", "tails"])
def test_queries_rounded_as_the_documentation_says_move_the_statistic_within_its_slack(data: str) -> None:
    shape = shape_of(3, 300, heads=4, kv_heads=2, head_dim=64, kv_dtype="int8")
    inputs = DEFINITION.make_inputs(shape, seed=0, device="cpu", data=data)
    largest = inputs.q.double().abs().amax(-1, keepdim=True)
    rounded = replace(inputs, q=(inputs.q.double() / largest * 32639).round() / 32639 * largest)
    exact, moved = (DEFINITION.reference(each)[1] for each in (inputs, rounded))
    slack = DEFINITION.statistic_slack(inputs)
    assert 0.01 * slack < (moved - exact).abs().max().item() <= slack


@pytest.mark.parametrize("kv_dtype", ["float16", "float8_e4m3fn"])
def test_other_caches_have_no_slack(kv_dtype: str) -> None:
    inputs = DEFINITION.make_inputs(shape_of(2, 64, head_dim=64, kv_dtype=kv_dtype), seed=0, device="cpu")
    assert DEFINITION.statistic_slack(inputs) == 0.0
