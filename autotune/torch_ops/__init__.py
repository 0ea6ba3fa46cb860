"""Ops of ``torch.library`` behind the public functions, in the namespace ``autotune``: what traced code calls.

Each looks up its kernel when it runs, by the sizes of that call. Importing this package loads torch and defines them.
"""

from autotune.torch_ops.dense import ATTENTION, refuse_quantized
from autotune.torch_ops.paged import PAGED_DECODE, PAGED_PREFILL, append_kv
from autotune.torch_ops.varlen import ATTENTION_VARLEN

__all__ = ["ATTENTION", "ATTENTION_VARLEN", "PAGED_DECODE", "PAGED_PREFILL", "append_kv", "refuse_quantized"]
