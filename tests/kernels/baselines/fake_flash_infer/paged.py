"""Caches in pages: the wrappers for decoding and for prefill."""

from typing import Any, Final

import torch

from tests.kernels.baselines.fake_flash_infer.library import Wrapper, attend, check_offsets, check_types, check_widths

CUDA_CORE_GROUPS: Final = (1, 2, 3, 4, 8)


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
