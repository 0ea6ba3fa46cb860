"""Problems for FlexAttention and how they are judged: shapes, and score functions and masks that no shape has."""

import math
from typing import Any, Final

import torch

from autotune.correctness import error_limit
from autotune.kernels.baselines.flex import Flex
from autotune.kernels.flash_attention.definition import DEFINITION
from autotune.kernels.flash_attention.flex.compiled import attend, compile_attention
from autotune.kernels.flash_attention.flex.masks import alibi, causal_mask, document_mask
from autotune.shape import AttentionShape
from tests.kernels.numerics import compare, dense_attention

SHAPES: Final[dict[str, dict[str, Any]]] = {
    "full": {"seq_q": 129},
    "causal": {"seq_q": 129, "causal": True},
    "causal, more keys": {"seq_q": 17, "seq_kv": 129, "causal": True, "kv_heads": 2},
    "causal, more queries": {"seq_q": 129, "seq_kv": 17, "causal": True, "head_dim": 72},
    "causal, one query": {"seq_q": 1, "seq_kv": 129, "causal": True, "kv_heads": 1},
    "one": {"seq_q": 1, "head_dim": 128},
    "window": {"seq_q": 129, "seq_kv": 200, "window": 9},
    "causal window": {"seq_q": 200, "seq_kv": 129, "causal": True, "window": 40, "head_dim": 128},
    "softcap": {"seq_q": 17, "softcap": True, "head_dim_v": 128},
    "all": {"seq_q": 65, "seq_kv": 129, "causal": True, "window": 9, "softcap": True, "kv_heads": 2},
}
MODS: Final = ("no-op", "alibi", "causal alibi", "document", "causal document")


def shape_of(fields: dict[str, Any], dtype: str) -> AttentionShape:
    return AttentionShape(**({"batch": 2, "heads": 4, "head_dim": 64} | fields), dtype=dtype)


def shape_failure(shape: AttentionShape, device: str, options: dict[str, int] | None = None) -> str | None:
    """Of the baseline, or with options of what a config of ours runs."""
    inputs = DEFINITION.make_inputs(shape, seed=0, device=device)
    out = attend(inputs, options) if options else Flex().prepare(shape, inputs)()
    features: Any = {
        "causal": shape.causal,
        "window": shape.window,
        "softcap": inputs.softcap,
        "scale": inputs.scale,
    }
    expected, _ = dense_attention(inputs.q, inputs.k, inputs.v, **features)
    eager, _ = dense_attention(inputs.q, inputs.k, inputs.v, **features, dtype=inputs.q.dtype)
    return compare(out, expected, error_limit(expected, eager, inputs.q.dtype))


def mod_failure(mod: str, dtype: torch.dtype, device: str) -> str | None:
    """Attention with a score function or a mask that no shape has, against its formula in fp64."""
    generator = torch.Generator(device=device).manual_seed(0)

    def draw(length: int, heads: int) -> torch.Tensor:
        return torch.randn(2, length, heads, 64, generator=generator, device=device).to(dtype)

    seq_q, seq_kv, heads = 60, 150, 4
    q, k, v = draw(seq_q, heads), draw(seq_kv, 2), draw(seq_kv, 2)
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625], device=device)
    documents = torch.tensor([0] * 70 + [1] * 45 + [2] * 35, dtype=torch.int32, device=device)
    offset = seq_kv - seq_q
    mask_mods = [causal_mask(offset)] if "causal" in mod else []
    mask_mods += [document_mask(documents[offset:], documents)] if "document" in mod else []
    call = compile_attention(
        q,
        k,
        v,
        scale=0.125,
        score_mod=alibi(slopes, offset) if "alibi" in mod else None,
        mask_mod=both(mask_mods),
    ).bind(q, k, v)
    age_q, age_k = (torch.arange(length, device=device).flip(0) for length in (seq_q, seq_kv))  # 0: the last one
    bias = torch.zeros(heads, seq_q, seq_kv, dtype=torch.float64, device=device)
    if "alibi" in mod:
        bias = slopes.double()[:, None, None] * (age_q[:, None] - age_k[None, :])
    if "causal" in mod:
        bias = bias.masked_fill(age_k[None, :] < age_q[:, None], -math.inf)
    if "document" in mod:
        bias = bias.masked_fill(documents.flip(0)[age_k][None, :] != documents.flip(0)[age_q][:, None], -math.inf)
    expected, eager = (biased_attention(q, k, v, bias, kind) for kind in (torch.float64, dtype))
    return compare(call(), expected, error_limit(expected, eager, dtype))


def both(mask_mods: list[Any]) -> Any:
    from torch.nn.attention.flex_attention import and_masks

    return and_masks(*mask_mods) if mask_mods else None


def biased_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """``softmax(0.125 q k^T + bias) v`` by its formula, every result in that type."""
    group = q.shape[2] // k.shape[2]
    q, k, v = (tensor.to(dtype).transpose(1, 2) for tensor in (q, k, v))
    scores = q @ k.repeat_interleave(group, 1).mT * 0.125 + bias.to(dtype)
    return (torch.softmax(scores, -1) @ v.repeat_interleave(group, 1)).transpose(1, 2)
