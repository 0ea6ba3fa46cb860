"""Attention over a contiguous cache of keys and values, in plain torch: append what is new, attend to all of it.

Two caches as Hugging Face transformers has them (``DynamicCache`` and ``StaticCache`` of its ``cache_utils.py``): one
that grows by concatenation, which copies everything at each step, and one of a capacity that is reserved at the start.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from autotune.errors import BaselineUnavailableError, InputMismatchError, UsageError
from autotune.kernels.baselines.baseline import OverCopies, missing_feature, missing_full_mask, refuse_unless_ready
from autotune.shape import PagedShape

if TYPE_CHECKING:
    from autotune.kernels.paged_decode.inputs import Inputs

MASK_ALIGNMENT: Final = 16  # elements, at least what torch asks of a mask's rows; others it copies at each call


class KVCache(ABC):
    """Keys and values of sequences of one length, from the first position on."""

    _keys: torch.Tensor | None = None  # [B, H_kv, length or more, D], as torch's attention reads it
    _values: torch.Tensor | None = None

    @property
    @abstractmethod
    def length(self) -> int:
        """Positions of each sequence so far."""

    @abstractmethod
    def append(self, k: torch.Tensor, v: torch.Tensor) -> None:
        """Add the next positions, ``k [B, S, H_kv, D]`` and ``v [B, S, H_kv, D_v]``."""

    @abstractmethod
    def reset(self) -> None:
        """Forget all positions."""

    def attend(self, q: torch.Tensor, *, scale: float | None = None) -> torch.Tensor:
        """Compute attention of the last positions ``q [B, S_q, H, D]``, each over the keys up to its own.

        ``scale`` is ``D ** -0.5`` by default. Returns ``[B, S_q, H, D_v]``.

        Raises:
            InputMismatchError: there are more queries than positions.
        """
        if self._keys is None or self._values is None:
            raise InputMismatchError("the cache is empty; append the queries' own keys and values first")
        seq_q, length = q.shape[1], self.length
        if seq_q > length:
            raise InputMismatchError(f"q has {seq_q} positions, the cache {length}; append the queries' own keys first")
        keys, values = self._keys[:, :, :length], self._values[:, :, :length]
        mask = None
        if 1 < seq_q < length:  # torch aligns its own causal mask top-left
            visible = torch.ones(seq_q, length, dtype=torch.bool, device=q.device).tril(length - seq_q)
            mask = _additive_mask(visible, q.dtype, group=q.shape[2] // keys.shape[1])
        return _scaled_dot_product(q, keys, values, mask=mask, causal=1 < seq_q == length, scale=scale)


class GrowingCache(KVCache):
    """A cache that has as much memory as it has positions: each ``append`` allocates anew and copies all of them.

    Example:
        >>> cache = GrowingCache()
        >>> cache.append(k, v)  # a prompt, then one position a step
        >>> out = cache.attend(q)

    Raises:
        InputMismatchError: an append's sizes, dtype or device are not those of the one before.
    """

    @property
    def length(self) -> int:
        return 0 if self._keys is None else self._keys.shape[2]

    def append(self, k: torch.Tensor, v: torch.Tensor) -> None:
        if self._keys is None or self._values is None:
            _check_pair(k, v)
            self._keys, self._values = (tensor.transpose(1, 2).contiguous() for tensor in (k, v))
            return
        _check_fits(k, v, self._keys, self._values)
        self._keys = torch.cat((self._keys, k.transpose(1, 2)), 2)
        self._values = torch.cat((self._values, v.transpose(1, 2)), 2)

    def reset(self) -> None:
        self._keys = self._values = None


class StaticCache(KVCache):
    """A cache with room for ``capacity`` positions from the start: ``append`` copies what is new, ``reset`` nothing.

    Example:
        >>> cache = StaticCache(batch=2, capacity=4096, kv_heads=8, head_dim=128, dtype=torch.bfloat16)
        >>> cache.append(k, v)
        >>> out = cache.attend(q)

    Raises:
        UsageError: an append exceeds the capacity; nothing is added.
        InputMismatchError: an append's sizes, dtype or device are not the cache's.
    """

    _keys: torch.Tensor
    _values: torch.Tensor

    def __init__(
        self,
        *,
        batch: int,
        capacity: int,
        kv_heads: int,
        head_dim: int,
        head_dim_v: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ) -> None:
        widths = (head_dim, head_dim if head_dim_v is None else head_dim_v)
        self._keys, self._values = (
            torch.empty(batch, kv_heads, capacity, width, dtype=dtype, device=device) for width in widths
        )
        self._length = 0

    @property
    def length(self) -> int:
        return self._length

    def append(self, k: torch.Tensor, v: torch.Tensor) -> None:
        _check_fits(k, v, self._keys, self._values)
        capacity, end = self._keys.shape[2], self._length + k.shape[1]
        if end > capacity:
            raise UsageError(
                f"k has {k.shape[1]} positions, the cache {self._length}; expected at most capacity={capacity} in all"
            )
        self._keys[:, :, self._length : end] = k.transpose(1, 2)
        self._values[:, :, self._length : end] = v.transpose(1, 2)
        self._length = end

    def reset(self) -> None:
        self._length = 0


@dataclass(frozen=True, slots=True)
class ContiguousCache:
    """Decode over a contiguous copy of the paged cache: what it costs that a cache has pages, and what it saves.

    Implements ``Baseline`` for ``PagedShape``. All sequences are padded to the longest, gathered once in ``prepare``; a
    call is torch's attention with a mask of what is no key, which its fused backends take, and follows the queries.
    What the copy takes beyond the pages in use, its padding, is memory of the baseline's own.
    """

    name: str = "contiguous cache"
    is_usual: bool = False
    verified_on_hardware: bool = True

    def available(self) -> str | None:
        return None

    def unsupported(self, shape: Any) -> str | None:
        if not isinstance(shape, PagedShape):
            return f"{type(shape).__name__}: {self.name} computes a PagedShape"
        if shape.kv_dtype != shape.dtype:
            return f"kv_dtype={shape.kv_dtype}: {self.name} has the queries' dtype, {shape.dtype}"
        return missing_full_mask(self.name, shape) or missing_feature(self.name, shape, "softcap", "sinks", "alibi")

    def prepare(self, shape: PagedShape, inputs: "Inputs") -> Callable[[], torch.Tensor]:
        """Return a call that returns ``[B, S_q, H, D_v]``; refuses packed queries."""
        refuse_unless_ready(self, shape)
        if inputs.q.ndim != 4:
            raise BaselineUnavailableError(f"q is {tuple(inputs.q.shape)}, packed: {self.name} takes [B, S_q, H, D]")
        keys, values = (
            gather_pages(cache, inputs.page_table, inputs.seq_lens, layout=inputs.layout)
            for cache in (inputs.k_cache, inputs.v_cache)
        )
        visible = _visible_keys(inputs.seq_lens, inputs.q.shape[1], keys.shape[2], window=inputs.window)
        mask = None if bool(visible.all()) else _additive_mask(visible[:, None], inputs.q.dtype, group=shape.group)
        blind = ~visible.any(2)[:, :, None, None]  # [B, S_q, 1, 1]
        has_blind = bool(blind.any())

        def run() -> torch.Tensor:
            out = _scaled_dot_product(inputs.q, keys, values, mask=mask, scale=inputs.scale)
            return out.masked_fill(blind, 0.0) if has_blind else out

        pages = int((-(-inputs.seq_lens // shape.page_size)).sum())
        return OverCopies(run, (keys, values), pages * (inputs.k_cache[0].nbytes + inputs.v_cache[0].nbytes))


def gather_pages(cache: torch.Tensor, page_table: torch.Tensor, seq_lens: torch.Tensor, *, layout: str) -> torch.Tensor:
    """Copy a paged cache to one tensor ``[B, H_kv, longest, D]``, 0 behind a sequence's end; waits for the device."""
    slots = cache if layout == "NHD" else cache.transpose(1, 2)
    position = torch.arange(max(1, int(seq_lens.max())), device=cache.device)
    is_key = position < seq_lens[:, None]
    pages = torch.where(is_key, page_table[:, position // slots.shape[1]], 0).long()
    rows = slots[pages, position % slots.shape[1]]
    return rows.masked_fill(~is_key[:, :, None, None], 0.0).transpose(1, 2).contiguous()


def _visible_keys(seq_lens: torch.Tensor, seq_q: int, longest: int, *, window: int | None) -> torch.Tensor:
    """Return a mask ``[B, S_q, longest]`` of the keys that the last ``seq_q`` positions of each sequence see."""
    key = torch.arange(longest, device=seq_lens.device)
    position = (seq_lens[:, None] - seq_q + torch.arange(seq_q, device=seq_lens.device))[:, :, None]
    visible = key <= position
    return visible if window is None else visible & (key > position - window)


def _additive_mask(visible: torch.Tensor, dtype: torch.dtype, *, group: int) -> torch.Tensor:
    """Return 0 for a visible key and -inf for others, ``[..., S_q * group, length]`` of ``visible [..., S_q, length]``.

    Torch would make as much of a boolean mask at each call. Of one query a single row serves the group.
    """
    if visible.shape[-2] > 1:
        visible = visible.repeat_interleave(group, -2)
    length = visible.shape[-1]
    row = -(-length // MASK_ALIGNMENT) * MASK_ALIGNMENT
    mask = torch.zeros(*visible.shape[:-1], row, dtype=dtype, device=visible.device)[..., :length]
    return mask.masked_fill_(~visible, -torch.inf)


def _scaled_dot_product(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    mask: torch.Tensor | None,
    causal: bool = False,
    scale: float | None,
) -> torch.Tensor:
    """Attend with ``q [B, S_q, H, D]`` over ``[B, H_kv, length, D]``; a mask is one of ``_additive_mask``.

    Of torch's fused backends for GPUs flash takes no mask, and the memory-efficient one no groups before torch 2.14. So
    with a mask the queries of a group are passed as positions of one head, which also reads each key once.
    """
    batch, seq_q, heads, head_dim = q.shape
    kv_heads, width = keys.shape[1], values.shape[3]
    group = 1 if mask is None else heads // kv_heads
    positions = q.reshape(batch, seq_q, heads // group, group, head_dim).transpose(1, 2).flatten(2, 3)
    out: torch.Tensor = torch.nn.functional.scaled_dot_product_attention(
        positions,
        keys,
        values,
        attn_mask=mask,
        is_causal=causal,
        scale=scale,
        enable_gqa=positions.shape[1] != kv_heads,
    )
    return out.reshape(batch, heads // group, seq_q, group, width).transpose(1, 2).flatten(2, 3)


def _check_pair(k: torch.Tensor, v: torch.Tensor) -> None:
    if k.ndim != 4 or k.shape[:3] != v.shape[:3]:
        raise InputMismatchError(
            f"k is {tuple(k.shape)}, v {tuple(v.shape)}; expected [B, S, H_kv, D] and [B, S, H_kv, D_v]"
        )


def _check_fits(k: torch.Tensor, v: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
    """Refuse a tensor that would be broadcast or converted into a cache ``[B, H_kv, length, D]``."""
    _check_pair(k, v)
    for name, new, old in (("k", k, keys), ("v", v, values)):
        sizes = (old.shape[0], new.shape[1], old.shape[1], old.shape[3])
        if tuple(new.shape) != sizes or new.dtype != old.dtype or new.device != old.device:
            raise InputMismatchError(
                f"{name} is {tuple(new.shape)} {new.dtype} on {new.device}; "
                f"expected {sizes} {old.dtype} on {old.device}, as the cache"
            )
