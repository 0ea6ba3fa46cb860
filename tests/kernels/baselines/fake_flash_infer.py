"""A stand-in for FlashInfer 0.5.3 on the CPU: its signatures, its checks, and attention in fp64 from what it is given.

It refuses what the library, its bindings or its kernels refuse; where they define no result, its own is NaN.
"""

import math
import sys
from types import ModuleType
from typing import Any, Final, NamedTuple

import pytest
import torch

HALF: Final = (torch.float16, torch.bfloat16)
FLOAT8: Final = (torch.float8_e4m3fn, torch.float8_e5m2)
CUDA_CORE_GROUPS: Final = (1, 2, 3, 4, 8)


class Call(NamedTuple):
    """One call of the library: ``plan`` or ``run`` of a wrapper, or a function, and what it was given by name."""

    name: str
    given: dict[str, Any]


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool,
    window_left: int,
    logits_soft_cap: float | None,
    sm_scale: float | None,
) -> torch.Tensor:
    """One sequence: ``q [S_q, H, D]``, ``k [S_kv, H_kv, D]``, ``v [S_kv, H_kv, D_v]``; fp64."""
    group = q.shape[1] // k.shape[1]
    q, k, v = (tensor.double().transpose(0, 1) for tensor in (q, k, v))
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    scores = q @ k.mT * (1.0 / math.sqrt(q.shape[2]) if sm_scale is None else sm_scale)
    if logits_soft_cap:
        scores = logits_soft_cap * torch.tanh(scores / logits_soft_cap)
    query, key = torch.arange(q.shape[1])[:, None], torch.arange(k.shape[1])
    hidden = torch.zeros(q.shape[1], k.shape[1], dtype=torch.bool)
    if causal:
        hidden |= key + q.shape[1] > k.shape[1] + query
    if window_left >= 0:
        hidden |= key + q.shape[1] + window_left < k.shape[1] + query
    weights = torch.softmax(scores.masked_fill(hidden, -math.inf), 2)
    out = (weights @ v).transpose(0, 1)
    return out * math.nan if causal and q.shape[1] > k.shape[1] > 0 else out


def check_types(q: torch.dtype, kv: torch.dtype, backend: str) -> None:
    assert q in HALF
    assert kv == q or (kv in FLOAT8 and backend == "fa2"), "FA3 reads no 8-bit cache under 16-bit queries"


def check_widths(head_dim_qk: int, head_dim_vo: int) -> None:
    assert (head_dim_qk, head_dim_vo) in ((64, 64), (128, 128), (256, 256), (192, 128)), "no kernel compiles"


def check_offsets(offsets: torch.Tensor) -> None:
    assert offsets.dtype == torch.int32, "IdType is int32"
    assert offsets.ndim == 1
    assert int(offsets[0]) == 0
    assert bool((offsets.diff() >= 0).all())


def without_self(given: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in given.items() if key not in ("self", "__class__")}


class Library:
    """What was called, in order, and what to raise at the next plan."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.fails: Exception | None = None

    def names(self) -> list[str]:
        return [call.name for call in self.calls]

    def last(self, name: str) -> dict[str, Any]:
        return next(call.given for call in reversed(self.calls) if call.name == name)

    def record(self, name: str, given: dict[str, Any]) -> None:
        self.calls.append(Call(name, without_self(given)))
        if self.fails is not None:
            raise self.fails


class Wrapper:
    """What the three wrappers have in common."""

    name = ""
    library: Library

    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str, use_cuda_graph: bool) -> None:
        assert float_workspace_buffer.dtype == torch.uint8
        assert not bool(float_workspace_buffer.any()), "must be initialized to 0"
        assert kv_layout in ("NHD", "HND")
        assert not use_cuda_graph
        self.workspace, self.layout = float_workspace_buffer, kv_layout
        self.planned: dict[str, Any] | None = None

    def keep(self, given: dict[str, Any]) -> None:
        """Remember a plan; its tensors are copied, as those of the library are to the device."""
        self.library.record(f"{self.name}.plan", given)
        self.planned = {
            key: value.clone() if isinstance(value, torch.Tensor) else value
            for key, value in without_self(given).items()
        }
        assert self.planned["pos_encoding_mode"] == "NONE"
        types = (self.planned["q_data_type"], self.planned["kv_data_type"] or self.planned["q_data_type"])
        assert all(isinstance(dtype, torch.dtype) for dtype in types)
        assert self.planned["num_qo_heads"] % self.planned["num_kv_heads"] == 0

    def options(self, *, causal: bool, k_scale: float | None = None) -> dict[str, Any]:
        assert self.planned is not None
        scale = self.planned["sm_scale"]
        assert type(scale) is float
        return {
            "causal": causal,
            "window_left": self.planned["window_left"],
            "logits_soft_cap": self.planned["logits_soft_cap"],
            "sm_scale": scale if k_scale is None else scale * k_scale,
        }

    def check_queries(self, q: torch.Tensor, tokens: int, head_dim: int) -> None:
        assert self.planned is not None
        assert tuple(q.shape) == (tokens, self.planned["num_qo_heads"], head_dim)
        assert q.dtype == self.planned["q_data_type"]
        assert q.stride(-1) == 1

    def check_pages(self, indptr: torch.Tensor, indices: torch.Tensor, last: torch.Tensor, page_size: int) -> None:
        check_offsets(indptr)
        assert indices.dtype == last.dtype == torch.int32
        assert len(indptr) == len(last) + 1
        assert len(indices) == int(indptr[-1])
        counts = indptr.diff()
        assert bool(((last >= 1) & (last <= page_size) | (counts == 0) & (last == 0)).all())

    def sequences(self, caches: Any, prefix: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values ``[length, H_kv, D]`` of each sequence, gathered by what was planned."""
        assert isinstance(caches, tuple)
        planned = self.planned
        assert planned is not None
        slots = []
        for cache in caches:
            assert cache.dtype == (planned["kv_data_type"] or planned["q_data_type"])
            assert cache.stride() == caches[0].stride(), "k/v strides differs"
            middle = (planned["page_size"], planned["num_kv_heads"])
            assert tuple(cache.shape[1:3]) == (middle if self.layout == "NHD" else middle[::-1])
            slots.append(cache if self.layout == "NHD" else cache.transpose(1, 2))
        indptr, indices = planned[f"{prefix}indptr"].tolist(), planned[f"{prefix}indices"].long()
        last = planned[f"{prefix}last_page_len"].tolist()
        assert bool(((indices >= 0) & (indices < len(caches[0]))).all()), "illegal access"
        found = []
        for sequence, filled in enumerate(last):
            pages = indices[indptr[sequence] : indptr[sequence + 1]]
            length = max(0, len(pages) - 1) * planned["page_size"] + filled
            keys, values = (slot.float()[pages].flatten(0, 1)[:length] for slot in slots)
            found.append((keys, values))
        return found


def run_function(library: Library) -> Any:
    """``single_prefill_with_kv_cache``."""

    def single_prefill_with_kv_cache(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        scale_q: torch.Tensor | None = None,
        scale_k: torch.Tensor | None = None,
        scale_v: torch.Tensor | None = None,
        o_dtype: torch.dtype | None = None,
        custom_mask: torch.Tensor | None = None,
        packed_custom_mask: torch.Tensor | None = None,
        causal: bool = False,
        kv_layout: str = "NHD",
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        backend: str = "auto",
        return_lse: bool = False,
    ) -> torch.Tensor:
        library.record("single_prefill_with_kv_cache", dict(locals()))
        others = (scale_q, scale_k, scale_v, o_dtype, custom_mask, packed_custom_mask, rope_scale, rope_theta)
        assert all(value is None for value in others)
        assert (kv_layout, pos_encoding_mode, use_fp16_qk_reduction, return_lse) == ("NHD", "NONE", False, False)
        assert q.ndim == k.ndim == v.ndim == 3
        assert all(tensor.stride(-1) == 1 for tensor in (q, k, v))
        assert k.dtype == v.dtype
        assert k.shape[:2] == v.shape[:2]
        check_types(q.dtype, k.dtype, backend)
        check_widths(q.shape[2], v.shape[2])
        assert causal or window_left < 0, "FA3's windows come with causal masks"
        out = attend(
            q, k, v, causal=causal, window_left=window_left, logits_soft_cap=logits_soft_cap, sm_scale=sm_scale
        )
        return out.to(q.dtype)

    return single_prefill_with_kv_cache


class BatchPrefillWithRaggedKVCacheWrapper(Wrapper):
    name = "ragged"

    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf: torch.Tensor | None = None,
        kv_indptr_buf: torch.Tensor | None = None,
        custom_mask_buf: torch.Tensor | None = None,
        mask_indptr_buf: torch.Tensor | None = None,
        backend: str = "auto",
        jit_args: list[Any] | None = None,
        jit_kwargs: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph)
        self.backend = backend

    def plan(
        self,
        qo_indptr: torch.Tensor,
        kv_indptr: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        head_dim_vo: int | None = None,
        custom_mask: torch.Tensor | None = None,
        packed_custom_mask: torch.Tensor | None = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        q_data_type: Any = "float16",
        kv_data_type: Any = None,
        non_blocking: bool = True,
        prefix_len_ptr: torch.Tensor | None = None,
        token_pos_in_items_ptr: torch.Tensor | None = None,
        token_pos_in_items_len: int = 0,
        max_item_len_ptr: torch.Tensor | None = None,
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,
    ) -> None:
        self.keep(dict(locals()))
        check_offsets(qo_indptr)
        check_offsets(kv_indptr)
        assert len(qo_indptr) == len(kv_indptr)
        check_widths(head_dim_qk, head_dim_vo or head_dim_qk)
        check_types(q_data_type, kv_data_type or q_data_type, self.backend)
        assert causal or window_left < 0

    def run(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *args: Any,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
        enable_pdl: bool | None = None,
    ) -> torch.Tensor:
        self.library.record("ragged.run", dict(locals()))
        planned = self.planned
        assert planned is not None, "plan first"
        assert not args
        queries, keys = planned["qo_indptr"].tolist(), planned["kv_indptr"].tolist()
        self.check_queries(q, queries[-1], planned["head_dim_qk"])
        heads = planned["num_kv_heads"]
        assert tuple(k.shape) == (keys[-1], heads, planned["head_dim_qk"])
        assert tuple(v.shape) == (keys[-1], heads, planned["head_dim_vo"] or planned["head_dim_qk"])
        assert k.dtype == v.dtype == (planned["kv_data_type"] or planned["q_data_type"])
        parts = [
            attend(
                q[queries[i] : queries[i + 1]],
                k[keys[i] : keys[i + 1]],
                v[keys[i] : keys[i + 1]],
                **self.options(causal=planned["causal"]),
            )
            for i in range(len(queries) - 1)
        ]
        return torch.cat(parts).to(q.dtype)


class BatchDecodeWithPagedKVCacheWrapper(Wrapper):
    name = "decode"

    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: torch.Tensor | None = None,
        paged_kv_indices_buffer: torch.Tensor | None = None,
        paged_kv_last_page_len_buffer: torch.Tensor | None = None,
        backend: str = "auto",
        jit_args: list[Any] | None = None,
    ) -> None:
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph)
        assert backend in ("auto", "fa2")
        self.use_tensor_cores = use_tensor_cores

    def plan(
        self,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        pos_encoding_mode: str = "NONE",
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: Any = "float16",
        kv_data_type: Any = None,
        data_type: Any = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        non_blocking: bool = True,
        block_tables: torch.Tensor | None = None,
        seq_lens: torch.Tensor | None = None,
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,
    ) -> None:
        self.keep({**locals(), "use_tensor_cores": self.use_tensor_cores})
        self.check_pages(indptr, indices, last_page_len, page_size)
        check_widths(head_dim, head_dim)
        check_types(q_data_type, kv_data_type or q_data_type, "fa2")
        assert self.use_tensor_cores or num_qo_heads // num_kv_heads in CUDA_CORE_GROUPS, "Unsupported group_size"

    def run(
        self,
        q: torch.Tensor,
        paged_kv_cache: Any,
        *args: Any,
        q_scale: float | None = None,
        k_scale: float | None = None,
        v_scale: float | None = None,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
        enable_pdl: bool | None = None,
        window_left: int | None = None,
        sinks: torch.Tensor | None = None,
        q_len_per_req: int | None = 1,
    ) -> torch.Tensor:
        self.library.record("decode.run", dict(locals()))
        planned = self.planned
        assert planned is not None, "plan first"
        assert not args
        assert all(value is None for value in (q_scale, sinks, window_left, out, lse))
        assert q_len_per_req == 1
        assert all(scale is None or type(scale) is float for scale in (k_scale, v_scale))
        sequences = self.sequences(paged_kv_cache, "")
        self.check_queries(q, len(sequences), planned["head_dim"])
        assert paged_kv_cache[1].shape[3] == planned["head_dim"]
        options = self.options(causal=False, k_scale=k_scale)
        parts = [attend(q[i : i + 1], keys, values, **options) for i, (keys, values) in enumerate(sequences)]
        return (torch.cat(parts).to(q.dtype) * (1.0 if v_scale is None else v_scale)).to(q.dtype)


class BatchPrefillWithPagedKVCacheWrapper(Wrapper):
    name = "prefill"

    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf: torch.Tensor | None = None,
        paged_kv_indptr_buf: torch.Tensor | None = None,
        paged_kv_indices_buf: torch.Tensor | None = None,
        paged_kv_last_page_len_buf: torch.Tensor | None = None,
        custom_mask_buf: torch.Tensor | None = None,
        mask_indptr_buf: torch.Tensor | None = None,
        backend: str = "auto",
        jit_args: list[Any] | None = None,
        jit_kwargs: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph)
        assert backend in ("auto", "fa2", "fa3")
        self.backend = backend

    def plan(
        self,
        qo_indptr: torch.Tensor,
        paged_kv_indptr: torch.Tensor,
        paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        head_dim_vo: int | None = None,
        custom_mask: torch.Tensor | None = None,
        packed_custom_mask: torch.Tensor | None = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        q_data_type: Any = "float16",
        kv_data_type: Any = None,
        non_blocking: bool = True,
        prefix_len_ptr: torch.Tensor | None = None,
        token_pos_in_items_ptr: torch.Tensor | None = None,
        token_pos_in_items_len: int = 0,
        max_item_len_ptr: torch.Tensor | None = None,
        seq_lens: torch.Tensor | None = None,
        seq_lens_q: torch.Tensor | None = None,
        block_tables: torch.Tensor | None = None,
        max_token_per_sequence: int | None = None,
        max_sequence_kv: int | None = None,
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,
    ) -> None:
        self.keep({**locals(), "backend": self.backend})
        check_offsets(qo_indptr)
        self.check_pages(paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, page_size)
        assert len(qo_indptr) == len(paged_kv_indptr)
        check_widths(head_dim_qk, head_dim_vo or head_dim_qk)
        check_types(q_data_type, kv_data_type or q_data_type, self.backend)

    def run(
        self,
        q: torch.Tensor,
        paged_kv_cache: Any,
        *args: Any,
        q_scale: float | None = None,
        k_scale: float | None = None,
        v_scale: float | None = None,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
        enable_pdl: bool | None = None,
        window_left: int | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        self.library.record("prefill.run", dict(locals()))
        planned = self.planned
        assert planned is not None, "plan first"
        assert not args
        assert all(value is None for value in (q_scale, sinks, window_left, out, lse))
        assert all(scale is None or type(scale) is float for scale in (k_scale, v_scale))
        offsets = planned["qo_indptr"].tolist()
        self.check_queries(q, offsets[-1], planned["head_dim_qk"])
        options = self.options(causal=planned["causal"], k_scale=k_scale)
        parts = [
            attend(q[offsets[i] : offsets[i + 1]], keys, values, **options)
            for i, (keys, values) in enumerate(self.sequences(paged_kv_cache, "paged_kv_"))
        ]
        return (torch.cat(parts).to(q.dtype) * (1.0 if v_scale is None else v_scale)).to(q.dtype)


def install(monkeypatch: pytest.MonkeyPatch) -> Library:
    """Let ``import flashinfer`` find the stand-in, until the test ends."""
    library = Library()
    module = ModuleType("flashinfer")
    wrappers = (
        *(BatchPrefillWithRaggedKVCacheWrapper, BatchDecodeWithPagedKVCacheWrapper),
        BatchPrefillWithPagedKVCacheWrapper,
    )
    for wrapper in wrappers:
        vars(module)[wrapper.__name__] = type(wrapper.__name__, (wrapper,), {"library": library})
    vars(module)["single_prefill_with_kv_cache"] = run_function(library)
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    return library
