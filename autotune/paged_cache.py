"""A paged cache of keys and values in plain torch: owners of pages, shared prefixes, the tables that kernels read."""

from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Literal

from autotune.dtypes import QUERY_DTYPES, parse_kv_dtype
from autotune.eager_calls import require_packages
from autotune.errors import InputMismatchError, MissingDependencyError, OutOfPagesError, UnknownNameError, UsageError
from autotune.platforms import has_gpu
from autotune.shape import MAX_LENGTH, PagedShape

if TYPE_CHECKING:
    import torch

NO_PAGE: Final = -1


class PagedKVCache:
    """A pool of pages and the sequences that live in it, for examples, tests and small programs.

    The bookkeeping is Python's, sequence by sequence: it reads nothing from the GPU and does not wait for it, but a
    server, which has tables of its own on the GPU, appends to all sequences in one launch of ``autotune.append_kv``.

    Pages may be shared: ``fork`` gives a second sequence the same pages, and the last of them is copied when one of the
    two appends to it.

    Args:
        pages: size of the pool.
        page_size, kv_heads, head_dim, head_dim_v: as in ``PagedShape``; ``head_dim_v`` follows ``head_dim``.
        layout: pages are ``[page_size, kv_heads, head_dim]`` in ``"NHD"``, ``[kv_heads, page_size, head_dim]`` in
            ``"HND"``.
        dtype: torch's or its name; tokens are quantized where it is int8, float8_e4m3fn (``"fp8"``) or float8_e5m2.
        device: ``"cuda"``, the current GPU, by default; ``"cpu"`` needs none.
        k_scale, v_scale: of an 8-bit float's cache alone: fp32 ``[kv_heads]`` or of no dimension; ones by default.

    Attributes:
        k_cache, v_cache: all pages, as ``autotune.paged_decode`` takes them. A slot that holds no token is undefined.
            Of one width they are views of one buffer, a page's values behind its keys, as tuned kernels were measured.
            Of latents (``head_dim`` 576, 320 or 288) values are the first columns of the keys, and ``append`` takes
            them so.
        k_scale, v_scale: what it takes with a quantized cache, None with any other.

    Raises:
        UsageError: a size, dtype, layout or device that no kernel takes.
        InputMismatchError: scales that such a cache does not have.
        MissingDependencyError: there is no torch, or no GPU for ``device="cuda"``.

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
        dtype: "torch.dtype | str" = "bfloat16",
        device: "torch.device | str" = "cuda",
        k_scale: "torch.Tensor | None" = None,
        v_scale: "torch.Tensor | None" = None,
    ) -> None:
        require_packages("torch")
        from autotune.kernels.paged_cache.layout import allocate_caches  # loads torch

        for name, value in (("pages", pages), ("kv_heads", kv_heads)):
            if type(value) is not int or not 1 <= value <= MAX_LENGTH:  # page tables are of int32
                raise UsageError(f"{name}={value!r} is not allowed; expected an integer from 1 to {MAX_LENGTH}")
        shape = PagedShape(  # refuses what no kernel takes
            batch=1,
            heads=kv_heads,
            max_context=1,
            head_dim=head_dim,
            head_dim_v=head_dim_v,  # type: ignore[arg-type]  # follows head_dim
            page_size=page_size,
            kv_dtype=parse_kv_dtype(dtype, field="dtype"),
            layout=layout,
        )
        if shape.is_latent and shape.kv_dtype not in QUERY_DTYPES:
            raise UsageError(f"dtype={dtype!r} is not allowed for latents; expected that of queries, such as bfloat16")
        self.layout = shape.layout
        self.page_size = page_size
        self.k_cache, self.v_cache = _allocated(shape, pages, _parse_device(device), allocate_caches)
        self.k_scale = _make_scale("k_scale", k_scale, self.k_cache, kv_heads)
        self.v_scale = _make_scale("v_scale", v_scale, self.v_cache, kv_heads)
        self._free = list(range(pages - 1, -1, -1))  # taken from the end
        self._owners = [0] * pages
        self._pages: dict[int, array[int]] = {}
        self._lengths: dict[int, int] = {}
        self._next = 0

    def __repr__(self) -> str:
        _, _, kv_heads, width = self._by_slot(self.k_cache).shape
        widths = "/".join(map(str, dict.fromkeys([width, self.v_cache.shape[3]])))
        used = f"{len(self._owners) - len(self._free)} of {len(self._owners)} {self.layout} pages of {self.page_size}"
        place = f"{self.k_cache.dtype}, {self.k_cache.device}"
        return f"<PagedKVCache: {len(self._pages)} sequences in {used}, {kv_heads} heads of {widths}, {place}>"

    @property
    def free_pages(self) -> int:
        """Pages that belong to no sequence."""
        return len(self._free)

    def allocate(self) -> int:
        """Add an empty sequence, which takes pages as it grows; return its id."""
        return self._add(array("i"), 0)

    def fork(self, sequence: int) -> int:
        """Add a sequence with the same tokens, in the same pages; return its id."""
        pages = self._owned(sequence)[: -(-self._lengths[sequence] // self.page_size)]
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
            NotDifferentiableError: gradients are required, which a cache does not keep.
            UnknownNameError: no such sequence.
        """
        import torch

        from autotune.kernels.paged_cache.quantization import quantize

        pages = self._owned(sequence)
        self._check_tokens(k, v)
        start = self._lengths[sequence]
        stop = start + k.shape[0]
        if start == stop:
            return
        stored = []
        for tokens, cache, scale in ((k, self.k_cache, self.k_scale), (v, self.v_cache, self.v_scale)):
            values, scales = (tokens, tokens) if scale is None else quantize(tokens, cache.dtype, scale)
            stored.append((cache, values))
            if scale is not None and cache.dtype == torch.int8:  # which has one a slot and head
                stored.append((scale, scales))
        self._reserve(sequence, stop)
        where = self._places(pages[start // self.page_size :], start % self.page_size, k.shape[0])
        for pool, values in stored:
            self._by_slot(pool)[where] = _as_bytes(values)
        self._lengths[sequence] = stop

    def page_table(self, sequences: Sequence[int], *, width: int | None = None) -> "torch.Tensor":
        """Return page indices int32 ``[len(sequences), width]``, -1 where a sequence has no page.

        ``width`` is that of the longest sequence by default; CUDA graphs need one that stays.
        """
        rows = [self._owned(sequence) for sequence in sequences]
        longest = max(map(len, rows), default=0)
        width = max(1, longest) if width is None else width
        if width < max(1, longest):
            allowed = f"the longest of these sequences has {longest} pages" if longest else "expected at least 1"
            raise UsageError(f"width={width} is not allowed; {allowed}")
        table = array("i")
        for row in rows:
            table += row + array("i", [NO_PAGE]) * (width - len(row))
        return self._upload(table).reshape(len(rows), width)

    def seq_lens(self, sequences: Sequence[int]) -> "torch.Tensor":
        """Return numbers of tokens, int32 ``[len(sequences)]``."""
        for sequence in sequences:
            self._owned(sequence)
        return self._upload(array("i", [self._lengths[sequence] for sequence in sequences]))

    def _check_tokens(self, k: "torch.Tensor", v: "torch.Tensor") -> None:
        """Validate sizes and place, the dtype unless tokens are quantized, and that there are no gradients."""
        import torch

        from autotune.kernels.tensors import check_gradients, check_tensors, describe, dtype_name

        check_tensors({"k": k, "v": v})
        for name, tokens, cache in (("k", k, self.k_cache), ("v", v, self.v_cache)):
            sizes = (*k.shape[:1], *self._by_slot(cache).shape[2:])
            dtypes = [cache.dtype] if self.k_scale is None else [torch.float16, torch.bfloat16, torch.float32]
            if tuple(tokens.shape) != sizes or tokens.dtype not in dtypes:
                wanted = " or ".join(map(dtype_name, dtypes))
                raise InputMismatchError(f"{name} is {describe(tokens)}; expected {sizes} {wanted}")
            if tokens.device != cache.device:
                raise InputMismatchError(f"{name} is on {tokens.device}; expected {cache.device}, where the cache is")
        check_gradients({"k": k, "v": v})

    def _places(self, pages: "array[int]", first: int, count: int) -> "tuple[int | torch.Tensor, slice | torch.Tensor]":
        """Return pages and slots, as indices, of consecutive tokens from slot ``first`` of the first page on."""
        import torch

        if len(pages) == 1:  # as of a decode step: no index on the GPU is needed
            return pages[0], slice(first, first + count)
        places = torch.arange(first, first + count, device=self.k_cache.device)
        return self._upload(pages).long()[places // self.page_size], places % self.page_size

    def _upload(self, integers: "array[int]") -> "torch.Tensor":
        """Copy integers, which nobody changes any more, to where the cache is as int32, without waiting for a GPU."""
        import torch

        device = self.k_cache.device
        if not integers:
            return torch.empty(0, dtype=torch.int32, device=device)
        host = torch.frombuffer(integers, dtype=torch.int32)  # a C int has 32 bits wherever there is Triton
        # Of memory that is not pinned, a copy ends only when the GPU has got to it.
        return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host

    def _by_slot(self, pool: "torch.Tensor") -> "torch.Tensor":
        """Return a cache, or its scales, as ``[pages, page_size, H_kv, ...]``; one-byte elements as bytes."""
        return _as_bytes(pool) if self.layout == "NHD" else _as_bytes(pool).transpose(1, 2)

    def _reserve(self, sequence: int, length: int) -> None:
        """Give a sequence pages for that many tokens, and a page of its own where it will write into a shared one."""
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

    def _add(self, pages: "array[int]", length: int) -> int:
        sequence, self._next = self._next, self._next + 1
        self._pages[sequence], self._lengths[sequence] = pages, length
        return sequence

    def _owned(self, sequence: int) -> "array[int]":
        if sequence not in self._pages:
            raise UnknownNameError(f"sequence={sequence!r} is unknown; it was never allocated, or was freed")
        return self._pages[sequence]

    def _take(self) -> int:
        self._owners[self._free[-1]] = 1
        return self._free.pop()

    def _release(self, page: int) -> None:
        self._owners[page] -= 1
        if self._owners[page] == 0:
            self._free.append(page)


def _allocated(
    shape: PagedShape, pages: int, device: "torch.device", allocate: "Callable[..., tuple[torch.Tensor, torch.Tensor]]"
) -> "tuple[torch.Tensor, torch.Tensor]":
    """Allocate a cache; a GPU whose memory is used up raises torch's own OutOfMemoryError, which callers may handle."""
    import torch

    try:
        return allocate(shape, pages, device)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise UsageError(f"pages={pages} of {shape.page_size} tokens are too many for {device}: {error}") from error


def _parse_device(device: "torch.device | str") -> "torch.device":
    import torch

    try:
        place = torch.device(device)
    except (RuntimeError, TypeError):
        place = None
    if place is None or place.type not in ("cuda", "cpu"):
        raise UsageError(f"device={str(device)!r} is not allowed; expected 'cuda', 'cuda:<index>' or 'cpu'")
    if place.type == "cuda" and not has_gpu():
        advice = "device='cpu' needs none, `autotune doctor` says what is there"
        raise MissingDependencyError(f"device={str(device)!r}: no GPU is visible; {advice}")
    return place


def _as_bytes(tensor: "torch.Tensor") -> "torch.Tensor":
    """Return one-byte elements as bytes, which torch stores by index; 8-bit floats it does not."""
    import torch

    return tensor.view(torch.uint8) if tensor.itemsize == 1 else tensor


def _make_scale(name: str, given: "torch.Tensor | None", cache: "torch.Tensor", kv_heads: int) -> "torch.Tensor | None":
    """Return the scales of a cache: those that were given, or room for one a slot and head of int8."""
    import torch

    from autotune.kernels.paged_cache.quantization import LARGEST

    takes_one = cache.dtype in LARGEST and cache.is_floating_point()
    fits = given is None
    if isinstance(given, torch.Tensor):
        fits = takes_one and given.dtype == torch.float32 and given.shape in ((), (kv_heads,))
    if not fits:
        wanted = f"a float32 tensor of () or ({kv_heads},)" if takes_one else "None"
        state = f"{tuple(given.shape)} {given.dtype}" if isinstance(given, torch.Tensor) else given
        raise InputMismatchError(f"{name}={state} is not allowed; expected {wanted} for a cache of {cache.dtype}")
    if cache.dtype == torch.int8:
        return torch.empty(cache.shape[:3], dtype=torch.float32, device=cache.device)
    if not takes_one:
        return None
    # One a head, as kernels are tuned with: that of no dimension has other strides, so other binaries.
    return torch.ones(kv_heads, dtype=torch.float32, device=cache.device) if given is None else given.to(cache.device)
