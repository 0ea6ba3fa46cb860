"""The classes that vLLM asks for: it is imported here alone, and nothing is computed here."""

from dataclasses import replace
from typing import Any, ClassVar

import torch
from vllm.platforms import current_platform
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadataBuilder,
)

from autotune.integrations.vllm import NAME
from autotune.integrations.vllm.limits import (
    BLOCK_SIZES,
    CACHES,
    DTYPES,
    FIRST_CAPABILITY,
    is_head_size,
    reason_against,
)
from autotune.integrations.vllm.paged_batch import PagedBatch, batch_of, mean_context_of
from autotune.integrations.vllm.paged_layer import PagedLayer


class AutotuneImpl(PagedLayer, AttentionImpl):  # type: ignore[misc]
    """Attention of one layer; vLLM sets what belongs to its groups of GPUs."""


class AutotuneMetadataBuilder(AttentionMetadataBuilder):  # type: ignore[misc]
    """Makes a step's batch out of vLLM's metadata; a CUDA graph may hold any batch, prefills among them."""

    _cudagraph_support: ClassVar[Any] = AttentionCGSupport.ALWAYS
    supports_update_block_table = True
    supports_draft_decode_metadata_update = True  # a batch has nothing but vLLM's buffers

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._mean_context = mean_context_of(vllm_config.additional_config)

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> PagedBatch:
        return batch_of(common_attn_metadata, self._mean_context)

    def update_block_table(
        self, metadata: PagedBatch, blk_table: torch.Tensor, slot_mapping: torch.Tensor
    ) -> PagedBatch:
        return replace(metadata, page_table=blk_table[: metadata.lengths.shape[0]])

    def update_draft_decode_metadata(self, metadata: PagedBatch) -> None:
        """Do nothing: all that changes from step to step is in vLLM's buffers."""


class AutotuneBackend(AttentionBackend):  # type: ignore[misc]
    """Decoder layers over a paged cache: grouped heads, windows, softcap, sinks, ALiBi.

    What is not overridden vLLM refuses by default: MLA, sparse attention, image blocks, R-SWA, other kinds of layers,
    attention that is not causal, batch invariance, context parallelism.
    """

    supported_dtypes: ClassVar[list[torch.dtype]] = list(DTYPES)
    supported_kv_cache_dtypes: ClassVar[list[Any]] = list(CACHES)
    forward_includes_kv_cache_update = False
    supports_kv_cache_update_bypass = True

    @staticmethod
    def get_name() -> str:
        return NAME

    @staticmethod
    def get_impl_cls() -> type[AutotuneImpl]:
        return AutotuneImpl

    @staticmethod
    def get_builder_cls() -> type[AutotuneMetadataBuilder]:
        return AutotuneMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        return list(BLOCK_SIZES)

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return is_head_size(head_size)

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_per_head_quant_scales(cls) -> bool:
        return True

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        return not current_platform.is_rocm() and tuple(capability) >= FIRST_CAPABILITY

    @classmethod
    def supports_combination(
        cls,
        head_size: int,
        dtype: torch.dtype,
        kv_cache_dtype: str | None,
        block_size: int | None,
        use_mla: bool,
        has_sink: bool,
        use_sparse: bool,
        use_mm_prefix: bool,
        device_capability: Any,
    ) -> str | None:
        return reason_against(dtype, kv_cache_dtype, tuple(device_capability))
