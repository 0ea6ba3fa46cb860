"""Both PagedAttentions of Gaudi against fp64, as plain functions, with poison in all that they must not use."""

import itertools
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import pytest
import torch

from autotune.errors import UsageError
from autotune.kernels.baselines.gaudi.paged import (
    build_block_table,
    build_blocks,
    copy_used,
    flat_paged_attention,
    initial_paged_attention,
    used_pages,
)
from tests.kernels.baselines.gaudi.problems import (
    LARGEST_EXP,
    PADDING_PAGE,
    Expected,
    Problem,
    Tensors,
    attention,
    draw,
    error_limit,
)

Run = Callable[[Tensors], torch.Tensor]


def flat(tensors: Tensors, *, bucket: int) -> torch.Tensor:
    blocks = build_blocks(
        tensors.page_table,
        tensors.seq_lens,
        page_size=tensors.k_cache.shape[1],
        dtype=tensors.q.dtype,
        bucket=bucket,
        padding_page=PADDING_PAGE,
    )
    assert blocks.pages.shape[0] % bucket == 0
    return flat_paged_attention(tensors.q, tensors.k_cache, tensors.v_cache, blocks, scale=tensors.scale)


def initial(tensors: Tensors, *, join_values: bool) -> torch.Tensor:
    block_table = build_block_table(
        tensors.page_table, tensors.seq_lens, page_size=tensors.k_cache.shape[1], padding_page=PADDING_PAGE
    )
    k_cache, v_cache = (cache.permute(0, 2, 3, 1).contiguous() for cache in (tensors.k_cache, tensors.v_cache))
    return initial_paged_attention(
        tensors.q, k_cache, v_cache, block_table, tensors.seq_lens, scale=tensors.scale, join_values=join_values
    )


ALGORITHMS: Final[dict[str, Run]] = {
    "flat": lambda tensors: flat(tensors, bucket=1),
    "flat-bucket-8": lambda tensors: flat(tensors, bucket=8),
    "initial-split": lambda tensors: initial(tensors, join_values=False),
    "initial-joined": lambda tensors: initial(tensors, join_values=True),
}
BATCHES: Final[dict[str, dict[str, Any]]] = {
    "ragged-page-16": {"lengths": (37, 1, 5, 64, 49), "page_size": 16},
    "ragged-page-128": {"lengths": (300, 1, 128, 256), "page_size": 128},
    "ragged-page-7": {"lengths": (22, 6, 8, 50), "page_size": 7},
    "ones-page-16": {"lengths": (1, 1, 1), "page_size": 16},
    "full-page-16": {"lengths": (16, 48, 32), "page_size": 16},
    "empty-page-7": {"lengths": (0, 15, 0, 7), "page_size": 7},
    "long-and-short-page-16": {"lengths": (2, 250, 15), "page_size": 16},
}
HEADS: Final[dict[str, dict[str, Any]]] = {
    "mha": {"heads": 4, "kv_heads": 4},
    "gqa": {"heads": 6, "kv_heads": 2, "head_dim": 24, "head_dim_v": 40},
    "mqa": {"heads": 5, "kv_heads": 1, "head_dim": 64},
}
DTYPES: Final = {"fp32": torch.float32, "bf16": torch.bfloat16}
LOGITS: Final[dict[str, Callable[[int], tuple[int, ...]]]] = {
    "1x": lambda batch: (),
    "60x": lambda batch: tuple(range(batch)),
    "60x-of-one": lambda batch: (1,),  # beside which a maximum over the batch would leave the others nothing
}
PROBLEMS: Final = {
    "-".join(names): Problem(
        **BATCHES[names[0]],
        **HEADS[names[1]],
        dtype=DTYPES[names[2]],
        boosted=LOGITS[names[3]](len(BATCHES[names[0]]["lengths"])),
    )
    for names in itertools.product(BATCHES, HEADS, DTYPES, LOGITS)
}


@cache
def expected_of(problem: Problem) -> Expected:
    return attention(draw(problem))


def check(run: Run, problem: Problem, device: str) -> None:
    expected = expected_of(problem)
    found = run(draw(problem, device)).cpu()
    assert (found.shape, found.dtype) == (expected.out.shape, problem.dtype)
    error = (found.double() - expected.out).abs()
    assert bool((error <= error_limit(expected, problem.dtype)).all()), f"error of {float(error.max()):.2g}"


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
@pytest.mark.parametrize("run", ALGORITHMS.values(), ids=ALGORITHMS)
def test_attention_is_that_of_fp64(run: Run, problem: Problem) -> None:
    check(run, problem, "cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA or ROCm device")
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
@pytest.mark.parametrize("name", ["flat-bucket-8", "initial-split"])
def test_attention_is_that_of_fp64_on_a_gpu(name: str, problem: Problem) -> None:
    check(ALGORITHMS[name], problem, "cuda")


@pytest.mark.parametrize("name", [name for name in PROBLEMS if name.startswith("ragged") and name.endswith("60x")])
def test_boosted_logits_overflow_what_subtracts_no_maximum(name: str) -> None:
    assert expected_of(PROBLEMS[name]).largest_logit > LARGEST_EXP


@pytest.mark.parametrize("run", ALGORITHMS.values(), ids=ALGORITHMS)
def test_a_batch_of_nothing_is_zero(run: Run) -> None:
    found = run(draw(Problem(lengths=(0, 0), page_size=16)))
    assert torch.equal(found, torch.zeros(2, 4, 32))


TABLE: Final = torch.tensor([[7, 3, -1], [-1, -1, -1], [5, 10**6, -1], [2, 4, 6]], dtype=torch.int32)
LENGTHS: Final = torch.tensor([6, 0, 4, 9], dtype=torch.int32)


def test_blocks_list_the_pages_in_use_and_what_fills_the_bucket() -> None:
    blocks = build_blocks(TABLE, LENGTHS, page_size=4, dtype=torch.bfloat16, bucket=4, padding_page=1)
    assert blocks.pages.tolist() == [7, 3, 5, 2, 4, 6, 1, 1]
    assert blocks.groups.tolist() == [0, 0, 2, 3, 3, 3, 4, 4]
    assert blocks.mapping.dtype == torch.bfloat16
    assert blocks.mapping.tolist() == [[float(group == row) for row in range(4)] for group in blocks.groups.tolist()]
    assert blocks.bias.dtype == torch.float32
    assert (blocks.bias == 0).sum(1).tolist() == [4, 2, 4, 4, 4, 1, 1, 1]
    assert blocks.bias[1].tolist() == [0.0, 0.0, -torch.inf, -torch.inf]


@pytest.mark.parametrize(("bucket", "count"), [(1, 6), (2, 6), (5, 10), (6, 6), (128, 128)])
def test_blocks_fill_whole_buckets(bucket: int, count: int) -> None:
    blocks = build_blocks(TABLE, LENGTHS, page_size=4, dtype=torch.float32, bucket=bucket)
    assert {len(part) for part in blocks} == {count}
    assert blocks.pages[6:].tolist() == [0] * (count - 6)
    assert int(blocks.mapping.sum()) == 6


def test_a_bucket_of_no_blocks_is_refused() -> None:
    with pytest.raises(UsageError, match="bucket=0 is not allowed"):
        build_blocks(TABLE, LENGTHS, page_size=4, dtype=torch.float32, bucket=0)


def test_a_block_table_ends_with_the_longest_sequence() -> None:
    table = build_block_table(TABLE, LENGTHS, page_size=4, padding_page=1)
    assert table.tolist() == [[7, 3, 1], [1, 1, 1], [5, 1, 1], [2, 4, 6]]
    table = build_block_table(TABLE[:3], LENGTHS[:3], page_size=4)
    assert table.tolist() == [[7, 3], [0, 0], [5, 0]]
    assert build_block_table(TABLE[1:2], LENGTHS[1:2], page_size=4).tolist() == [[0]]


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_a_copied_cache_holds_tokens_and_zeros(layout: str) -> None:
    tokens = {6: 4, 1: 2, 5: 2}  # of each page in use
    table = torch.tensor([[6, 1], [6, 2], [5, 0], [5, 0]])  # sequences share pages, as far as each of them reaches
    used = used_pages(table, torch.tensor([6, 3, 1, 2]), page_size=4)
    cache = torch.full((8, 4, 2, 3), torch.nan)
    for page, count in tokens.items():
        cache[page, :count] = torch.arange(1.0, count * 6 + 1).view(count, 2, 3)
    given = cache if layout == "NHD" else cache.transpose(1, 2).contiguous()
    copied = copy_used(given, used, layout=layout)
    assert torch.equal(copied, cache.nan_to_num(0.0))
    assert copied.is_contiguous()
