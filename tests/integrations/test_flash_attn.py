"""The functions of flash-attn's names compute what its documentation says, and refuse by name what they do not."""

import inspect
import warnings
from typing import Any, Final

import pytest
import torch

from autotune.errors import InputMismatchError, UsageError
from autotune.integrations import flash_attn, flash_attn_cache
from tests.contract.interpreting import interpret
from tests.integrations import flash_attn_cases

SINKS: Final = torch.tensor([0.5, -1.0, 2.0, 0.0])
MASKS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"causal": True},
    {"causal": True, "window_size": (6, 0)},
    {"causal": True, "window_size": (6, 3)},  # what a causal mask hides, a window does not show
    {"window_size": (6, 6)},
    {"window_size": (-1, 0)},
    {"window_size": (6, 0), "softcap": 2.0},
    {"causal": True, "s_aux": SINKS, "softmax_scale": 0.3},
)


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize(("queries", "keys"), [(21, 21), (9, 33)])
def test_dense_calls(queries: int, keys: int, mask: dict[str, Any]) -> None:
    assert interpret(flash_attn_cases.dense_failure, queries, keys, **mask) is None


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_packed_calls(mask: dict[str, Any]) -> None:
    assert interpret(flash_attn_cases.varlen_failure, **mask) is None


@pytest.mark.parametrize("mask", [*MASKS[:4], {"causal": True, "alibi_slopes": SINKS.abs()}], ids=str)
def test_packed_calls_over_pages(mask: dict[str, Any]) -> None:
    assert interpret(flash_attn_cases.varlen_failure, paged=True, **mask) is None


def test_longest_lengths_may_be_tensors() -> None:
    assert interpret(flash_attn_cases.tensor_lengths_failure) is None


@pytest.mark.parametrize("length", ["5", 5.9, None, torch.tensor(5.7), torch.tensor([1, 2])], ids=str)
def test_other_longest_lengths_are_refused_by_name(length: Any) -> None:
    rows, offsets = torch.zeros(4, 2, 64), torch.tensor([0, 4], dtype=torch.int32)
    with pytest.raises(InputMismatchError, match=r"max_seqlen_q=.* is not allowed; expected an integer"):
        flash_attn.flash_attn_varlen_func(rows, rows, rows, offsets, offsets, length, 4)


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize(("queries", "new"), [(1, 1), (1, 0), (4, 4), (12, 12), (12, 0)])
@pytest.mark.parametrize("mask", [MASKS[0], MASKS[1], MASKS[2], MASKS[7]], ids=str)
def test_calls_over_a_cache(queries: int, new: int, paged: bool, mask: dict[str, Any]) -> None:
    assert interpret(flash_attn_cases.cache_failure, queries, new, paged=paged, **mask) is None


def test_rows_of_a_cache_are_chosen() -> None:
    assert interpret(flash_attn_cases.cache_failure, 1, 1, paged=False, rows=[3, 0, 2], causal=True) is None


@pytest.mark.parametrize("paged", [False, True])
def test_new_keys_that_do_not_fit_are_left_out(paged: bool) -> None:
    assert interpret(flash_attn_cases.full_cache_failure, paged) is None


def call(name: str, **given: Any) -> Any:
    q, cache = torch.zeros(1, 4, 4, 16), torch.zeros(1, 32, 2, 16)
    if name == "flash_attn_varlen_func":
        ends, keys = torch.tensor([0, 4], dtype=torch.int32), torch.tensor([0, 32], dtype=torch.int32)
        return flash_attn.flash_attn_varlen_func(q[0], cache[0], cache[0], ends, keys, 4, 32, **given)
    return getattr(flash_attn, name)(q, cache, cache, **given)


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("flash_attn_func", {"dropout_p": 0.1}, r"dropout_p=0.1 is not computed"),
        ("flash_attn_func", {"alibi_slopes": torch.ones(4)}, r"alibi_slopes=a tensor is not computed"),
        ("flash_attn_func", {"window_size": (3, 5)}, r"window_size=\(3, 5\) .*expected as many keys after a query as"),
        ("flash_attn_varlen_func", {"dropout_p": 0.5}, r"dropout_p=0.5 is not computed"),
        ("flash_attn_varlen_func", {"alibi_slopes": torch.ones(4)}, r"alibi_slopes=a tensor is not computed"),
        ("flash_attn_with_kvcache", {"rotary_cos": torch.ones(4, 8)}, r"rotary_cos=a tensor is not computed"),
        ("flash_attn_with_kvcache", {"cache_leftpad": torch.ones(1)}, r"cache_leftpad=a tensor is not computed"),
        ("flash_attn_with_kvcache", {"k": torch.ones(1, 4, 2, 16)}, r"v=None beside new keys; give both"),
        ("flash_attn_with_kvcache", {"block_table": torch.zeros(1, 1)}, r"cache_seqlens=None beside a block_table"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(name: str, given: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        call(name, **given)


def test_a_cache_that_cannot_be_cut_is_refused() -> None:
    cache = torch.zeros(3, 600, 2, 16)[:, :512]
    with pytest.raises(InputMismatchError, match=r"k_cache has strides .*or a block_table"):
        flash_attn.flash_attn_with_kvcache(torch.zeros(3, 1, 4, 16), cache, cache)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, r"k_cache is \(2, 32, 2, 16\); expected 3 rows at least, one for each sequence of q, or cache_batch_idx"),
        (
            {"cache_batch_idx": torch.tensor([0, 1])},
            r"cache_batch_idx is \(2,\) of torch.int64; expected \[3\] of torch.int32",
        ),
        ({"cache_batch_idx": torch.zeros(3)}, r"cache_batch_idx is \(3,\) of torch.float32; expected \[3\]"),
        ({"cache_seqlens": 33}, r"cache_seqlens=33 is not allowed; expected 0 to 32, the 32 keys of a sequence"),
        ({"cache_seqlens": -1}, r"cache_seqlens=-1 is not allowed; expected 0 to 32"),
        ({"cache_seqlens": True}, r"cache_seqlens=True is not allowed; expected 0 to 32"),
        (
            {"cache_seqlens": 31, "new": 2},
            r"cache_seqlens=31 is not allowed; expected 0 to 30, .* less 2 new",
        ),
        ({"new": 2}, r"cache_seqlens=None beside new keys; expected the keys of each sequence"),
        ({"cache_seqlens": torch.ones(2).int()}, r"cache_seqlens is \(2,\) of torch.int32; expected \[3\] of"),
        (
            {"cache_seqlens": torch.ones(3).long()},
            r"cache_seqlens is \(3,\) of torch.int64; expected \[3\] of torch.int32",
        ),
        ({"cache_seqlens": 33, "block_table": torch.zeros(3, 1).int()}, r"cache_seqlens=33 .* expected 0 to 32"),
        ({"cache_seqlens": 3, "k": torch.zeros(2, 1, 2, 16)}, r"k is \(2, 1, 2, 16\); expected \[3, S_new, H_kv, D\]"),
        ({"v_cache": torch.zeros(4, 16, 2, 16)}, r"v_cache is \(4, 16, 2, 16\); expected \[2, 32\], as k_cache has"),
    ],
)
def test_what_leads_outside_a_cache_is_refused_by_name(given: dict[str, Any], message: str) -> None:
    given = {"k_cache": torch.zeros(2, 32, 2, 16), "v_cache": torch.zeros(2, 32, 2, 16)} | given
    if new := given.pop("new", 0):
        given |= {"k": torch.zeros(3, new, 2, 16)}
    if "k" in given:
        given |= {"v": given["k"]}
    with pytest.raises(UsageError, match=message):
        flash_attn.flash_attn_with_kvcache(torch.zeros(3, 1, 4, 16), **given)


@pytest.mark.parametrize(("length", "page_size", "advice"), [(2053, 1, 2064), (4106, 2, 4112)])
def test_a_length_that_makes_small_pages_is_warned_of_once(length: int, page_size: int, advice: int) -> None:
    flash_attn_cache._page_size.cache_clear()
    cache = torch.zeros(1, length, 2, 8)
    with pytest.warns(RuntimeWarning, match=rf"rows of {length} .* pages of {page_size}, .* allocate {advice}, a mul"):
        pages = flash_attn_cache.pages_of(cache, cache, None, None, 1)
    assert pages.k_cache.shape[1] == page_size
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flash_attn_cache.pages_of(cache, cache, None, None, 1)


@pytest.mark.parametrize(("length", "page_size"), [(4096, 256), (2064, 16), (8, 8), (1021, 1021), (2 * 617, 617)])
def test_other_lengths_are_not_warned_of(length: int, page_size: int) -> None:
    cache = torch.zeros(1, length, 2, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert flash_attn_cache.pages_of(cache, cache, None, None, 1).k_cache.shape[1] == page_size


@pytest.mark.parametrize("queries", [1, 12])
def test_no_sequences_over_a_cache_have_empty_results(queries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triton.knobs.runtime.interpret", True)  # nothing is launched
    q, cache = torch.zeros(0, queries, 4, 16), torch.zeros(0, 32, 2, 16)
    out, lse = flash_attn.flash_attn_with_kvcache(q, cache, cache, causal=True, return_softmax_lse=True)
    assert (out.shape, lse.shape) == ((0, queries, 4, 16), (0, 4, queries))


# As its documentation lists them (v2.8.3), so that calls by place mean the same.
NAMES: Final = {
    "flash_attn_func": "q k v dropout_p softmax_scale causal window_size softcap alibi_slopes "
    "deterministic return_attn_probs",
    "flash_attn_varlen_func": "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k dropout_p softmax_scale "
    "causal window_size softcap alibi_slopes deterministic return_attn_probs block_table",
    "flash_attn_with_kvcache": "q k_cache v_cache k v rotary_cos rotary_sin cache_seqlens cache_batch_idx "
    "cache_leftpad block_table softmax_scale causal window_size softcap rotary_interleaved alibi_slopes num_splits "
    "return_softmax_lse",
}


@pytest.mark.parametrize("name", NAMES)
def test_arguments_stand_where_they_do_in_flash_attn(name: str) -> None:
    parameters = inspect.signature(getattr(flash_attn, name)).parameters.values()
    assert [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD] == NAMES[name].split()
