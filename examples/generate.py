"""Greedy generation over a paged cache: a ragged prefill, then token by token, checked against torch's own attention.

A small decoder on random weights reads prompts of different lengths in one ``paged_prefill``, then decodes all of them
together. Afterwards the same model, with ``scaled_dot_product_attention`` over contiguous tensors, reads each finished
sequence and must have chosen the same token at every step. Without a GPU a tiny model runs in Triton's interpreter.

    python examples/generate.py
"""

import argparse
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

HAS_GPU = torch.cuda.is_available()
if not HAS_GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

import autotune  # noqa: E402

# (layer, q, k, v) -> out; tensors are [T, H, D]
Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of the model, its cache and the prompts, and the allowed difference of logits of equal models."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    page_size: int
    prompts: tuple[int, ...]  # lengths
    new_tokens: int
    dtype: torch.dtype
    near_tie: float  # tokens whose logits are closer than this are equally good: rounding decides


GPU = Sizes(
    layers=4, heads=16, kv_heads=4, head_dim=64, vocabulary=8192, page_size=16,
    prompts=(1, 17, 100, 256, 300, 511, 700, 1000), new_tokens=32, dtype=torch.bfloat16, near_tie=0.1,
)  # fmt: skip
INTERPRETER = Sizes(
    layers=2, heads=4, kv_heads=2, head_dim=16, vocabulary=128, page_size=4,
    prompts=(1, 6, 11), new_tokens=6, dtype=torch.float32, near_tie=1e-4,
)  # fmt: skip


class Model:
    """A decoder with rotary positions and grouped query heads; its attention is an argument of each call."""

    def __init__(self, sizes: Sizes, device: str) -> None:
        self.sizes = sizes
        generator = torch.Generator().manual_seed(0)

        def weights(rows: int, columns: int) -> torch.Tensor:
            values = torch.randn(rows, columns, generator=generator) / math.sqrt(rows)
            return values.to(device, sizes.dtype)

        width, kv_width = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        self.embedding = weights(sizes.vocabulary, width) * math.sqrt(sizes.vocabulary)
        self.layers = [
            {"q": weights(width, width), "k": weights(width, kv_width), "v": weights(width, kv_width)}
            | {"out": weights(width, width), "up": weights(width, 4 * width), "down": weights(4 * width, width)}
            for _ in range(sizes.layers)
        ]
        self.head = weights(width, sizes.vocabulary).float()  # in 16 bits, logits would often be equal

    def logits(self, tokens: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """Return logits fp32 ``[T, vocabulary]`` of tokens ``[T]`` at these positions of their sequences."""
        hidden = self.embedding[tokens]
        for index, layer in enumerate(self.layers):
            normed = _normalize(hidden)
            q, k, v = ((normed @ layer[name]).view(len(tokens), -1, self.sizes.head_dim) for name in ("q", "k", "v"))
            out = attend(index, _rotate(q, positions), _rotate(k, positions), v)
            hidden = hidden + out.flatten(1) @ layer["out"]
            hidden = hidden + torch.nn.functional.silu(_normalize(hidden) @ layer["up"]) @ layer["down"]
        return _normalize(hidden).float() @ self.head


def _normalize(hidden: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.rms_norm(hidden, hidden.shape[-1:])


def _rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Apply rotary position embedding to ``[T, H, D]``."""
    half = x.shape[2] // 2
    angles = positions[:, None, None] / 10000.0 ** (torch.arange(half, device=x.device) / half)
    low, high = x.float().chunk(2, 2)
    rotated = (low * angles.cos() - high * angles.sin(), high * angles.cos() + low * angles.sin())
    return torch.cat(rotated, 2).to(x.dtype)


def pick_kernels(sizes: Sizes) -> tuple[Callable[..., Any], autotune.TunedKernel]:
    """Pick the kernels of the prefill and of the decoding steps; without a GPU both are picked for a named device."""
    lengths = [prompt + sizes.new_tokens for prompt in sizes.prompts]
    shape = autotune.PagedShape(
        batch=len(lengths),
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        page_size=sizes.page_size,
        dtype=str(sizes.dtype).removeprefix("torch."),
        max_context=max(lengths),
        mean_context=sum(lengths) // len(lengths),
    )
    if HAS_GPU:
        return autotune.paged_prefill, autotune.get_kernel(shape)
    packed = replace(shape, seq_q=sum(sizes.prompts) // len(sizes.prompts))
    prefill = autotune.get_kernel(packed, device="NVIDIA H200", operation="paged_prefill")
    return prefill, autotune.get_kernel(shape, device="NVIDIA H200")


def generate(
    model: Model, prompts: Sequence[torch.Tensor], prefill: Callable[..., Any], decode: Callable[..., Any]
) -> torch.Tensor:
    """Return the tokens after each prompt, int64 ``[prompts, new_tokens]``; keys and values stay in paged caches."""
    sizes, device, batch = model.sizes, prompts[0].device, len(prompts)
    counts = [len(prompt) for prompt in prompts]
    pages = sum(-(-(count + sizes.new_tokens) // sizes.page_size) for count in counts)
    caches = [
        autotune.PagedKVCache(
            pages=pages, page_size=sizes.page_size, kv_heads=sizes.kv_heads, head_dim=sizes.head_dim,
            dtype=sizes.dtype, device=device,
        )
        for _ in range(sizes.layers)
    ]  # fmt: skip
    sequences = [[cache.allocate() for _ in prompts] for cache in caches]

    def store(layer: int, k: torch.Tensor, v: torch.Tensor, counts: list[int]) -> tuple[torch.Tensor, ...]:
        """Append new keys and values to the layer's cache; return the tensors that kernels read."""
        cache, ids = caches[layer], sequences[layer]
        for sequence, new_k, new_v in zip(ids, k.split_with_sizes(counts), v.split_with_sizes(counts), strict=True):
            cache.append(sequence, new_k, new_v)
        return cache.k_cache, cache.v_cache, cache.page_table(ids), cache.seq_lens(ids)

    lengths = torch.tensor(counts, device=device)
    ends = lengths.cumsum(0)
    offsets = torch.nn.functional.pad(ends, (1, 0)).int()  # of each prompt's queries among the packed ones
    positions = torch.cat([torch.arange(count, device=device) for count in counts])
    logits = model.logits(
        torch.cat(list(prompts)), positions, lambda layer, q, k, v: prefill(q, *store(layer, k, v, counts), offsets)
    )
    chosen = [logits[ends - 1].argmax(1)]
    for step in range(sizes.new_tokens - 1):
        logits = model.logits(
            chosen[-1], lengths + step, lambda layer, q, k, v: decode(q, *store(layer, k, v, [1] * batch))
        )
        chosen.append(logits.argmax(1))
    return torch.stack(chosen, 1)


def attend_by_torch(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Compute causal attention of one sequence by torch."""
    q, k, v = (x.transpose(0, 1)[None].contiguous() for x in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return out[0].transpose(0, 1)


def compare(model: Model, prompt: torch.Tensor, tokens: torch.Tensor) -> tuple[int, float]:
    """Return the number of tokens that torch chooses too, and by how much its logits of the others are lower, at most.

    Where all are torch's, generating with torch alone gives the same sequence.
    """
    inputs = torch.cat([prompt, tokens[:-1]])
    logits = model.logits(inputs, torch.arange(len(inputs), device=inputs.device), attend_by_torch)[len(prompt) - 1 :]
    lower = logits.amax(1) - logits.gather(1, tokens[:, None])[:, 0]
    return int((logits.argmax(1) == tokens).sum()), lower.max().item()


@torch.no_grad()
def main() -> int:
    """Run the example; return exit code 1 if a token differs and rounding does not explain it."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    sizes, device = (GPU, "cuda") if HAS_GPU else (INTERPRETER, "cpu")
    where = torch.cuda.get_device_name() if HAS_GPU else "no GPU here: a tiny model in Triton's interpreter"
    print(f"{where}, {sizes.dtype}, prompts of {', '.join(map(str, sizes.prompts))} tokens")
    model = Model(sizes, device)
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(sizes.vocabulary, (n,), generator=generator).to(device) for n in sizes.prompts]
    prefill, decode = pick_kernels(sizes)
    print(f"decode    {decode.config}\npicked    {decode.provenance}")

    generated = generate(model, prompts, prefill, decode)
    equal, lower = zip(*(compare(model, *pair) for pair in zip(prompts, generated, strict=True)), strict=True)
    for prompt, tokens, count in zip(prompts, generated.tolist(), equal, strict=True):
        print(f"{len(prompt):5} +   {' '.join(map(str, tokens[:6]))} ...  {count} of {len(tokens)} as torch")
    print(f"agreement {sum(equal)} of {generated.numel()} tokens; logits of others lower by at most {max(lower):.2g}")
    return 0 if max(lower) <= sizes.near_tie else 1


if __name__ == "__main__":
    sys.exit(main())
