"""Calls of the public functions on small tensors, their truth in fp64, and the same as arguments of the ops."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest
import torch

import autotune.torch_ops
from autotune.correctness import error_limit
from autotune.kernels.paged_decode.reference import paged_decode_reference
from autotune.kernels.paged_prefill.reference import paged_prefill_reference
from tests.dispatch.tables import Tables, served_from
from tests.kernels.numerics import compare, dense_attention

HALF: Final = torch.float16
FORMS: Final = ("", "_with_lse", "_out", "_out_with_lse")
OPS: Final = tuple(
    [f"{name}{form}" for name in ("attention", "attention_varlen", "paged_decode", "paged_prefill") for form in FORMS]
    + ["append_kv"]
)
HEADS, KV_HEADS, WIDTH, PAGE_SIZE = 4, 2, 16, 16


@contextmanager
def untuned() -> Iterator[Tables]:
    """Serve an H200 from tables that are empty at first."""
    with TemporaryDirectory() as folder, served_from(Tables(Path(folder))) as tables:
        yield tables


def draw(*sizes: int, seed: int = 0, dtype: torch.dtype = HALF, device: str = "cpu") -> torch.Tensor:
    generator = torch.Generator(device=device).manual_seed(seed)
    return torch.randn(*sizes, generator=generator, device=device).to(dtype)


def dense(seq: int, *, batch: int = 2, dtype: torch.dtype = HALF, device: str = "cpu") -> tuple[torch.Tensor, ...]:
    """Random q, k and v."""
    heads = (HEADS, KV_HEADS, KV_HEADS)
    return tuple(draw(batch, seq, n, WIDTH, seed=i, dtype=dtype, device=device) for i, n in enumerate(heads))


def paged(lengths: tuple[int, ...], *, pages_each: int = 4, device: str = "cpu") -> dict[str, Any]:
    """A query of each sequence over caches that share a buffer, as ``PagedKVCache`` has them; pages in mixed order."""
    batch = len(lengths)
    both = draw(batch * pages_each, 2, PAGE_SIZE, KV_HEADS, WIDTH, seed=7, device=device)
    table = torch.randperm(batch * pages_each, generator=torch.Generator().manual_seed(0)).reshape(batch, pages_each)
    return {
        "q": draw(batch, HEADS, WIDTH, seed=8, device=device),
        "k_cache": both[:, 0],
        "v_cache": both[:, 1],
        "page_table": table.int().to(device),
        "seq_lens": torch.tensor(lengths, dtype=torch.int32, device=device),
    }


def packed(counts: tuple[int, ...], lengths: tuple[int, ...]) -> dict[str, Any]:
    """As ``paged``, with that many queries of each sequence."""
    offsets = torch.tensor([0, *counts]).cumsum(0).int()
    return paged(lengths) | {"q": draw(sum(counts), HEADS, WIDTH, seed=9), "cu_seqlens_q": offsets}


def varlen(lengths: tuple[tuple[int, int], ...]) -> dict[str, Any]:
    """Packed sequences of these numbers of queries and keys."""
    offsets = torch.tensor([(0, 0), *lengths]).cumsum(0).int()
    tokens, keys = offsets[-1].tolist()
    return {
        "q": draw(tokens, HEADS, WIDTH, seed=12),
        "k": draw(keys, KV_HEADS, WIDTH, seed=13),
        "v": draw(keys, KV_HEADS, WIDTH, seed=14),
        "cu_seqlens_q": offsets[:, 0].contiguous(),
        "cu_seqlens_k": offsets[:, 1].contiguous(),
    }


def new_tokens(count: int) -> dict[str, Any]:
    """Keys and values to append, the first and the last slot among those they go to."""
    caches = paged((0, 0))
    slots = torch.randperm(2 * 4 * PAGE_SIZE, generator=torch.Generator().manual_seed(1))[:count]
    return {
        "k": draw(count, KV_HEADS, WIDTH, seed=10),
        "v": draw(count, KV_HEADS, WIDTH, seed=11),
        **{name: caches[name] for name in ("k_cache", "v_cache")},
        "slots": slots,
    }


def dense_failure(found: tuple[torch.Tensor, ...], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> str | None:
    """Say how output, and log-sum-exp if there is one, of causal attention miss their truth in fp64."""
    features: dict[str, Any] = {"causal": True, "scale": q.shape[3] ** -0.5}
    expected, eager = (dense_attention(q, k, v, **features, dtype=dtype) for dtype in (torch.float64, q.dtype))
    failures = [compare(found[0], expected[0], error_limit(expected[0], eager[0], q.dtype))]
    failures += [compare(lse, expected[1], 1e-5) for lse in found[1:]]
    return next(filter(None, failures), None)


def decode_failure(found: torch.Tensor, tensors: dict[str, Any]) -> str | None:
    """Say how the output of decode misses its truth in fp64."""
    given = tensors | {"q": tensors["q"][:, None]}
    expected, eager = (paged_decode_reference(**given, dtype=dtype)[0][:, 0] for dtype in (torch.float64, HALF))
    return compare(found, expected, error_limit(expected, eager, HALF))


def prefill_failure(found: torch.Tensor, tensors: dict[str, Any]) -> str | None:
    """Say how the output of prefill misses its truth in fp64."""
    expected, eager = (paged_prefill_reference(**tensors, dtype=dtype)[0] for dtype in (torch.float64, HALF))
    return compare(found, expected, error_limit(expected, eager, HALF))


LONGEST: Final = {"max_seqlen_q": 8, "max_seqlen_k": 64}  # of packed sequences
FUNCTIONS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "attention": (autotune.attention, dict(zip("qkv", dense(9), strict=True))),
    "attention_varlen": (partial(autotune.attention_varlen, **LONGEST), varlen(((3, 33), (5, 20)))),
    "paged_decode": (autotune.paged_decode, paged((33, 20))),
    "paged_prefill": (autotune.paged_prefill, packed((3, 5), (33, 20))),
}
each_function = pytest.mark.parametrize("name", FUNCTIONS)


def op_of(name: str) -> Any:
    return getattr(torch.ops.autotune, name).default


def arguments_of(name: str) -> tuple[Any, ...]:
    """Arguments of an op, in its order; what is optional is absent."""
    given: dict[str, Any]
    if name.startswith("attention_varlen"):
        given = varlen(((3, 33), (5, 20))) | LONGEST | {"causal": True}
    elif name.startswith("attention"):
        given = dict(zip("qkv", dense(9), strict=True)) | {"causal": True}
    elif name.startswith("paged_decode"):
        given = paged((33, 20))
    elif name.startswith("paged_prefill"):
        given = packed((3, 5), (33, 20)) | {"causal": True}
    else:
        given = new_tokens(5)
    if "_out" in name:
        given["out"] = torch.zeros_like(given["q"])
    given |= {"layout": "NHD", "check": False}
    return tuple(given.get(argument.name) for argument in op_of(name)._schema.arguments)
