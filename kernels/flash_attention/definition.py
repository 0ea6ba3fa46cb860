"""Dense attention on tensors: random inputs, outputs, and the reference that defines what is correct."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from autotune.dtypes import QUANTIZED_DTYPES
from autotune.kernels.flash_attention.checks import check_fit
from autotune.kernels.flash_attention.operands import Operand, check_operands, check_picked
from autotune.kernels.flash_attention.reference import attention_reference
from autotune.kernels.flash_attention.scales import Scale, dequantize, is_quantized, output_dtype, quantize
from autotune.kernels.product_precision import truncation_error
from autotune.shape import AttentionShape

SOFTCAP: Final = 20.0  # a typical cap, for inputs of shapes that have one (Gemma-2 uses 50, Grok-1 30)
MetaTensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
SCALED_PER: Final = ("tensor", "head", "sequence")  # of queries, keys and values of random inputs
PRODUCTS: Final = 32  # of e4m3, that the matrix unit adds at once
KEPT_BITS: Final = 13  # below the largest addend (DeepSeek-V3, arXiv 2412.19437, 3.3.2: sums of "around 14 bits")
OPERANDS: Final = ("attn_mask", "sinks", "kv_ends")
HIDDEN: Final = 1 / 8  # of the keys, by random masks
SEEN_TOGETHER: Final = 100  # tokens of an image, say; no multiple of a tile
ROW_UNIT: Final = 16  # elements: Triton has another binary for strides that are no multiple
CHECK_SEQ: Final = 512  # two tiles of the longest block
ODD_SEQ: Final = (333, 457)  # multiples of no block size


@dataclass(frozen=True, slots=True)
class Inputs:
    """Queries, keys and values ``[B, S, H, D]`` and what the call says about them.

    ``attn_mask`` is boolean or additive, ``[B or 1, H or 1, S_q, S_kv]``, ``sinks`` fp32 ``[H]``, ``kv_ends`` int32
    ``[B, S_q]``, or None.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    causal: bool
    window: int | None
    softcap: float | None
    scale: float
    q_scale: Scale = None
    k_scale: Scale = None
    v_scale: Scale = None
    attn_mask: Operand = None
    sinks: Operand = None
    kv_ends: Operand = None


class Attention:
    """Implements ``autotune.operation.Definition`` for ``AttentionShape``."""

    def make_inputs(self, shape: AttentionShape, *, seed: int, device: str, data: str = "normal") -> Inputs:
        """Draw random tensors.

        ``large``: scores far apart; ``tails``: the scores grow along the keys, so that the running maximum moves with
        every block and the last keys carry the weight.
        """
        generator = torch.Generator(device=device).manual_seed(seed)

        def draw(length: int, heads: int, width: int) -> torch.Tensor:
            return torch.randn(shape.batch, length, heads, width, generator=generator, device=device)

        q = draw(shape.seq_q, shape.heads, shape.head_dim)
        k = draw(shape.seq_kv, shape.kv_heads, shape.head_dim)
        v = draw(shape.seq_kv, shape.kv_heads, shape.head_dim_v)
        if data == "large":
            q, k = 6.0 * q, 2.0 * k
        elif data == "tails":
            ramp = torch.linspace(-2.0, 2.0, shape.seq_kv, device=device)[None, :, None, None]
            q, k = 0.5 * q + 1.0, 0.3 * k + ramp
        dtype = getattr(torch, shape.dtype)
        features: dict[str, Any] = {"causal": shape.causal, "window": shape.window, "scale": shape.head_dim**-0.5}
        features["softcap"] = SOFTCAP if shape.softcap else None
        if shape.dtype in QUANTIZED_DTYPES:  # a scale of each kind
            pairs = [quantize(each, dtype, per) for each, per in zip((q, k, v), SCALED_PER, strict=True)]
            (q, q_scale), (k, k_scale), (v, v_scale) = pairs
            features |= {"q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale}
        features |= draw_operands(shape, generator, device)
        return Inputs(q.to(dtype), k.to(dtype), v.to(dtype), **features)

    def check_shapes(self, shape: AttentionShape) -> Sequence[AttentionShape]:
        """Return two small problems of the heads' layout that run the same binaries: no size is specialized.

        The second has odd lengths, in the shape's order: where queries outnumber keys, causal rows see no key. A window
        is short enough to hide keys of both: without one it would be another binary.
        """
        kv_heads = min(shape.kv_heads, 2)
        small = replace(shape, batch=min(shape.batch, 2), heads=kv_heads * shape.group, kv_heads=kv_heads)
        seq_q, seq_kv = min(shape.seq_q, CHECK_SEQ), min(shape.seq_kv, CHECK_SEQ)
        most_q, most_kv = ODD_SEQ if shape.seq_q <= shape.seq_kv else ODD_SEQ[::-1]
        odd_q, odd_kv = max(1, min(shape.seq_q - 1, most_q)), max(1, min(shape.seq_kv - 1, most_kv))
        return tuple(_resized(small, *lengths) for lengths in ((seq_q, seq_kv), (odd_q, odd_kv)))

    def empty_outputs(self, inputs: Inputs) -> tuple[torch.Tensor, ...]:
        """Allocate the output ``[B, S_q, H, D_v]`` and the fp32 log-sum-exp ``[B, H, S_q]``."""
        batch, seq_q, heads, _ = inputs.q.shape
        like, device = output_dtype(inputs.q.dtype), inputs.q.device
        out = torch.full((batch, seq_q, heads, inputs.v.shape[3]), float("nan"), dtype=like, device=device)
        return out, torch.full((batch, heads, seq_q), float("nan"), dtype=torch.float32, device=device)

    def statistic_slack(self, inputs: Inputs) -> float:
        """Return how far a score may be off that is summed by the matrix unit, as the log-sum-exp then is."""
        if is_quantized(inputs.q):
            return score_error(inputs)
        return truncation_error(inputs.q, inputs.k, inputs.scale)

    def reference(self, inputs: Inputs, *, dtype: torch.dtype | None = None) -> tuple[torch.Tensor, ...]:
        """Compute over what the tensors and their scales stand for.

        Of e4m3 eager torch would compute in fp32, but for weights, which its product takes in e4m3.
        """
        features: dict[str, Any] = {name: getattr(inputs, name) for name in ("causal", "window", "softcap", "scale")}
        features |= {name: getattr(inputs, name) for name in OPERANDS}
        if not is_quantized(inputs.q):
            return attention_reference(inputs.q, inputs.k, inputs.v, **features, dtype=dtype)
        if dtype is not None:
            features["weights_dtype"] = inputs.q.dtype
        wide = torch.float64 if dtype is None else torch.float32
        scaled = [dequantize(getattr(inputs, name), getattr(inputs, f"{name}_scale"), wide) for name in ("q", "k", "v")]
        return attention_reference(*scaled, **features, dtype=wide)

    def bind_inputs(self, shape: AttentionShape, tensors: Sequence[torch.Tensor], options: dict[str, Any]) -> Inputs:
        q, k, v = tensors
        scale, softcap = options.get("scale"), options.get("softcap")
        check_fit(shape, q, k, v, scale=scale, softcap=softcap)
        operands = {name: options.get(name) for name in OPERANDS}
        check_picked(shape, **operands)
        check_operands(q, shape.seq_kv, **operands)
        scale = shape.head_dim**-0.5 if scale is None else scale
        return Inputs(q, k, v, causal=shape.causal, window=shape.window, softcap=softcap, scale=scale, **operands)


def _resized(shape: AttentionShape, seq_q: int, seq_kv: int) -> AttentionShape:
    """Return the shape of other lengths; a window that it has is of half the keys at most, or of one."""
    window = None if shape.window is None else min(shape.window, max(1, seq_kv // 2))
    return replace(shape, seq_q=seq_q, seq_kv=seq_kv, window=window)


def meta_tensors(shape: AttentionShape) -> MetaTensors:
    """Return queries, keys, values, output and log-sum-exp of a shape on the meta device, to compile for."""

    def empty(length: int, heads: int, width: int) -> torch.Tensor:
        return torch.empty(shape.batch, length, heads, width, dtype=getattr(torch, shape.dtype), device="meta")

    out = empty(shape.seq_q, shape.heads, shape.head_dim_v)
    return (
        empty(shape.seq_q, shape.heads, shape.head_dim),
        empty(shape.seq_kv, shape.kv_heads, shape.head_dim),
        empty(shape.seq_kv, shape.kv_heads, shape.head_dim_v),
        torch.empty_like(out, dtype=output_dtype(out.dtype)),
        torch.empty(shape.batch, shape.heads, shape.seq_q, device="meta"),
    )


def empty_operands(shape: AttentionShape, device: str) -> dict[str, Operand]:
    """Allocate the mask and the sinks of a problem of a shape, None where it has none.

    Rows of a mask begin at multiples of ``ROW_UNIT``, whatever their length: all problems run one binary.
    """
    attn_mask = sinks = None
    if shape.attn_mask is not None:
        is_boolean = shape.attn_mask == "boolean"
        sizes = (shape.batch, 1) if is_boolean else (1, shape.heads)
        dtype = torch.bool if is_boolean else getattr(torch, shape.dtype)
        columns = -(-shape.seq_kv // ROW_UNIT) * ROW_UNIT
        attn_mask = torch.empty(*sizes, shape.seq_q, columns, dtype=dtype, device=device)[..., : shape.seq_kv]
    if shape.sinks:
        sinks = torch.empty(shape.heads, dtype=torch.float32, device=device)
    kv_ends = torch.empty(shape.batch, shape.seq_q, dtype=torch.int32, device=device) if shape.kv_ends else None
    return {"attn_mask": attn_mask, "sinks": sinks, "kv_ends": kv_ends}


def draw_operands(shape: AttentionShape, generator: torch.Generator, device: str) -> dict[str, Operand]:
    """Draw the mask and the sinks of a problem.

    A mask hides the last ``HIDDEN`` of the keys, as padding, all of the first of several queries, and as
    many others at random. Of half of the blocks of ``SEEN_TOGETHER`` queries each sees the whole block.
    """
    operands = empty_operands(shape, device)
    mask, sinks, kv_ends = operands.values()
    if mask is not None:
        noise = torch.randn(mask.shape, generator=generator, device=device)
        hidden = torch.rand(mask.shape, generator=generator, device=device) < HIDDEN
        hidden[..., shape.seq_kv - int(HIDDEN * shape.seq_kv) :] = True
        hidden[:, :, : min(1, shape.seq_q - 1)] = True
        mask.copy_(~hidden if mask.dtype == torch.bool else noise.masked_fill_(hidden, -math.inf))
    if sinks is not None:
        sinks.normal_(generator=generator)
    if kv_ends is not None:
        block = torch.arange(shape.seq_q, device=device) // SEEN_TOGETHER
        is_drawn = torch.rand(shape.batch, shape.seq_q, generator=generator, device=device)[:, block] < 0.5
        ends = (block + 1) * SEEN_TOGETHER + shape.seq_kv - shape.seq_q
        kv_ends.copy_(torch.where(is_drawn, ends, torch.zeros_like(ends)))
    return operands


def score_error(inputs: Inputs) -> float:
    """Bound how far a scaled score of e4m3 may be off on Hopper, whose sums keep some 14 bits.

    A step adds 32 products and the sum so far, each cut off below 2 ** -13 of the largest of these 33, none of which is
    larger than the lengths of the query and of the key multiplied. Heads of width D take D / 32 steps.
    """
    if not inputs.q.numel() or not inputs.k.numel():
        return 0.0
    pairs = ((inputs.q, inputs.q_scale), (inputs.k, inputs.k_scale))
    lengths = [dequantize(*pair, torch.float32).norm(dim=3).max().item() for pair in pairs]
    steps = math.ceil(inputs.q.shape[3] / PRODUCTS)
    return float(inputs.scale * steps * (PRODUCTS + 1) * 2.0**-KEPT_BITS * lengths[0] * lengths[1])


DEFINITION: Final = Attention()
