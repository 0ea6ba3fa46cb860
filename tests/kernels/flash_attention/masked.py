"""Attention with operands beside dense attention in fp64: every way in which a mask may lie in memory."""

import math
from typing import Any, Final

import torch

from autotune.correctness import STATISTIC_UNITS, error_limit
from autotune.kernels.flash_attention.triton_masked import KERNEL
from autotune.kernels.flash_attention.triton_masked.launch import launch
from autotune.shape import AttentionShape
from autotune.space import Config
from tests.kernels.numerics import compare, dense_attention

BATCH, HEADS, KV_HEADS, WIDTH = 2, 4, 2, 16
TILES: Final[dict[str, Any]] = {"BLOCK_Q": 16, "BLOCK_K": 16, "num_warps": 1, "num_stages": 1, "loads": "pointer"}
CONFIGS: Final = {each: Config({**TILES, "hidden_tiles": each}) for each in ("computed", "skipped")}


def boolean(sizes: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Return a mask with a blind row, and with tiles that it hides wholly."""
    mask = torch.rand(sizes, generator=generator, device=generator.device) < 0.6
    mask[..., 16:48] = False
    if sizes[2] > 1:
        mask[:, :, 3] = False
    return mask


def additive(sizes: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
    """Return a bias that hides what a boolean mask does."""
    bias = torch.randn(sizes, generator=generator, device=generator.device)
    return bias.masked_fill(~boolean(sizes, generator), -math.inf).to(dtype)


def draw_mask(name: str, seq_q: int, seq_kv: int, dtype: torch.dtype, generator: torch.Generator) -> Any:
    """Return the operand of a name: its kind, and how it lies in memory."""
    every = (BATCH, HEADS, seq_q, seq_kv)
    match name:
        case "one for all":
            return boolean((1, 1, seq_q, seq_kv), generator)
        case "of a sequence":
            return boolean((BATCH, 1, seq_q, seq_kv), generator)
        case "of keys":
            return boolean((BATCH, 1, 1, seq_kv), generator)
        case "expanded":
            return boolean((BATCH, 1, 1, seq_kv), generator).expand(every)
        case "bias of a head":
            return additive((1, HEADS, seq_q, seq_kv), generator, dtype)
        case "bias in float32":
            return additive(every, generator, torch.float32)
        case "transposed":
            return additive((BATCH, HEADS, seq_kv, seq_q), generator, dtype).transpose(2, 3)
        case "cut":  # rows that begin at odd addresses
            return additive((BATCH, HEADS, seq_q + 1, seq_kv + 3), generator, dtype)[:, :, 1:, 3:]
    return None


def draw_ends(seq_q: int, seq_kv: int, device: str) -> torch.Tensor:
    """Return ends of keys behind the diagonal, before it, below 0 and past the last key; of rows with a stride."""
    position = torch.arange(seq_q, device=device) + seq_kv - seq_q
    of_blocks = torch.where(position % 20 < 12, (position // 20 + 1) * 20, -5)
    past = torch.where(position % 7 == 0, seq_kv + 100, position // 2)
    return torch.stack([of_blocks, position, past]).int()[::2]


MASKS: Final = (
    *("none", "one for all", "of a sequence", "of keys", "expanded"),
    *("bias of a head", "bias in float32", "transposed", "cut"),
)


def mask_failure(name: str, features: dict[str, Any], dtype_name: str, tiles: str, device: str) -> str | None:
    """Say how output or logarithm miss their truth, over odd lengths; ``features`` are of the call."""
    generator, dtype = torch.Generator(device=device).manual_seed(1), getattr(torch, dtype_name)
    seq_q, seq_kv = features.get("lengths", (19, 59))

    def draw(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, generator=generator, device=device).to(dtype)

    q = draw(BATCH, seq_q, HEADS, WIDTH)
    k, v = (draw(BATCH, seq_kv, KV_HEADS, WIDTH) for _ in "kv")
    given: dict[str, Any] = {key: features.get(key) for key in ("window", "softcap")}
    given |= {"causal": features.get("causal", False), "scale": 0.3}
    given["attn_mask"] = draw_mask(name, seq_q, seq_kv, dtype, generator)
    given["sinks"] = draw(HEADS) if features.get("sinks") else None
    given["kv_ends"] = draw_ends(seq_q, seq_kv, device) if features.get("ends") else None
    out, lse = torch.full_like(q, math.nan), torch.full((BATCH, HEADS, seq_q), math.nan, device=device)
    launch(q, k, v, out, lse, **given, options={**CONFIGS[tiles]})
    expected = dense_attention(q, k, v, **given)
    for index, (found, true) in enumerate(zip((out, lse), expected, strict=True)):
        rounded = dense_attention(q, k, v, **given, dtype=found.dtype)[index]
        limit = error_limit(true, rounded, found.dtype, **({"units": STATISTIC_UNITS} if index else {}))
        if (failure := compare(found, true, limit)) is not None:
            return f"output {index}: {failure}"
    return None


def call_failure(device: str) -> str | None:
    """Say how a bound kernel's call misses the reference: into a buffer of other strides, with sinks."""
    shape = AttentionShape(
        batch=BATCH, heads=HEADS, kv_heads=KV_HEADS, seq_q=9, head_dim=WIDTH, dtype="float16", attn_mask="boolean",
        sinks=True,
    )  # fmt: skip
    call = KERNEL.bind(CONFIGS["computed"], shape)
    generator = torch.Generator(device=device).manual_seed(1)
    q = torch.randn(BATCH, 9, HEADS, WIDTH, generator=generator, device=device).half()
    k, v = q[:, :, :KV_HEADS], q[:, :, KV_HEADS:]
    mask, sinks = boolean((BATCH, 1, 1, 9), generator), torch.randn(HEADS, generator=generator, device=device)
    buffer = torch.zeros(BATCH, HEADS, 9, WIDTH, dtype=q.dtype, device=device).transpose(1, 2)
    out, lse = call(q, k, v, attn_mask=mask, sinks=sinks, scale=0.5, return_lse=True, out=buffer)
    expected = dense_attention(q, k, v, attn_mask=mask, sinks=sinks, scale=0.5)
    if out is not buffer:
        return "another buffer"
    return compare(out, expected[0], 2e-3) or compare(lse, expected[1], 1e-5)
