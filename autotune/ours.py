"""The operations and implementations of this package, by references; the only file that names them."""

from collections.abc import Mapping
from typing import Final

OPERATIONS: Final[Mapping[str, str]] = {
    "flash_attention": "autotune.search_spaces.flash_attention.operation:OPERATION",
    "flash_attention_varlen": "autotune.search_spaces.flash_attention_varlen.operation:OPERATION",
    "paged_decode": "autotune.search_spaces.paged_decode.operation:OPERATION",
    "paged_prefill": "autotune.search_spaces.paged_prefill.operation:OPERATION",
}
IMPLEMENTATIONS: Final[Mapping[tuple[str, str], str]] = {
    ("flash_attention", "triton"): "autotune.search_spaces.flash_attention.triton:IMPLEMENTATION",
    ("flash_attention", "gluon_hopper"): "autotune.search_spaces.flash_attention.gluon_hopper:IMPLEMENTATION",
    ("flash_attention", "gluon_hopper_fp8"): "autotune.search_spaces.flash_attention.gluon_hopper_fp8:IMPLEMENTATION",
    ("flash_attention", "triton_split_keys"): "autotune.search_spaces.flash_attention.triton_split_keys:IMPLEMENTATION",
    ("flash_attention", "triton_masked"): "autotune.search_spaces.flash_attention.triton_masked:IMPLEMENTATION",
    (
        "flash_attention",
        "triton_split_width",
    ): "autotune.search_spaces.flash_attention.triton_split_width:IMPLEMENTATION",
    (
        "flash_attention",
        "triton_split_values",
    ): "autotune.search_spaces.flash_attention.triton_split_values:IMPLEMENTATION",
    ("flash_attention", "flex"): "autotune.search_spaces.flash_attention.flex:IMPLEMENTATION",
    ("flash_attention_varlen", "triton"): "autotune.search_spaces.flash_attention_varlen.triton:IMPLEMENTATION",
    (
        "flash_attention_varlen",
        "gluon_hopper",
    ): "autotune.search_spaces.flash_attention_varlen.gluon_hopper:IMPLEMENTATION",
    ("paged_decode", "triton"): "autotune.search_spaces.paged_decode.triton:IMPLEMENTATION",
    (
        "paged_decode",
        "gluon_hopper_latent",
    ): "autotune.search_spaces.paged_decode.gluon_hopper_latent:IMPLEMENTATION",
    ("paged_decode", "triton_latent"): "autotune.search_spaces.paged_decode.triton_latent:IMPLEMENTATION",
    ("paged_prefill", "triton"): "autotune.search_spaces.paged_prefill.triton:IMPLEMENTATION",
    ("paged_prefill", "gluon_hopper"): "autotune.search_spaces.paged_prefill.gluon_hopper:IMPLEMENTATION",
}
