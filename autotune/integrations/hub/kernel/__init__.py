"""Functions of flash-attn's names, as Hugging Face's ``kernels`` loads them from this folder."""

from autotune.integrations.flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache

__all__ = ["flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"]
