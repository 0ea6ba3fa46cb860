"""A paged cache of keys and values in plain torch: who owns which page, shared prefixes, the tables kernels read."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from autotune.errors import InputMismatchError, OutOfPagesError, UnknownNameError, UsageError

if TYPE_CHECKING:
    import torch


class PagedKVCache:
    """A pool of pages and the sequences that live in it; the bookkeeping is Python's, so nothing waits for the GPU.

    Pages may be shared: ``fork`` gives a second sequence the same pages, and the last of them is copied when one of the
    two appends to it.

    Args:
        pages: size of the pool.
        page_size: tokens a page.
        kv_heads, head_dim, head_dim_v: of a token; ``head_dim_v`` follows ``head_dim``.
        layout: pages are ``[page_size, kv_heads, head_dim]`` in ``"NHD"``, ``[kv_heads, page_size, head_dim]`` in
            ``"HND"``.
        dtype, device: torch's; bfloat16 on the current GPU by default. Tokens are quantized where the dtype is int8,
            float8_e4m3fn or float8_e5m2.
        k_scale, v_scale: of an 8-bit float's cache alone: fp32 ``[kv_heads]`` or of no dimension; 1 by default.

    Attributes:
        k_cache, v_cache: all pages, as ``autotune.paged_decode`` takes them. A slot that holds no token is undefined.
        k_scale, v_scale: what it takes with a quantized cache, None with any other.

    Example (on a GPU):
        >>> cache = autotune.PagedKVCache(pages=1024, page_size=16, kv_heads=8, head_dim=128)
        >>> prompt = cache.allocate()
        >>> cache.append(prompt, k, v)  # both [tokens, 8, 128]
        >>> ids = [prompt, cache.fork(prompt)]
        >>> out = autotune.paged_decode(q, cache.k_cache, cache.v_cache, cache.page_table(ids), cache.seq_lens(ids))
    """

    def __init__(
        self,
        *,
        pages: int,
        page_size: int,
        kv_heads: int,
        head_dim: int,
        head_dim_v: int | None = None,
        layout: Literal["NHD", "HND"] = "NHD",
        dtype: "torch.dtype | None" = None,
        device: "torch.device | str" = "cuda",
        k_scale: "torch.Tensor | None" = None,
        v_scale: "torch.Tensor | None" = None,
    ) -> None:
        import torch

        if layout not in ("NHD", "HND"):
            raise UsageError(f"layout={layout!r} is not allowed; expected 'NHD' or 'HND'")
        sizes = {"pages": pages, "page_size": page_size, "kv_heads": kv_heads, "head_dim": head_dim}
        for name, value in sizes.items():
            if type(value) is not int or value < 1:
                raise UsageError(f"{name}={value!r} is not allowed; expected an integer from 1")
        self.layout = layout
        self.page_size = page_size
        middle = (page_size, kv_heads) if layout == "NHD" else (kv_heads, page_size)
        self.k_cache, self.v_cache = (
            torch.empty(pages, *middle, width, dtype=dtype or torch.bfloat16, device=device)
            for width in (head_dim, head_dim if head_dim_v is None else head_dim_v)
        )
        self.k_scale = _make_scale("k_scale", k_scale, self.k_cache, kv_heads)
        self.v_scale = _make_scale("v_scale", v_scale, self.v_cache, kv_heads)
        self._free = list(range(pages - 1, -1, -1))  # taken from the end
        self._owners = [0] * pages
        self._pages: dict[int, list[int]] = {}
        self._lengths: dict[int, int] = {}
        self._next = 0

    @property
    def free_pages(self) -> int:
        """Pages that belong to no sequence."""
        return len(self._free)

    def allocate(self) -> int:
        """A new empty sequence; it takes pages as it grows."""
        return self._add([], 0)

    def fork(self, sequence: int) -> int:
        """A new sequence with the same tokens, in the same pages."""
        pages = list(self._owned(sequence))
        for page in pages:
            self._owners[page] += 1
        return self._add(pages, self._lengths[sequence])

    def free(self, sequence: int) -> None:
        """Forget a sequence; pages that no other one shares return to the pool."""
        for page in reversed(self._owned(sequence)):
            self._release(page)
        del self._pages[sequence], self._lengths[sequence]

    def append(self, sequence: int, k: "torch.Tensor", v: "torch.Tensor") -> None:
        """Add tokens to a sequence: ``k [tokens, kv_heads, head_dim]`` and ``v [tokens, kv_heads, head_dim_v]``.

        Raises:
            OutOfPagesError: the pool has too few free pages; nothing was changed.
            InputMismatchError: tensors that do not fit the cache.
            UnknownNameError: no such sequence.
        """
        import torch

        from autotune.kernels.paged_cache.quantization import quantize

        pages = self._owned(sequence)
        self._check_tokens(k, v)
        start = self._lengths[sequence]
        stop = start + k.shape[0]
        self._reserve(sequence, stop)
        positions = torch.arange(start, stop, device=k.device)
        page = torch.tensor(pages, dtype=torch.int64, device=k.device)[positions // self.page_size]
        where = page, positions % self.page_size
        for tokens, cache, scale in ((k, self.k_cache, self.k_scale), (v, self.v_cache, self.v_scale)):
            values = tokens
            if scale is not None and cache.dtype == torch.int8:
                values, self._by_slot(scale)[where] = quantize(tokens, cache.dtype)
            elif scale is not None:
                values, _ = quantize(tokens, cache.dtype, scale)
            self._by_slot(cache)[where] = _as_bytes(values)
        self._lengths[sequence] = stop

    def page_table(self, sequences: Sequence[int], *, width: int | None = None) -> "torch.Tensor":
        """Page indices int32 ``[len(sequences), width]``, -1 where a sequence has no page.

        ``width`` is that of the longest sequence by default; CUDA graphs need one that stays.
        """
        import torch

        rows = [self._owned(sequence) for sequence in sequences]
        longest = max(map(len, rows), default=0)
        width = max(1, longest) if width is None else width
        if width < longest:
            raise UsageError(f"width={width} is not allowed; the longest of these sequences has {longest} pages")
        padded = [[*row, *[-1] * (width - len(row))] for row in rows]
        return torch.tensor(padded, dtype=torch.int32, device=self.k_cache.device).reshape(len(rows), width)

    def seq_lens(self, sequences: Sequence[int]) -> "torch.Tensor":
        """Numbers of tokens, int32 ``[len(sequences)]``."""
        import torch

        for sequence in sequences:
            self._owned(sequence)
        lengths = [self._lengths[sequence] for sequence in sequences]
        return torch.tensor(lengths, dtype=torch.int32, device=self.k_cache.device)

    def _check_tokens(self, k: "torch.Tensor", v: "torch.Tensor") -> None:
        """Refuse tokens of other sizes than the cache's, and of another dtype unless they are quantized."""
        import torch

        for name, tokens, cache in (("k", k, self.k_cache), ("v", v, self.v_cache)):
            sizes = (k.shape[0], *self._by_slot(cache).shape[2:])
            dtypes = [cache.dtype] if self.k_scale is None else [torch.float16, torch.bfloat16, torch.float32]
            if tuple(tokens.shape) != sizes or tokens.dtype not in dtypes:
                raise InputMismatchError(
                    f"{name} is {tuple(tokens.shape)} {tokens.dtype}; expected {sizes} {' or '.join(map(str, dtypes))}"
                )

    def _by_slot(self, pool: "torch.Tensor") -> "torch.Tensor":
        """A cache, or the scales of one, as ``[pages, page_size, H_kv, ...]``; one-byte elements as bytes."""
        return _as_bytes(pool) if self.layout == "NHD" else _as_bytes(pool).transpose(1, 2)

    def _reserve(self, sequence: int, length: int) -> None:
        """Give a sequence pages for that many tokens, and one of its own where it will write into a shared one."""
        pages, start = self._pages[sequence], self._lengths[sequence]
        last = start // self.page_size  # where the next token goes
        copies = last < len(pages) and length > start and self._owners[pages[last]] > 1
        needed = -(-length // self.page_size) - len(pages) + copies
        if needed > len(self._free):
            raise OutOfPagesError(
                f"sequence {sequence} needs {needed} more pages for {length} tokens, {len(self._free)} of "
                f"{len(self._owners)} are free; free a sequence, or make the cache larger"
            )
        if copies:
            shared, pages[last] = pages[last], self._take()
            for pool in (self.k_cache, self.v_cache, self.k_scale, self.v_scale):
                if pool is not None and pool.ndim >= 3:  # a scale of fewer dimensions is not of a page
                    pool[pages[last]] = pool[shared]
            self._release(shared)
        pages.extend(self._take() for _ in range(needed - copies))

    def _add(self, pages: list[int], length: int) -> int:
        sequence, self._next = self._next, self._next + 1
        self._pages[sequence], self._lengths[sequence] = pages, length
        return sequence

    def _owned(self, sequence: int) -> list[int]:
        if sequence not in self._pages:
            raise UnknownNameError(f"sequence={sequence!r} is unknown; it was never allocated, or was freed")
        return self._pages[sequence]

    def _take(self) -> int:
        page = self._free.pop()
        self._owners[page] = 1
        return page

    def _release(self, page: int) -> None:
        self._owners[page] -= 1
        if self._owners[page] == 0:
            self._free.append(page)


def _as_bytes(tensor: "torch.Tensor") -> "torch.Tensor":
    """One-byte elements as bytes, which torch stores by index; 8-bit floats it does not."""
    import torch

    return tensor.view(torch.uint8) if tensor.itemsize == 1 else tensor


def _make_scale(name: str, given: "torch.Tensor | None", cache: "torch.Tensor", kv_heads: int) -> "torch.Tensor | None":
    """The scales of a cache: those that were given, or room for one a slot and head of int8.

    Raises:
        InputMismatchError: the cache has no scale that is given, or has others.
    """
    import torch

    from autotune.kernels.paged_cache.quantization import LARGEST

    takes_one = cache.dtype in LARGEST and cache.is_floating_point()
    if given is not None and not (
        takes_one
        and isinstance(given, torch.Tensor)
        and given.dtype == torch.float32
        and given.shape in ((), (kv_heads,))
    ):
        wanted = f"a float32 tensor of () or ({kv_heads},)" if takes_one else "None"
        state = f"{tuple(given.shape)} {given.dtype}" if isinstance(given, torch.Tensor) else given
        raise InputMismatchError(f"{name}={state} is not allowed; expected {wanted} for a cache of {cache.dtype}")
    if cache.dtype == torch.int8:
        return torch.empty(cache.shape[:3], dtype=torch.float32, device=cache.device)
    if not takes_one:
        return None
    return torch.ones((), device=cache.device) if given is None else given.to(cache.device)
