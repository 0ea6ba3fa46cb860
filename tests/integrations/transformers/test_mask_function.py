"""The mask function reads transformers' patterns, and plans which keys each query sees."""

from itertools import pairwise
from typing import Any, Final

import pytest
import torch
from transformers import masking_utils as theirs

from autotune.errors import InputMismatchError, UnsupportedCallError
from autotune.integrations.transformers.mask_function import MaskPlan, mask_function, plan_of
from autotune.integrations.transformers.mask_pattern import MaskPattern, read_pattern
from autotune.integrations.transformers.packed_rows import has_holes, pack_padded, pack_sequences
from autotune.integrations.transformers.score_operand import refuse_packed

CAUSAL: Final = theirs.causal_mask_function


def plan(queries: int, keys: int, **given: Any) -> MaskPlan:
    found = plan_of(mask_function(2, queries, keys, **{"mask_function": CAUSAL} | given))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("theirs_is", "pattern"),
    [
        (CAUSAL, MaskPattern(causal=True)),
        (theirs.bidirectional_mask_function, MaskPattern()),
        (theirs.sliding_window_causal_mask_function(4), MaskPattern(causal=True, window=4)),
        (theirs.sliding_window_bidirectional_mask_function(4), MaskPattern(window=5)),
        (theirs.chunked_causal_mask_function(8, torch.zeros(2)), MaskPattern(causal=True, chunk_size=8)),
    ],
    ids=["causal", "both ways", "window", "window both ways", "chunks"],
)
def test_patterns_are_read(theirs_is: Any, pattern: MaskPattern) -> None:
    assert read_pattern(theirs_is) == pattern


def test_packed_sequences_are_read() -> None:
    positions = torch.tensor([[0, 1, 2, 0, 1]])
    sequences = theirs.find_packed_sequence_indices(positions)
    remapped = theirs.remap_positions_for_packed_sequence(CAUSAL, positions)
    found = read_pattern(theirs.and_masks(remapped, theirs.packed_sequence_mask_function(sequences)))
    assert found.causal
    assert found.sequences is sequences


@pytest.mark.parametrize(
    ("unknown", "name"),
    [
        (theirs.or_masks(CAUSAL, CAUSAL), "or_masks.or_mask"),
        (theirs.and_masks(CAUSAL, theirs.blockwise_overlay(torch.zeros(1))), "blockwise_overlay.inner_mask"),
        (lambda *indices: True, "<lambda>"),
    ],
)
def test_a_pattern_that_is_not_known_is_refused_by_name(unknown: Any, name: str) -> None:
    with pytest.raises(UnsupportedCallError, match=f"has the part .*{name}"):
        mask_function(2, 4, 4, mask_function=unknown)


def test_the_empty_slots_of_a_static_cache_are_not_seen() -> None:
    assert plan(4, 16).keys == 4  # the first part of a prompt
    assert plan(4, 16, q_offset=torch.tensor(4)).keys == 8  # the second
    assert plan(1, 16, q_offset=9).keys == 10  # a token


def test_the_keys_of_a_sliding_cache_begin_later() -> None:
    found = plan(1, 5, q_offset=9, kv_offset=5, mask_function=theirs.sliding_window_causal_mask_function(5))
    assert (found.keys, found.window) == (5, None)


def test_queries_behind_the_keys_are_refused() -> None:
    with pytest.raises(InputMismatchError, match="queries end at 8, and keys are from 0 to 4"):
        plan(4, 4, q_offset=4)


def test_chunks_are_refused_once_there_are_two() -> None:
    chunks = theirs.chunked_causal_mask_function(4, torch.zeros(2))
    assert plan(4, 4, mask_function=chunks).causal
    with pytest.raises(UnsupportedCallError, match="attention_chunk_size=4 is not computed for 5 tokens"):
        plan(5, 5, mask_function=chunks)


def test_a_mask_without_padding_packs_nothing() -> None:
    assert plan(4, 4, attention_mask=torch.ones(2, 4, dtype=torch.bool)).packing is None
    empty_slots = torch.tensor([[True] * 4 + [False] * 4] * 2)
    assert plan(4, 8, attention_mask=empty_slots).packing is None


def test_padding_is_packed_away() -> None:
    mask = torch.tensor([[True, True, True], [False, False, True]])
    packing = plan(2, 8, q_offset=1, attention_mask=mask).packing  # two tokens more, over a static cache
    assert packing is not None
    assert packing.queries is not None
    assert packing.keys is not None
    assert [index.tolist() for index in packing.queries] == [[0, 0, 1], [0, 1, 1]]
    assert [index.tolist() for index in packing.keys] == [[0, 0, 0, 1], [0, 1, 2, 2]]
    assert (packing.offsets_q.tolist(), packing.offsets_k.tolist()) == ([0, 2, 3], [0, 3, 4])
    assert (packing.longest_q, packing.longest_k) == (2, 3)
    assert packing.offsets_q.dtype == torch.int32


def test_padding_sees_what_all_see_where_nothing_is_causal() -> None:
    packing = pack_padded(None, torch.tensor([[True, False], [False, False]]), 3)
    assert packing.queries is None
    assert (packing.offsets_q.tolist(), packing.offsets_k.tolist()) == ([0, 3, 6], [0, 1, 1])


def test_sequences_do_not_go_on_in_the_next_row() -> None:
    packing = pack_sequences(torch.tensor([[0, 0, 1, 1], [0, 0, 0, 1]]))
    assert packing.offsets_q.tolist() == packing.offsets_k.tolist() == [0, 2, 4, 7, 8]
    assert packing.longest_q == 3


PACKED_ROWS: Final = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 2, 2, 2]])
PADDED: Final = {
    "right": torch.tensor([[1, 1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1, 1, 0]]).bool(),
    "left": torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1, 1, 1]]).bool(),
    "between": torch.tensor([[1, 1, 0, 1, 1, 1, 0, 0], [1, 0, 1, 1, 0, 1, 0, 0]]).bool(),
}


def seen_by(found: MaskPlan) -> torch.Tensor:
    """Return which keys each query sees, as ``attention_varlen`` does by a plan's packing."""
    packing = found.packing
    assert packing is not None
    every = torch.ones(found.batch, found.keys).nonzero(as_tuple=True)
    queries, keys = (torch.stack(index or every, dim=1) for index in (packing.queries, packing.keys))
    seen = torch.zeros(found.batch, found.q_length, found.keys, dtype=torch.bool)
    ends = zip(pairwise(packing.offsets_q.tolist()), pairwise(packing.offsets_k.tolist()), strict=True)
    for (first_q, end_q), (first_k, end_k) in ends:
        shift = (end_k - first_k) - (end_q - first_q)
        for i, (row, place) in enumerate(queries[first_q:end_q].tolist()):
            for j, (key_row, key) in enumerate(keys[first_k:end_k].tolist()):
                assert key_row == row
                seen[row, place, key] = not found.causal or j <= i + shift
    return seen


@pytest.mark.parametrize("side", PADDED)
@pytest.mark.parametrize("pattern", [CAUSAL, theirs.bidirectional_mask_function], ids=["causal", "both ways"])
def test_packed_sequences_keep_apart_where_padding_is_packed_away(pattern: Any, side: str) -> None:
    both = theirs.and_masks(pattern, theirs.packed_sequence_mask_function(PACKED_ROWS))
    found = plan(8, 8, mask_function=both, attention_mask=PADDED[side])
    visible = (PACKED_ROWS[:, :, None] == PACKED_ROWS[:, None]) & PADDED[side][:, None]
    if found.causal:
        visible &= torch.ones(8, 8).tril().bool() & PADDED[side][:, :, None]  # padding's own queries get 0
    assert torch.equal(seen_by(found), visible)
    assert found.is_shared
    with pytest.raises(UnsupportedCallError, match="over sequences that are packed in rows is not computed"):
        refuse_packed(found, found.packing)


def test_packed_sequences_over_keys_of_other_tokens_are_refused_beside_padding() -> None:
    both = theirs.and_masks(CAUSAL, theirs.packed_sequence_mask_function(PACKED_ROWS))
    with pytest.raises(
        UnsupportedCallError, match=r"packed sequences \(2, 8\) .* 4 queries from 4 on and 8 keys from 0"
    ):
        plan(4, 8, q_offset=4, mask_function=both, attention_mask=PADDED["right"])


def test_a_window_over_padding_between_tokens_is_refused() -> None:
    mask = torch.tensor([[True, False, True, True]] * 2)
    assert plan(4, 4, attention_mask=mask).packing is not None
    with pytest.raises(UnsupportedCallError, match="padding between tokens"):
        plan(4, 4, attention_mask=mask, mask_function=theirs.sliding_window_causal_mask_function(2))


def test_holes_are_found() -> None:
    assert has_holes(torch.tensor([[True, False, True]]))
    assert not has_holes(torch.tensor([[False, True, False], [True, True, False], [False, False, False]]))


def test_a_padding_mask_that_ends_before_the_queries_is_refused() -> None:
    with pytest.raises(InputMismatchError, match=r"attention_mask is \(2, 3\); expected \[2, 4\]"):
        plan(4, 4, attention_mask=torch.ones(2, 3, dtype=torch.bool))


def test_a_window_both_ways_over_other_tokens_is_refused() -> None:
    both_ways = theirs.sliding_window_bidirectional_mask_function(2)
    assert plan(4, 4, mask_function=both_ways).window == 3
    with pytest.raises(UnsupportedCallError, match="sliding_window=2 both ways over keys of other tokens"):
        plan(4, 6, mask_function=both_ways)
