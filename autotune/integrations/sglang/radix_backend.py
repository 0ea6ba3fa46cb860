"""The class that SGLang makes: it is imported here alone, and nothing is computed here."""

from sglang.srt.layers.attention.base_attn_backend import AttentionBackend

from autotune.integrations.sglang.token_pool import TokenPoolAttention


class RadixBackend(TokenPoolAttention, AttentionBackend):  # type: ignore[misc]
    """Decoder layers over a pool of tokens: grouped heads, windows, softcap, sinks."""
