"""Contiguous keys and values: the function for one sequence, and the wrapper for ragged batches."""

from typing import Any

import torch

from tests.kernels.baselines.fake_flash_infer.library import (
    Library,
    Wrapper,
    attend,
    check_offsets,
    check_types,
    check_widths,
)


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
