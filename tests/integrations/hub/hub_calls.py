"""The kernel as ``kernels`` and transformers load it, in a process that interprets: each function returns None, or what
differs. fp32 and fp16: Triton's interpreter computes bf16 wrongly."""

import os
from importlib import import_module
from typing import Any, Final

import torch
import transformers
from torch.nn.functional import scaled_dot_product_attention
from transformers.integrations import hub_kernels

from autotune.errors import MissingDependencyError
from autotune.integrations.hub import FOLDER, NAME, VARIABLE, register
from tests.integrations.flash_attn_cases import DIM, HEADS, KV_HEADS, drawn
from tests.integrations.transformers import tiny_models

TOLERANCES: Final = {"float32": 2e-5, "float16": 2e-3}
BATCH, TOKENS, SLOTS = 2, 21, 32


def loaded(way: str) -> Any:
    """Return the module by a function of ``kernels``: of the folder, or of its name."""
    kernels = import_module("kernels")
    if way == "get_local_kernel":
        return kernels.get_local_kernel(FOLDER)
    os.environ[VARIABLE] = f"{NAME}={FOLDER}"
    return kernels.get_kernel(NAME, version=1)


def sdpa_difference(way: str, dtype_name: str) -> str | None:
    """Compute causal attention by each of the three functions, beside torch's in fp32."""
    module, dtype = loaded(way), getattr(torch, dtype_name)
    q, k, v = (drawn(BATCH, TOKENS, heads, DIM, seed=n).to(dtype) for n, heads in enumerate((HEADS, *[KV_HEADS] * 2)))
    rows, keys, values = (each.transpose(1, 2).float() for each in (q, k, v))
    true = scaled_dot_product_attention(rows, keys, values, is_causal=True, enable_gqa=True).transpose(1, 2)
    ends = torch.arange(0, (BATCH + 1) * TOKENS, TOKENS, dtype=torch.int32)
    caches = [drawn(BATCH, SLOTS, KV_HEADS, DIM, seed=9).to(dtype) for _ in range(2)]
    for cache, source in zip(caches, (k, v), strict=True):
        cache[:, : TOKENS - 1] = source[:, :-1]
    found = {
        "flash_attn_func": module.flash_attn_func(q, k, v, causal=True) - true,
        "flash_attn_varlen_func": module.flash_attn_varlen_func(
            *(each.flatten(0, 1) for each in (q, k, v)), ends, ends, TOKENS, TOKENS, causal=True
        )
        - true.flatten(0, 1),
        "flash_attn_with_kvcache": module.flash_attn_with_kvcache(
            q[:, -1:], *caches, k[:, -1:], v[:, -1:], cache_seqlens=TOKENS - 1, causal=True
        )
        - true[:, -1:],
    }
    apart = {name: float(each.abs().max()) for name, each in found.items()}
    return f"{apart}" if max(apart.values()) > TOLERANCES[dtype_name] else None


def meet_transformers() -> None:
    """Register; where transformers takes other versions of ``kernels``, let it load by this: all else is its own."""
    try:
        register()
    except MissingDependencyError:
        os.environ[VARIABLE] = f"{NAME}={FOLDER}"
        vars(hub_kernels).update(is_kernels_available=lambda: True, get_kernel_hub=import_module("kernels").get_kernel)


def logits_difference(name: str, side: str) -> str | None:
    meet_transformers()
    mask = tiny_models.padding(side)
    real = slice(None) if mask is None else mask.bool()
    return tiny_models.difference(
        tiny_models.decoder(name),
        lambda model: model(tiny_models.prompts(), attention_mask=mask).logits[real],
        ours=NAME,
    )


def packed_difference(name: str) -> str | None:
    """Compute a row of three sequences, which start where their positions do."""
    meet_transformers()
    positions = torch.tensor([[*range(5), *range(4), *range(2)]])
    return tiny_models.difference(
        tiny_models.decoder(name),
        lambda model: model(tiny_models.prompts(1), position_ids=positions, use_cache=False).logits,
        ours=NAME,
    )


def continuous_difference(name: str) -> str | None:
    """Generate from prompts of three lengths by continuous batching, and from each alone by eager attention."""
    meet_transformers()
    rows = [row[:length].tolist() for row, length in zip(tiny_models.prompts(), (11, 5, 8), strict=True)]
    options = {"max_new_tokens": 3, "do_sample": False, "eos_token_id": -1, "pad_token_id": 0}
    sizes = transformers.ContinuousBatchingConfig(num_blocks=16, max_batch_tokens=64)

    def call(model: Any) -> torch.Tensor:
        if model.config._attn_implementation == "eager":
            return torch.cat([model.generate(torch.tensor([row]), **options)[:, len(row) :] for row in rows])
        outputs = model.generate_batch(
            rows, transformers.GenerationConfig(**options), continuous_batching_config=sizes, progress_bar=False
        )
        return torch.tensor([each.generated_tokens for each in outputs.values()])

    return tiny_models.difference(tiny_models.decoder(name), call, ours=NAME)
