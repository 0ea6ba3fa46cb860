"""The random problems of paged prefill: queries as asked for, over the caches of paged decode."""

from dataclasses import replace

import pytest

from autotune.kernels.paged_prefill.definition import DEFINITION
from autotune.kernels.paged_prefill.inputs import CheckShape, check_shape
from autotune.search_spaces.paged_prefill.operation import query_counts
from autotune.shape import PagedShape

SHAPE = PagedShape(batch=6, heads=4, kv_heads=2, seq_q=20, max_context=300, mean_context=120, head_dim=8)


def test_every_sequence_has_as_many_queries_and_no_fewer_keys() -> None:
    inputs = DEFINITION.make_inputs(replace(SHAPE, mean_context=300), seed=0, device="cpu")
    assert inputs.q.shape == (120, 4, 8)
    assert inputs.cu_seqlens_q.tolist() == [0, 20, 40, 60, 80, 100, 120]
    assert inputs.seq_lens.tolist() == [300] * 6
    assert not inputs.q.isnan().any()


def test_a_ragged_batch_is_one_chunk_among_sequences_that_decode() -> None:
    inputs = DEFINITION.make_inputs(SHAPE, seed=0, device="cpu")
    assert inputs.cu_seqlens_q.tolist() == [0, 1, 2, 3, 4, 5, 120]
    assert inputs.seq_lens[-1] >= 115
    assert int(inputs.seq_lens.max()) == 300
    assert query_counts(replace(SHAPE, seq_q=80)) == (1, 1, 1, 1, 1, 300)
    assert query_counts(replace(SHAPE, batch=1)) == (20,)


def test_the_queries_are_those_that_were_asked_for() -> None:
    inputs = DEFINITION.make_inputs(check_shape(SHAPE, (30, 0, 9), (4, 0, 11)), seed=0, device="cpu", data="large")
    assert inputs.cu_seqlens_q.tolist() == [0, 4, 4, 15]
    assert inputs.seq_lens.tolist() == [30, 0, 9]
    assert inputs.q.float().std() == pytest.approx(6.0, rel=0.2)


@pytest.mark.parametrize("page_size", [1, 16, 528])
def test_checks_hold_the_lengths_at_which_something_ends(page_size: int) -> None:
    shape = PagedShape(batch=6, heads=40, kv_heads=10, seq_q=500, max_context=4096, head_dim=8, page_size=page_size)
    chunks, edges = DEFINITION.check_shapes(shape)
    assert isinstance(chunks, CheckShape)
    assert isinstance(edges, CheckShape)
    assert max(chunks.query_lengths) * shape.group > 256
    assert {0, 1, page_size - 1, page_size, page_size + 1} <= set(edges.lengths)
    pairs = list(zip(edges.lengths, edges.query_lengths, strict=True))
    assert any(length < queries for length, queries in pairs)
    assert any(queries == 0 for _, queries in pairs)
    assert any(queries == 1 < length for length, queries in pairs)
    assert edges.group == shape.group
