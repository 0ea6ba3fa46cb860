"""One layer's attention over vLLM's cache: all that its backend computes, without a line of vLLM.

A layer's cache is one tensor of logical sizes ``[blocks, kv_heads, block_size, D + D_v]``, a token's value behind its
key, in any physical order: keys and values are views of it, which the kernels take as they lie.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch

from autotune.errors import InputMismatchError, UnsupportedCallError
from autotune.integrations.vllm.limits import quantized_type
from autotune.integrations.vllm.paged_batch import PagedBatch
from autotune.paged import append_kv, paged_decode, paged_prefill

DECODER: Final = "decoder"


class PagedLayer:
    """Attention of one layer of vLLM, made by position as vLLM does.

    Args:
        num_heads, head_size, num_kv_heads: query heads, the width of keys, KV heads; as many as query heads by default.
        scale: what scores are multiplied by.
        alibi_slopes: one a head; added to a score is the slope times the distance.
        sliding_window: see only this many last keys, one's own included.
        kv_cache_dtype: ``"auto"``, the model's, or vLLM's name of another.
        logits_soft_cap: bounds scores, by tanh; 0 and None do not.
        attn_type: ``"decoder"`` alone.
        kv_sharing_target_layer_name: another layer, whose cache is read; vLLM calls no update of this one's.
        sinks: ``[num_heads]``, logits without a value.

    Raises:
        UnsupportedCallError: a kind of layer, a cache or an option that is not computed; the message names it.
    """

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: Sequence[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
        **others: object,
    ) -> None:
        if attn_type != DECODER:
            raise UnsupportedCallError(f"attn_type={str(attn_type)!r} is not computed by CUSTOM; expected 'decoder'")
        for name, value in others.items():
            raise UnsupportedCallError(f"{name}={value!r:.40} is not computed by CUSTOM; choose another backend")
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = float(scale)
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.kv_cache_dtype = kv_cache_dtype
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.sinks = sinks
        self.sliding_window = sliding_window
        self.logits_soft_cap = logits_soft_cap or None
        # vLLM makes layers with its GPU as torch's default device.
        self.alibi_slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        self._quantized = quantized_type(kv_cache_dtype)

    def do_kv_cache_update(
        self, layer: Any, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor
    ) -> None:
        """Write ``key [T, H_kv, D]`` and ``value [T, H_kv, D_v]`` to the slots of ``slot_mapping``, but those of -1."""
        tokens = slot_mapping.shape[0]
        if key.shape[0] != tokens:  # padded
            key, value = key[:tokens], value[:tokens]
        k_cache, v_cache, layout = self._views(kv_cache)
        append_kv(key, value, k_cache, v_cache, slot_mapping, layout=layout, **self._scales(layer))  # type: ignore[arg-type]

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: torch.Tensor,
        attn_metadata: PagedBatch | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute ``query [T, H, D]`` over the cache, which has the keys of all queries, into ``output [T, H, D_v]``.

        Nothing on the GPU is read by the host. Rows of padding are left as they are. Without metadata, as vLLM profiles
        its memory, the output is 0. ``key`` and ``value`` are in the cache already.

        Raises:
            UnsupportedCallError: the output is to be quantized.
        """
        if output_scale is not None or output_block_scale is not None:
            raise UnsupportedCallError("output_scale is given, and a quantized output is not computed by CUSTOM")
        if attn_metadata is None:
            return output.fill_(0)
        batch = attn_metadata
        if batch.tokens == query.shape[0]:
            q, out = query, output
        else:
            q, out = query[: batch.tokens], output[: batch.tokens]
        k_cache, v_cache, layout = self._views(kv_cache)
        options: dict[str, Any] = {
            "layout": layout,
            "scale": self.scale,
            "window": self.sliding_window,
            "softcap": self.logits_soft_cap,
            "sinks": self.sinks,
            "alibi_slopes": self._slopes_on(query.device),
            "mean_context": batch.mean_context,
            "out": out,
            **self._scales(layer),
        }
        if batch.is_decode:
            paged_decode(q, k_cache, v_cache, batch.page_table, batch.lengths, **options)
        else:
            paged_prefill(q, k_cache, v_cache, batch.page_table, batch.lengths, batch.offsets, **options)
        return output

    def _views(self, kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, str]:
        """Return keys and values of a cache, and their layout: that whose pages lie as the cache's do."""
        if self._quantized is not None and kv_cache.dtype != self._quantized:
            kv_cache = kv_cache.view(self._quantized)
        layout = "HND"
        if kv_cache.stride(1) <= kv_cache.stride(2):
            kv_cache, layout = kv_cache.transpose(1, 2), "NHD"
        return kv_cache[..., : self.head_size], kv_cache[..., self.head_size :], layout

    def _scales(self, layer: Any) -> dict[str, torch.Tensor]:
        """Return what a quantized cache's values are multiplied by: the layer's, one for all or one a KV head."""
        if self._quantized is None:
            return {}
        return {"k_scale": self._scale("_k_scale", layer), "v_scale": self._scale("_v_scale", layer)}

    def _scale(self, name: str, layer: Any) -> torch.Tensor:
        scale: torch.Tensor = getattr(layer, name)
        if scale.numel() == 1:
            return scale.view(())
        if scale.numel() != self.num_kv_heads:
            raise InputMismatchError(
                f"{name} is {tuple(scale.shape)}; expected one number, or one a KV head: [{self.num_kv_heads}]"
            )
        return scale.flatten()

    def _slopes_on(self, device: torch.device) -> torch.Tensor | None:
        if self.alibi_slopes is not None and self.alibi_slopes.device != device:
            self.alibi_slopes = self.alibi_slopes.to(device)
        return self.alibi_slopes
