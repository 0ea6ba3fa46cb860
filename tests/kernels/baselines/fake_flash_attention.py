"""Stand-ins for FlashAttention 3 and 2 on the CPU: signatures, checks, and attention in fp64 from what they are given.

They refuse what the bindings refuse (Dao-AILab/flash-attention, ``hopper/flash_api.cpp`` and
``csrc/flash_attn/flash_api.cpp``). Pages are read whole: NaN behind a sequence's end spoils its output.
"""

import math
import sys
from itertools import pairwise
from types import ModuleType
from typing import Any, Final

import pytest
import torch

HALF: Final = (torch.float16, torch.bfloat16)
NONE: Final = (-1, -1)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: int, options: dict[str, Any]) -> torch.Tensor:
    """One sequence: ``q [S_q, H, D]`` over the first ``length`` keys; those behind have the weight 0."""
    group, seq_q = q.shape[1] // k.shape[1], q.shape[0]
    q, k, v = (tensor.double().transpose(0, 1) for tensor in (q, k, v))
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    scale = options["softmax_scale"]
    scores = q @ k.nan_to_num().mT * (q.shape[2] ** -0.5 if scale is None else scale)
    if options["softcap"]:
        scores = options["softcap"] * torch.tanh(scores / options["softcap"])
    position, key = torch.arange(seq_q)[:, None] + length - seq_q, torch.arange(k.shape[1])
    if options.get("alibi_slopes") is not None:
        scores = scores - options["alibi_slopes"].double()[:, None, None] * (position - key).abs()
    left, right = options["window_size"]
    right = 0 if options["causal"] else right
    hidden = (key >= length).expand(seq_q, -1)
    if left >= 0:
        hidden = hidden | (key < position - left)
    if right >= 0:
        hidden = hidden | (key > position + right)
    blind = hidden.all(1)[:, None]
    weights = torch.softmax(scores.masked_fill(hidden, -math.inf), 2).masked_fill(blind, 0.0)
    return (weights @ v).transpose(0, 1)


def check_tensors(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, version: int) -> None:
    assert q.dtype in HALF
    assert k.dtype == v.dtype == q.dtype, "query and key must have the same dtype"
    assert all(tensor.stride(-1) == 1 for tensor in (q, k, v)), "must have contiguous last dimension"
    assert k.shape[:-1] == v.shape[:-1]
    assert q.shape[-2] % k.shape[-2] == 0
    width, width_v = q.shape[-1], v.shape[-1]
    assert width == k.shape[-1] <= 256
    assert width % 8 == width_v % 8 == 0
    different = version == 3 and ((128 < width <= 192 and 96 < width_v <= 128) or (width <= 64 and width_v <= 512))
    assert width == width_v or different, "If V headdim is different from Q/K dim, we only support ..."


def check_options(options: dict[str, Any]) -> None:
    assert type(options["softmax_scale"]) is float
    assert type(options["causal"]) is bool
    assert type(options["softcap"]) is float
    assert type(options["window_size"]) is tuple
    assert len(options["window_size"]) == 2


def check_lengths(tensor: torch.Tensor, count: int) -> list[int]:
    assert tensor.dtype == torch.int32
    assert tuple(tensor.shape) == (count,)
    assert tensor.is_contiguous()
    return [int(value) for value in tensor]


def pages_of(cache: torch.Tensor, table: torch.Tensor, length: int) -> torch.Tensor:
    """The pages of a sequence as far as it reaches, whole; ``table`` is its row."""
    used = table[: -(-length // cache.shape[1])].long()
    assert bool(((used >= 0) & (used < len(cache))).all()), "illegal access"
    return cache[used].flatten(0, 1)


class Library:
    """What was called, by name, with what was given; ``old`` returns the log-sum-exp unasked."""

    def __init__(self, version: int, *, old: bool = False) -> None:
        self.version, self.old = version, old
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.fails: Exception | None = None

    def record(self, name: str, given: dict[str, Any]) -> None:
        self.calls.append((name, {key: value for key, value in given.items() if key != "self"}))
        if self.fails is not None:
            raise self.fails

    def answer(self, out: torch.Tensor) -> Any:
        return (out, torch.zeros(1)) if self.old else out

    def dense(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> Any:
        check_tensors(q, k, v, version=self.version)
        check_options(options)
        assert q.ndim == k.ndim == 4
        assert q.shape[0] == k.shape[0]
        return self.answer(
            torch.stack([attend(*one, k.shape[1], options) for one in zip(q, k, v, strict=True)]).to(q.dtype)
        )

    def packed(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, given: dict[str, Any], table: torch.Tensor | None
    ) -> Any:
        check_tensors(q, k, v, version=self.version)
        check_options(given)
        batch = len(given["cu_seqlens_q"]) - 1
        queries, keys = (check_lengths(given[f"cu_seqlens_{side}"], batch + 1) for side in "qk")
        assert type(given["max_seqlen_q"]) is type(given["max_seqlen_k"]) is int
        assert given["max_seqlen_q"] == max(b - a for a, b in pairwise(queries))
        assert given["max_seqlen_k"] == max(b - a for a, b in pairwise(keys))
        assert q.ndim == 3
        assert len(q) == queries[-1]
        assert k.ndim == (3 if table is None else 4)
        assert table is not None or len(k) == keys[-1]
        parts = []
        for i in range(batch):
            length = keys[i + 1] - keys[i]
            if table is None:
                own_k, own_v = (tensor[keys[i] : keys[i + 1]] for tensor in (k, v))
            else:
                own_k, own_v = (pages_of(cache, table[i], length) for cache in (k, v))
            parts.append(attend(q[queries[i] : queries[i + 1]], own_k, own_v, length, given))
        return self.answer(torch.cat(parts).to(q.dtype))

    def paged(
        self, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, table: Any, given: dict[str, Any]
    ) -> torch.Tensor:
        check_tensors(q, k_cache, v_cache, version=self.version)
        check_options(given)
        assert k_cache.ndim == 4
        assert table.dtype == torch.int32
        assert table.stride(-1) == 1
        offsets = given.get("cu_seqlens_q")
        lengths = check_lengths(given["cache_seqlens"], len(table))
        if offsets is None:
            assert q.ndim == 4
            assert len(q) == len(table)
            queries: Any = q
        else:
            bounds = check_lengths(offsets, len(table) + 1)
            assert given["max_seqlen_q"] == max(b - a for a, b in pairwise(bounds))
            queries = [q[a:b] for a, b in pairwise(bounds)]
        parts = []
        for own, row, length in zip(queries, table, lengths, strict=True):
            keys, values = (pages_of(cache, row, length) for cache in (k_cache, v_cache))
            parts.append(attend(own, keys, values, length, given))
        return (torch.stack(parts) if offsets is None else torch.cat(parts)).to(q.dtype)


def functions_3(library: Library) -> dict[str, Any]:
    """Those of ``flash_attn_interface``."""

    def flash_attn_func(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        softmax_scale: Any = None,
        causal: Any = False,
        qv: Any = None,
        q_descale: Any = None,
        k_descale: Any = None,
        v_descale: Any = None,
        window_size: Any = (-1, -1),
        attention_chunk: Any = 0,
        softcap: Any = 0.0,
        num_splits: Any = 1,
        pack_gqa: Any = None,
        deterministic: Any = False,
        sm_margin: Any = 0,
        return_attn_probs: Any = False,
    ) -> Any:
        given = dict(locals())
        library.record("flash_attn_func", given)
        assert qv is q_descale is k_descale is v_descale is pack_gqa is None
        assert (attention_chunk, num_splits, sm_margin, return_attn_probs) == (0, 1, 0, False)
        return library.dense(q, k, v, given)

    def flash_attn_varlen_func(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_k: torch.Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        seqused_q: Any = None,
        seqused_k: Any = None,
        softmax_scale: Any = None,
        causal: Any = False,
        qv: Any = None,
        q_descale: Any = None,
        k_descale: Any = None,
        v_descale: Any = None,
        window_size: Any = (-1, -1),
        attention_chunk: Any = 0,
        softcap: Any = 0.0,
        num_splits: Any = 1,
        pack_gqa: Any = None,
        deterministic: Any = False,
        sm_margin: Any = 0,
        return_attn_probs: Any = False,
    ) -> Any:
        given = dict(locals())
        library.record("flash_attn_varlen_func", given)
        assert seqused_q is seqused_k is qv is q_descale is k_descale is v_descale is pack_gqa is None
        assert (attention_chunk, num_splits, sm_margin, return_attn_probs) == (0, 1, 0, False)
        return library.packed(q, k, v, given, None)

    def flash_attn_with_kvcache(
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        k: Any = None,
        v: Any = None,
        qv: Any = None,
        rotary_cos: Any = None,
        rotary_sin: Any = None,
        cache_seqlens: Any = None,
        cache_batch_idx: Any = None,
        cache_leftpad: Any = None,
        page_table: Any = None,
        cu_seqlens_q: Any = None,
        cu_seqlens_k_new: Any = None,
        max_seqlen_q: Any = None,
        rotary_seqlens: Any = None,
        q_descale: Any = None,
        k_descale: Any = None,
        v_descale: Any = None,
        softmax_scale: Any = None,
        causal: Any = False,
        window_size: Any = (-1, -1),
        attention_chunk: Any = 0,
        softcap: Any = 0.0,
        rotary_interleaved: Any = True,
        scheduler_metadata: Any = None,
        num_splits: Any = 0,
        pack_gqa: Any = None,
        sm_margin: Any = 0,
        return_softmax_lse: Any = False,
    ) -> Any:
        given = dict(locals())
        library.record("flash_attn_with_kvcache", given)
        assert k is v is qv is rotary_cos is rotary_sin is cache_batch_idx is cache_leftpad is None
        assert cu_seqlens_k_new is rotary_seqlens is scheduler_metadata is pack_gqa is None
        assert q_descale is k_descale is v_descale is None
        assert (attention_chunk, num_splits, sm_margin, return_softmax_lse) == (0, 0, 0, False)
        assert (cu_seqlens_q is None) == (max_seqlen_q is None), "max_seqlen_q must be provided if cu_seqlens_q is"
        return library.paged(q, k_cache, v_cache, page_table, given)

    return {
        function.__name__: function for function in (flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache)
    }


def functions_2(library: Library) -> dict[str, Any]:
    """Those of ``flash_attn``."""

    def flash_attn_func(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        dropout_p: Any = 0.0,
        softmax_scale: Any = None,
        causal: Any = False,
        window_size: Any = (-1, -1),
        softcap: Any = 0.0,
        alibi_slopes: Any = None,
        deterministic: Any = False,
        return_attn_probs: Any = False,
    ) -> Any:
        given = dict(locals())
        library.record("flash_attn_func", given)
        assert (dropout_p, return_attn_probs) == (0.0, False)
        return library.dense(q, k, v, given)

    def flash_attn_varlen_func(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_k: torch.Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: Any = 0.0,
        softmax_scale: Any = None,
        causal: Any = False,
        window_size: Any = (-1, -1),
        softcap: Any = 0.0,
        alibi_slopes: Any = None,
        deterministic: Any = False,
        return_attn_probs: Any = False,
        block_table: Any = None,
    ) -> Any:
        given = dict(locals())
        library.record("flash_attn_varlen_func", given)
        assert (dropout_p, return_attn_probs) == (0.0, False)
        check_slopes(alibi_slopes, q)
        if block_table is not None:
            check_blocks(k, block_table)
        return library.packed(q, k, v, given, block_table)

    def flash_attn_with_kvcache(
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        k: Any = None,
        v: Any = None,
        rotary_cos: Any = None,
        rotary_sin: Any = None,
        cache_seqlens: Any = None,
        cache_batch_idx: Any = None,
        cache_leftpad: Any = None,
        block_table: Any = None,
        softmax_scale: Any = None,
        causal: Any = False,
        window_size: Any = (-1, -1),
        softcap: Any = 0.0,
        rotary_interleaved: Any = True,
        alibi_slopes: Any = None,
        num_splits: Any = 0,
        return_softmax_lse: Any = False,
    ) -> Any:
        given = dict(locals())
        library.record("flash_attn_with_kvcache", given)
        assert k is v is rotary_cos is rotary_sin is cache_batch_idx is cache_leftpad is None
        assert (num_splits, return_softmax_lse) == (0, False)
        check_slopes(alibi_slopes, q)
        check_blocks(k_cache, block_table)
        return library.paged(q, k_cache, v_cache, block_table, given)

    return {
        function.__name__: function for function in (flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache)
    }


def check_slopes(slopes: Any, q: torch.Tensor) -> None:
    if slopes is not None:
        assert slopes.dtype == torch.float32
        assert tuple(slopes.shape) == (q.shape[-2],)


def check_blocks(cache: torch.Tensor, block_table: Any) -> None:
    assert cache.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256"
    assert block_table.dtype == torch.int32
    assert block_table.stride(-1) == 1


def install(monkeypatch: pytest.MonkeyPatch, version: int, *, old: bool = False) -> Library:
    """Let the package of this version be the stand-in's, until the test ends."""
    library = Library(version, old=old)
    name, functions = {3: ("flash_attn_interface", functions_3), 2: ("flash_attn", functions_2)}[version]
    module = ModuleType(name)
    vars(module).update(functions(library))
    monkeypatch.setitem(sys.modules, name, module)
    return library
